"""What the loop costs beside the forwards at the size of published models: vocabulary 16384, window 64.

The embedded model has a small vocabulary, where noise, laws and verdicts are cheap. Here a GPT-B of LlamaGen's published
size with random weights decodes a few rounds. Its logits say nothing, so the figures are costs, never acceptance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from diffusers import VQModel

from mmspec.bench.harness import PARTS
from mmspec.bench.methods import Method, Parts
from mmspec.core.stats import DecodeStats
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_configs import CODEBOOK_SIZE, llamagen_config
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.pipelines.outputs import ImageOutput

_ROUNDS = 12


def random_gpt_b() -> LlamaGenPipeline:
    """A class-conditional GPT-B for 256 pixels with random weights, and a codebook of its size."""
    devices: list[Any] = []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        transformer = LlamaGenTransformer(**llamagen_config("GPT-B", 256, "class")).eval()
        vq = VQModel(
            block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1, latent_channels=8, vq_embed_dim=8,
            num_vq_embeddings=CODEBOOK_SIZE, norm_num_groups=4, lookup_from_codebook=True,
        )  # fmt: skip
    pipe = LlamaGenPipeline(transformer, vq.eval(), guidance_scale=4.0, top_k=1000)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def measurable(method: Method) -> bool:
    """Whether ``method`` can run on random weights: it has a fixed window of its own and loads nothing."""
    return method.name == "plain" or (method.drafter == "jacobi" and not method.default)


def overhead_shares(methods: Iterable[Method], rounds: int = _ROUNDS) -> dict[str, dict[str, float]]:
    """Share of the decoding loop's wall time outside the forwards, and milliseconds a round by part, for each method."""
    pipe = random_gpt_b()
    return {method.name: _shares(pipe, method, rounds) for method in methods}


def _shares(pipe: LlamaGenPipeline, method: Method, rounds: int) -> dict[str, float]:
    parts = method.build(Parts(None, None))
    parts.put(pipe)
    _decode(pipe, parts, 2)  # the first forwards are slower
    stats = _decode(pipe, parts, rounds)
    count = max(1, stats.forwards - 1)
    milliseconds = {part: 1e3 * stats.seconds.get(part, 0.0) / count for part in PARTS}
    return {"share": 1 - stats.model_share, "forward_ms": 1e3 * stats.seconds["model"] / count, **milliseconds}


def _decode(pipe: LlamaGenPipeline, parts: Parts, rounds: int) -> DecodeStats:
    """The stats of the first ``rounds`` rounds of a picture."""

    def stop(pipe: Any, step: int, place: int, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= rounds
        return tensors

    speculate = parts.drafter is not None
    output = pipe(class_labels=1, seed=0, speculate=speculate, output_type="tokens", callback_on_step_end=stop)
    assert isinstance(output, ImageOutput)
    assert output.stats is not None
    return output.stats
