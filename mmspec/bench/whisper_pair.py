"""An encoder-decoder pair: a small model drafts for a large one, here and in transformers' own assisted generation.

No trained pair is small enough to come with the package, so the default pair has random weights: the draft model is the
target without its upper decoder layers, which are made to change little. Its transcripts mean nothing; that both
implementations return plain decoding's tokens, and how many forwards and seconds they take for it, does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.utils import logging

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.bench.report import MethodFigures
from mmspec.core.controllers import FixedController
from mmspec.core.drafting import NoDraft
from mmspec.core.guidance import Guidance
from mmspec.core.loop import SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import Stopping
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.model import ModelDrafter
from mmspec.runner.runner import Runner
from mmspec.speech.adapters.whisper_decoder import WhisperDecoderModel
from mmspec.speech.audio import load_audio

_TOKENS = 48  # new tokens of every recording
_DRAFTED = 5  # transformers' own number


@dataclass
class _Run:
    """What one method did on all recordings."""

    tokens: list[list[int]] = field(default_factory=list)
    forwards: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0


def random_pair(width: int = 128, layers: int = 6, kept: int = 1) -> tuple[Any, Any, Any]:
    """Target, draft model of its first ``kept`` decoder layers, and feature extractor; weights are random."""
    sizes: dict[str, Any] = {
        "vocab_size": 512, "num_mel_bins": 80, "encoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "d_model": width, "encoder_ffn_dim": 2 * width, "decoder_ffn_dim": 2 * width,
        "max_source_positions": 200, "max_target_positions": 128, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": None, "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    target = WhisperForConditionalGeneration(WhisperConfig(**sizes, decoder_layers=layers)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in target.named_parameters():
            if weight.dim() > 1 and "embed_positions" not in name:
                upper = any(f"decoder.layers.{layer}." in name for layer in range(kept, layers))
                weight.copy_(torch.randn(weight.shape, generator=generator) * (0.02 if upper else 0.12))
    draft = WhisperForConditionalGeneration(WhisperConfig(**sizes, decoder_layers=kept)).eval()
    own = draft.state_dict()
    draft.load_state_dict({name: tensor for name, tensor in target.state_dict().items() if name in own})
    return target, draft, WhisperFeatureExtractor(feature_size=80, chunk_length=4)


@torch.no_grad()
def bench_pair(target: Any, draft: Any, features: Any, files: Sequence[Path]) -> list[MethodFigures]:
    """Plain, assisted, and transformers' assisted decoding of the recordings, in turn."""
    with _quiet_transformers():
        return _bench_pair(target, draft, [_features(features, file) for file in files])


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its assisted generation warns about its own defaults at every round."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _bench_pair(target: Any, draft: Any, inputs: Sequence[Tensor]) -> list[MethodFigures]:
    methods: dict[str, Callable[[Tensor, _Run], None]] = {
        "whisper-plain": lambda sound, run: _ours(target, None, sound, run),
        "whisper-assisted": lambda sound, run: _ours(target, draft, sound, run),
        "whisper-assisted-transformers": lambda sound, run: _theirs(target, draft, sound, run),
    }
    runs = {name: _Run() for name in methods}
    for method in methods.values():
        method(inputs[0], _Run())  # warm-up
    for number, sound in enumerate(inputs):
        names = list(methods)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            methods[name](sound, runs[name])
    return [_figures(name, run, runs["whisper-plain"]) for name, run in runs.items()]


def _features(extractor: Any, file: Path) -> Tensor:
    clip = load_audio(file, extractor.sampling_rate)
    sound: Tensor = extractor(clip.samples.numpy(), sampling_rate=clip.sampling_rate, return_tensors="pt")[
        "input_features"
    ]
    return sound


def _ours(target: Any, draft: Any, sound: Tensor, run: _Run) -> None:
    def session(network: Any) -> Runner:
        states = network.model.encoder(sound).last_hidden_state
        model = WhisperDecoderModel(network, states, [[network.config.decoder_start_token_id]], sound.device)
        return Runner(model, Guidance(), _TOKENS, _DRAFTED + 1)

    start = time.perf_counter()
    runner, width = session(target), 1
    made: Any = NoDraft()
    if draft is not None:
        settings = ModelDrafter(_DRAFTED, model=draft)
        setup = DraftSetup(1, runner.vocab_size, sound.device, _TOKENS, draft_target=session)
        made, width = settings.session(setup), _DRAFTED + 1
    stats = DecodeStats()
    decoder = SpeculativeDecoder(
        runner, made, CoupledAcceptance(), FixedController(width), RowNoise(torch.zeros(1, dtype=torch.long), 1),
        SamplingParams(0.0), Stopping(_TOKENS), stats,
    )  # fmt: skip
    *_, progress = decoder.steps()
    run.seconds += time.perf_counter() - start
    run.tokens.append(progress.tokens[0].tolist())
    run.forwards += stats.forwards
    run.model_seconds += stats.seconds["model"]


def _theirs(target: Any, draft: Any, sound: Tensor, run: _Run) -> None:
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    hook = target.model.decoder.register_forward_hook(count)
    start = time.perf_counter()
    try:
        made = target.generate(sound, assistant_model=draft, do_sample=False, max_new_tokens=_TOKENS)
    finally:
        hook.remove()
    run.seconds += time.perf_counter() - start
    run.tokens.append(made[0].tolist()[-_TOKENS:])
    run.forwards += calls


def _figures(name: str, run: _Run, plain: _Run) -> MethodFigures:
    peer = name.endswith("transformers")
    return MethodFigures(
        name=name, default=False, peer=peer, guarantee=Guarantee.SAME_TOKENS.value, items=len(run.tokens),
        tokens_equal=None if peer else run.tokens == plain.tokens, forwards=run.forwards,
        forwards_ratio=plain.forwards / run.forwards, tokens_per_forward=len(run.tokens) * _TOKENS / run.forwards,
        wall_ratio=plain.seconds / run.seconds, model_share=run.model_seconds / run.seconds, peak_memory_ratio=None,
        limit_fraction=0.0, deviation=None, quality={"equal_to_plain": float(run.tokens == plain.tokens)},
    )  # fmt: skip
