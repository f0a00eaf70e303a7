"""The speech-synthesis suite: sentences, every method on every sentence in turn, each streamed by itself.

``forwards`` counts all sequential model calls, those of the talker and those of the code predictor; ``tokens_per_forward`` is residual
codes per call of the predictor. ``tokens_equal`` says that codes and 16-bit samples are those of plain decoding. Wall
ratios are of the decoding loop; the codec runs alike for all methods.

With t_T the seconds of a talker call and t(w) those of a predictor call of w nodes, n_T talker calls and n_w predictor calls,
the limit is the ratio of n_T t_T + sum_w n_w t(w) of plain decoding to that of the method.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.bench.harness import Outcome, Sample, run_interleaved
from mmspec.bench.positions import accepted_by
from mmspec.bench.report import BenchReport, MethodFigures, median_wall_ratio
from mmspec.bench.tts_methods import TtsMethod
from mmspec.core.verify import Guarantee
from mmspec.speech.frame_model import MOST_BRANCHES
from mmspec.speech.talker import Reading
from mmspec.speech.talker_model import TalkerModel

SENTENCES = "sentences.json"


@dataclass(frozen=True)
class TtsSample(Sample):
    """What one method made of one sentence."""

    pcm: bytes = b""
    seconds: float = 0.0
    first_audio: float = 0.0


@dataclass
class TtsBench:
    """What to run: the model's name for the report, methods (``plain`` first), sentences, and the first seed."""

    model: str
    methods: Sequence[TtsMethod]
    sentences: Sequence[str]
    seed: int = 0


def read_sentences(folder: Path, limit: int | None = None) -> list[str]:
    """Sentences that come with a checkpoint.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If the file is damaged or ``limit`` is below 1.
    """
    path = folder / SENTENCES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {SENTENCES}; give sentences with --text.")
    sentences = json.loads(path.read_text())
    if not isinstance(sentences, list) or not sentences or not all(isinstance(text, str) for text in sentences):
        raise ValueError(f"{path} must hold a list of sentences.")
    if limit is not None and limit < 1:
        raise ValueError(f"`items` must be at least 1, got {limit}.")
    return sentences[:limit]


@dataclass(frozen=True)
class CallCosts:
    """Seconds of a talker call and of predictor calls by nodes."""

    talker: float
    predictor: dict[int, float]

    def at(self, width: int) -> float:
        """Seconds of a predictor call of ``width`` nodes."""
        widths = sorted(self.predictor)
        return float(np.interp(width, widths, [self.predictor[w] for w in widths]))

    def seconds(self, outcome: Outcome) -> float:
        """What the calls of ``outcome`` take by themselves."""
        stats = outcome.stats
        talker, alone = stats.calls["talker"], dict(stats.widths)
        # rounds of the talker have one node; its first call is the prefill, which is no round
        alone[1] = alone.get(1, 0) - (talker - len(outcome.samples))
        return talker * self.talker + sum(count * self.at(width) for width, count in alone.items())


@torch.no_grad()
def call_costs(pipe: Any, repeats: int = 15) -> CallCosts:
    """Time the calls of ``pipe`` behind a prompt and speech of usual length, the kinds taking turns."""
    talker, books = pipe.talker, pipe.talker.codes_per_step
    device = talker.device
    nothing = torch.zeros(40, talker.config.hidden_size, device=device)
    model = TalkerModel(talker, [Reading(nothing, nothing[:0], nothing[0])], 4 * repeats + 40)
    _, states = model.prefill()
    frame = torch.zeros(1, books, dtype=torch.long, device=device)
    for _ in range(20):
        model.advance(None, frame)
    talker_times: list[float] = []
    by_width: dict[int, list[float]] = {width: [] for width in (*range(1, books), *range(books, MOST_BRANCHES, 8))}
    for _ in range(repeats):
        talker_times.append(_timed(device, model.advance, None, frame))
        for width, times in by_width.items():
            times.append(_predictor_seconds(model, states, frame, width))
    return CallCosts(median(talker_times), {width: median(times) for width, times in by_width.items()})


def _predictor_seconds(model: TalkerModel, states: Tensor, frame: Tensor, width: int) -> float:
    """Seconds of a call of ``width`` nodes behind a quarter of ``frame`` (1, G): of a chain, or of two levels where that is too long."""
    books, known = model.num_codebooks, max(1, model.num_codebooks // 4)
    inner = model.open_inner()
    inner.extend(model.inner_inputs(states, frame[:, :known], 0))
    inner.keep(1 + known)
    if width < books - known:
        return _timed(model.device, inner.extend, model.inner_inputs(None, frame[:, :width], known))
    inputs = model.level_inputs(None, frame[:, :1].expand(-1, width), known, (1, width - 1))
    depth = torch.ones(width, dtype=torch.long, device=model.device)
    return _timed(model.device, inner.branch, inputs, depth, torch.eye(width, device=model.device) > 0)


def _timed(device: torch.device, run: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    run(*arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def speak(pipe: Any, sentence: str, seed: int, speculate: bool) -> TtsSample:
    """Stream one sentence with the parts that ``pipe`` has."""
    *_, last = pipe.stream(sentence, seed=seed, speculate=speculate, output_type="pcm")
    output = last.output
    audio = output.audios[0]
    return TtsSample(
        output.tokens[0].reshape(1, -1), output.stats, audio.tobytes(), output.seconds[0],
        output.stats.seconds["first_audio"],
    )  # fmt: skip


def run_tts_bench(pipe: Any, bench: TtsBench, on_item: Callable[[int], Any] | None = None) -> BenchReport:
    """Run the suite; the report's ``unequal`` names methods that broke their promise."""
    pipe.set_progress_bar_config(disable=True)
    saved = pipe.drafter, pipe.acceptance
    items = list(enumerate(bench.sentences))
    try:
        parts = {method.name: method.build(pipe) for method in bench.methods}
        runs = {name: partial(_decode, pipe, bench.seed, method) for name, method in parts.items()}
        costs = call_costs(pipe)
        outcomes = run_interleaved(runs, items, on_item)
    finally:
        pipe.drafter, pipe.acceptance = saved
    entries = [figures(method, outcomes, costs, pipe) for method in bench.methods]
    return BenchReport("tts", pipe.device.type, _settings(pipe, bench, outcomes, costs), entries)


def _decode(pipe: Any, seed: int, parts: tuple[Any, Any], item: tuple[int, str]) -> TtsSample:
    pipe.drafter, pipe.acceptance = parts
    return speak(pipe, item[1], seed + item[0], speculate=parts[0] is not None)


def figures(method: TtsMethod, outcomes: dict[str, Outcome], costs: CallCosts, pipe: Any) -> MethodFigures:
    """The entry of one method beside plain decoding of the same sentences."""
    outcome, plain = outcomes[method.name], outcomes["plain"]
    stats, guarantee = outcome.stats, outcome.samples[0].stats.guarantee
    equal = None
    if guarantee is Guarantee.SAME_TOKENS:
        equal = outcome.equals(plain) and _pcm(outcome) == _pcm(plain)
    wall_ratio = plain.seconds / outcome.seconds
    limit = costs.seconds(plain) / costs.seconds(outcome)
    # a method of the same law says other things, so calls are compared by the second of sound
    ours, theirs = _calls_per_second(outcome), _calls_per_second(plain)
    sound = _sound(plain) / _sound(outcome) if equal is None else 1.0
    return MethodFigures(
        name=method.name, default=method.default, peer=False, guarantee=guarantee.value, items=len(outcome.samples),
        tokens_equal=equal, forwards=sum(stats.calls.values()), forwards_ratio=theirs / ours,
        tokens_per_forward=codes_per_call(outcome, pipe.talker.codes_per_step),
        wall_ratio=wall_ratio / sound, model_share=stats.model_share, peak_memory_ratio=None,
        limit_fraction=wall_ratio / limit, deviation=None, quality=_quality(outcome, plain),
    )  # fmt: skip


def codes_per_call(outcome: Outcome, books: int) -> float:
    """Residual codes per call of the predictor."""
    frames = sum(sample.tokens.shape[1] // books for sample in outcome.samples)
    return frames * (books - 1) / max(1, outcome.stats.calls["predictor"])


def _samples(outcome: Outcome) -> list[TtsSample]:
    return [sample for sample in outcome.samples if isinstance(sample, TtsSample)]


def _pcm(outcome: Outcome) -> list[bytes]:
    return [sample.pcm for sample in _samples(outcome)]


def _sound(outcome: Outcome) -> float:
    return max(1e-9, sum(sample.seconds for sample in _samples(outcome)))


def _calls_per_second(outcome: Outcome) -> float:
    return sum(outcome.stats.calls.values()) / _sound(outcome)


def _quality(outcome: Outcome, plain: Outcome) -> dict[str, float]:
    quality: dict[str, float] = {}
    for prefix, run in (("", outcome), ("plain_", plain)):
        samples = _samples(run)
        per_frame = [1e3 * s.stats.seconds["total"] / max(1, s.stats.calls["talker"]) for s in samples]
        quality |= {
            f"{prefix}calls_per_second": _calls_per_second(run),
            f"{prefix}talker_calls": float(run.stats.calls["talker"]),
            f"{prefix}predictor_calls": float(run.stats.calls["predictor"]),
            f"{prefix}first_audio_seconds": median(s.first_audio for s in samples),
            f"{prefix}rtfx": _sound(run) / run.seconds,
            f"{prefix}ms_per_frame_p50": float(np.percentile(per_frame, 50)),
            f"{prefix}ms_per_frame_p95": float(np.percentile(per_frame, 95)),
        }
    return quality


def _settings(pipe: Any, bench: TtsBench, outcomes: dict[str, Outcome], costs: CallCosts) -> dict[str, Any]:
    heads = getattr(pipe.drafter, "heads", None)
    counts = [0 if part is None else sum(p.numel() for p in part.parameters()) for part in (heads, pipe.talker)]
    plain = outcomes["plain"]
    return {
        "model": bench.model, "items": len(bench.sentences), "seed": bench.seed, "threads": torch.get_num_threads(),
        "first": dict(pipe.config.first or {}), "rest": dict(pipe.config.rest or {}),
        "drafter_parameters": counts[0], "drafter_parameter_share": counts[0] / counts[1],
        "seconds_of_sound": _sound(plain),
        "call_ms": {"talker": 1e3 * costs.talker, **{str(w): 1e3 * s for w, s in costs.predictor.items()}},
        "overhead_ms": {name: outcome.overhead() for name, outcome in outcomes.items()},
        "wall_ratio_median": {name: median_wall_ratio(outcome, plain) for name, outcome in outcomes.items()},
        "acceptance_by_depth": {name: outcome.stats.acceptance_by_depth for name, outcome in outcomes.items()},
        "accepted_by_codebook": accepted_by(outcomes, lambda position: position % pipe.talker.codes_per_step),
    }  # fmt: skip
