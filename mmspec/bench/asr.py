"""The speech-recognition suite: recordings with transcripts, every method on every recording in turn.

``forwards`` are those of the language model; the encoder runs once per recording with every method. Wall ratios are of
the decoding loop, from the prompt on; ``rtfx`` is seconds of sound per second of everything: features, encoder, gate,
decoding and word times. A recording that the entropy gate accepts costs no forward at all. Recordings are decoded one
by one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mmspec.bench.harness import Outcome, Sample, run_interleaved
from mmspec.bench.report import BenchReport, MethodFigures, median_wall_ratio
from mmspec.bench.speech_limit import ForwardCosts, forward_costs
from mmspec.bench.speech_methods import SpeechMethod
from mmspec.bench.wer import error_rates
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import check_positive

TRANSCRIPTS = "transcripts.json"


@dataclass(frozen=True)
class SpeechItem:
    """A recording with its transcript and the set it belongs to."""

    file: Path
    text: str
    subset: str


@dataclass(frozen=True)
class SpeechSample(Sample):
    """What one method made of one recording."""

    text: str = ""
    decision: str = ""
    seconds: float = 0.0
    wall: float = 0.0


@dataclass
class SpeechBench:
    """What to run.

    Args:
        model: Name of the model, for the report.
        methods: Methods, ``plain`` first.
        items: Recordings.
        extra: Entries of other models to add to the report, as those of an encoder-decoder pair.
    """

    model: str
    methods: Sequence[SpeechMethod]
    items: Sequence[SpeechItem]
    extra: list[MethodFigures] = field(default_factory=list)


def read_items(folder: Path, limit: int | None = None) -> list[SpeechItem]:
    """Recordings listed by the ``transcripts.json`` of ``folder`` or of the folders in it, one set each.

    Args:
        folder: Where to look.
        limit: At most so many recordings of each set.

    Raises:
        FileNotFoundError: If there are no transcripts, or a recording is missing.
        ValueError: If a list is damaged.
    """
    if limit is not None:
        check_positive("items", limit)
    lists = sorted([*folder.glob(TRANSCRIPTS), *folder.glob(f"*/{TRANSCRIPTS}")])
    if not lists:
        raise FileNotFoundError(f"{folder} holds no {TRANSCRIPTS}; give a folder of recordings with --data.")
    items: list[SpeechItem] = []
    for file in lists:
        try:
            entries = [
                SpeechItem(file.parent / entry["file"], str(entry["text"]), str(entry.get("set", file.parent.name)))
                for entry in json.loads(file.read_text())
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} must hold a list of objects with 'file' and 'text': {error!r}.") from error
        for subset in dict.fromkeys(entry.subset for entry in entries):
            items += [entry for entry in entries if entry.subset == subset][:limit]
    if missing := [item.file for item in items if not item.file.is_file()]:
        raise FileNotFoundError(f"{missing[0]} is listed but does not exist.")
    return items


def decode(pipe: Any, item: SpeechItem, speculate: bool) -> SpeechSample:
    """Transcribe one recording with the parts that ``pipe`` has."""
    output = pipe(item.file, speculate=speculate)
    tokens = torch.tensor([output.tokens[0]], dtype=torch.long).reshape(1, -1)
    stats = output.stats
    stats.seconds.setdefault("total", 0.0)
    wall = sum(stats.seconds.get(part, 0.0) for part in ("encode", "total", "decode"))
    [segments] = output.segments
    decision = segments[0].decision if len(segments) == 1 else "several"
    return SpeechSample(tokens, stats, output.texts[0], decision, output.seconds[0], wall)


def run_speech_bench(pipe: Any, bench: SpeechBench, on_item: Callable[[int], Any] | None = None) -> BenchReport:
    """Run the suite; the report's ``unequal`` names methods that broke their promise."""
    pipe.set_progress_bar_config(disable=True)
    saved = pipe.drafter, pipe.acceptance
    try:
        parts = {method.name: method.build(pipe) for method in bench.methods}
        costs = forward_costs(pipe, [item.file for item in bench.items])
        runs = {name: partial(_decode, pipe, saved[0], method) for name, method in parts.items()}
        outcomes = run_interleaved(runs, list(bench.items), on_item)
    finally:
        pipe.drafter, pipe.acceptance = saved
    entries = [figures(method, outcomes, bench, costs) for method in bench.methods]
    return BenchReport("asr", pipe.device.type, _settings(pipe, bench, outcomes, costs), [*entries, *bench.extra])


def _decode(pipe: Any, own: Any, parts: tuple[Any, Any], item: SpeechItem) -> SpeechSample:
    """Decode by one method; plain decoding keeps the ``own`` drafter, whose CTC head hears silence and bounds lengths."""
    pipe.drafter, pipe.acceptance = (own if parts[0] is None else parts[0]), parts[1]
    return decode(pipe, item, speculate=parts[0] is not None)


def figures(
    method: SpeechMethod, outcomes: dict[str, Outcome], bench: SpeechBench, costs: ForwardCosts
) -> MethodFigures:
    """The entry of one method beside plain decoding of the same recordings."""
    outcome, plain = outcomes[method.name], outcomes["plain"]
    guarantee = outcome.samples[0].stats.guarantee
    stats = outcome.stats
    wall_ratio = plain.seconds / max(outcome.seconds, 1e-9)
    deviation = None
    if not guarantee.lossless:
        summary = stats.summary()
        deviation = {name: summary[name] for name in ("step_tv_mean", "step_tv_max")}
        deviation["texts_changed"] = _changed(outcome, plain)
    limit = costs.seconds(plain) / max(costs.seconds(outcome), 1e-9)
    # recordings that the gate accepts cost no forward, so a method may have made none
    forwards = max(1, outcome.forwards)
    return MethodFigures(
        name=method.name,
        default=method.default,
        peer=method.peer,
        guarantee=guarantee.value,
        items=len(outcome.samples),
        tokens_equal=_texts_equal(outcome, plain) if guarantee is Guarantee.SAME_TOKENS else None,
        forwards=outcome.forwards,
        forwards_ratio=plain.forwards / forwards,
        tokens_per_forward=stats.tokens / forwards,
        wall_ratio=wall_ratio,
        model_share=stats.model_share,
        peak_memory_ratio=None,
        limit_fraction=wall_ratio / limit,
        deviation=deviation,
        quality=_quality(outcome, plain, bench.items),
    )


def _texts(outcome: Outcome) -> list[str]:
    return [sample.text for sample in outcome.samples if isinstance(sample, SpeechSample)]


def _texts_equal(outcome: Outcome, plain: Outcome) -> bool:
    return outcome.equals(plain) and _texts(outcome) == _texts(plain)


def _changed(outcome: Outcome, plain: Outcome) -> float:
    pairs = list(zip(_texts(outcome), _texts(plain), strict=True))
    return sum(a != b for a, b in pairs) / len(pairs)


def _quality(outcome: Outcome, plain: Outcome, items: Sequence[SpeechItem]) -> dict[str, float]:
    quality: dict[str, float] = {}
    subsets = [item.subset for item in items]
    for prefix, run in (("", outcome), ("plain_", plain)):
        texts = _texts(run)
        quality |= {f"{prefix}{key}": value for key, value in error_rates([i.text for i in items], texts).items()}
        for subset in dict.fromkeys(subsets):
            at = [place for place, name in enumerate(subsets) if name == subset]
            rates = error_rates([items[place].text for place in at], [texts[place] for place in at])
            quality[f"{prefix}wer_{subset}"] = rates["wer"]
        samples = [sample for sample in run.samples if isinstance(sample, SpeechSample)]
        heard = sum(sample.seconds for sample in samples)
        quality[f"{prefix}rtfx"] = heard / sum(sample.wall for sample in samples)
        quality[f"{prefix}llm_rtfx"] = heard / max(run.seconds, 1e-9)
        quality[f"{prefix}forwards_per_utterance"] = run.forwards / len(samples)
    counts = Counter(sample.decision for sample in outcome.samples if isinstance(sample, SpeechSample))
    return quality | {f"decided_{name}": float(count) for name, count in sorted(counts.items())}


def _settings(pipe: Any, bench: SpeechBench, outcomes: dict[str, Outcome], costs: ForwardCosts) -> dict[str, Any]:
    return {
        "model": bench.model,
        "items": len(bench.items),
        "subsets": dict(Counter(item.subset for item in bench.items)),
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "forward_ms": costs.milliseconds(),
        "overhead": {name: outcome.overhead() for name, outcome in outcomes.items()},
        "wall_ratio_median": {
            name: median_wall_ratio(outcome, outcomes["plain"])
            for name, outcome in outcomes.items()
            if all(sample.stats.seconds["total"] > 0 for sample in outcome.samples)
        },
    }
