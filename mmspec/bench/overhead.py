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
from mmspec.bench.methods import Method
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_configs import CODEBOOK_SIZE, llamagen_config
from mmspec.pipelines.llamagen import LlamaGenPipeline

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


def overhead_shares(methods: Iterable[Method], rounds: int = _ROUNDS) -> dict[str, dict[str, float]]:
    """Share of the decoding loop's wall time outside the forwards, and milliseconds a round by part, for each method."""
    pipe = random_gpt_b()
    return {method.name: _shares(pipe, method, rounds) for method in methods}


def _shares(pipe: LlamaGenPipeline, method: Method, rounds: int) -> dict[str, float]:
    pipe.drafter, pipe.acceptance = method.build(None, None)

    def stop(pipe: Any, step: int, place: int, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= rounds
        return tensors

    for warm in (True, False):
        call = {"seed": 0, "output_type": "tokens", "callback_on_step_end": stop if not warm else _stop_at_once}
        stats = pipe(class_labels=1, speculate=pipe.drafter is not None, **call).stats
    total = stats.seconds["total"]
    count = max(1, stats.forwards - 1)
    parts = {part: 1e3 * stats.seconds.get(part, 0.0) / count for part in PARTS}
    return {"share": 1 - stats.seconds["model"] / total, "forward_ms": 1e3 * stats.seconds["model"] / count, **parts}


def _stop_at_once(pipe: Any, step: int, place: int, tensors: dict[str, Any]) -> dict[str, Any]:
    pipe._interrupt = step >= 2
    return tensors
