"""The figures of a bench: one JSON shape for every suite, a table and a chart.

Every ratio is plain divided by method, except that of the memory. With n_w rounds of width w and t(w) the seconds of
such a forward, measured in the same run on the same cache length,

    limit           = (t_prefill + n_plain t(1)) / (t_prefill + sum_w n_w t(w) + t_draft)
    limit_fraction  = wall_ratio / limit

where t_draft is the time of a drafter's own network in the run, 0 for drafters without one; 1 means that the loop costs nothing beside the
forwards that it makes. In batches t(w) is that of the full batch;
rows that finish early make later forwards cheaper, so the fraction may then exceed 1. Wall times are sums over all items: nothing is
left out, and a disturbance hits neighbours of an interleaved run alike; ``settings.wall_ratio_median`` holds the median
of the items' own ratios, which a single disturbance cannot move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from mmspec.bench.harness import Outcome
from mmspec.bench.pictures import bar_chart
from mmspec.core.verify import Guarantee
from mmspec.models.versions import processor, versions

SCHEMA = 1


@dataclass(frozen=True)
class ForwardTimes:
    """Seconds of a target forward: of the prefill, and by width, interpolated between the measured widths."""

    prefill: float
    by_width: Mapping[int, float]

    def at(self, width: int) -> float:
        """Seconds of a forward of ``width`` nodes; that of the nearest measured width outside their range."""
        return float(np.interp(width, sorted(self.by_width), [self.by_width[w] for w in sorted(self.by_width)]))


@dataclass(frozen=True)
class MethodFigures:
    """The entry of one method, see the module's docstring."""

    name: str
    default: bool
    peer: bool
    guarantee: str
    items: int
    tokens_equal: bool | None
    forwards: int
    forwards_ratio: float
    tokens_per_forward: float
    wall_ratio: float
    model_share: float
    peak_memory_ratio: float | None
    limit_fraction: float
    deviation: dict[str, float] | None
    quality: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchReport:
    """A whole bench; ``settings`` also holds what is not a figure of a method."""

    suite: str
    device: str
    settings: dict[str, Any]
    methods: list[MethodFigures]

    @property
    def unequal(self) -> list[str]:
        """Methods that promise plain decoding's tokens and did not return them."""
        return [method.name for method in self.methods if method.tokens_equal is False]

    def as_json(self) -> dict[str, Any]:
        """The report in the shape of schema 1; ``settings`` begin with the processor and the day of the measurement."""
        head = {"schema": SCHEMA, "suite": self.suite, "device": self.device, "versions": versions()}
        settings = {**circumstances(), **self.settings}
        return {**head, "settings": settings, "methods": [asdict(method) for method in self.methods]}

    def write_json(self, path: Path) -> Path:
        """Write :meth:`as_json` to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return path

    def write_plot(self, path: Path) -> Path:
        """Draw forwards and wall ratios of all methods to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        series = {
            "forwards ratio": [method.forwards_ratio for method in self.methods],
            "wall ratio": [method.wall_ratio for method in self.methods],
        }
        title = f"{self.suite} on {self.device}: plain decoding divided by method"
        bar_chart(title, [method.name for method in self.methods], series).save(path)
        return path

    def table(self) -> Table:
        """The figures for a terminal."""
        table = Table(title=f"{self.suite} on {self.device}; ratios are plain / method", title_justify="left")
        table.add_column("method")
        columns = (
            "guarantee", "equal", "forwards", "forwards ratio", "tokens/forward", "wall ratio", "of the limit",
            "in model", "memory",
        )  # fmt: skip
        shown = {name: head for name, head in _QUALITY.items() if any(name in m.quality for m in self.methods)}
        for column in (*columns, *shown.values()):
            table.add_column(column, justify="right")
        for method in self.methods:
            known = [method.quality.get(name) for name in shown]
            table.add_row(*_cells(method), *("-" if value is None else f"{value:.3f}" for value in known))
        return table


def circumstances() -> dict[str, Any]:
    """Processor and day (UTC), without which a measured time means nothing."""
    return {"cpu": processor(), "date": datetime.now(timezone.utc).date().isoformat()}


#: figures of quality that the table shows, with their headings
_QUALITY = {
    "bits_per_token": "bits/token",
    "wer": "WER",
    "rtfx": "RTFx",
    "items_per_second": "items/s",
    "forwards_per_utterance": "forwards/item",
}


def _cells(method: MethodFigures) -> list[str]:
    equal = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}[method.tokens_equal]
    memory = "-" if method.peak_memory_ratio is None else f"{method.peak_memory_ratio:.2f}"
    return [
        method.name + (" *" if method.default else ""), method.guarantee, equal, str(method.forwards),
        f"{method.forwards_ratio:.2f}", f"{method.tokens_per_forward:.2f}", f"{method.wall_ratio:.2f}",
        f"{method.limit_fraction:.0%}", f"{method.model_share:.0%}", memory,
    ]  # fmt: skip


def figures(outcome: Outcome, plain: Outcome, times: ForwardTimes, *, default: bool, peer: bool) -> MethodFigures:
    """The figures of ``outcome`` beside those of ``plain`` decoding of the same items."""
    stats = outcome.stats
    guarantee = stats.guarantee
    wall_ratio = plain.seconds / outcome.seconds
    equal = None
    if guarantee is Guarantee.SAME_TOKENS:
        equal = outcome.equals(plain) and outcome.solo_equal is not False
    deviation = None
    if not guarantee.lossless:
        summary = stats.summary()
        names = ("step_tv_mean", "step_tv_max", "step_tv_bound")
        deviation = stats.deviation or {name: summary[name] for name in names if summary[name] is not None}
    quality = {"bits_per_token": outcome.bits, "plain_bits_per_token": plain.bits}
    if not guarantee.lossless:
        quality["untruncated_bits_per_token"] = outcome.untruncated_bits
        quality["plain_untruncated_bits_per_token"] = plain.untruncated_bits
        quality.update(outcome.distances)
        quality.update({f"plain_{name}": value for name, value in plain.distances.items()})
    memory = outcome.peak_memory / plain.peak_memory if outcome.peak_memory and plain.peak_memory else None
    return MethodFigures(
        name=outcome.name,
        default=default,
        peer=peer,
        guarantee=guarantee.value,
        items=len(stats.rows),
        tokens_equal=equal,
        forwards=outcome.forwards,
        forwards_ratio=plain.forwards / outcome.forwards,
        tokens_per_forward=stats.tokens / sum(s.stats.forwards * len(s.stats.rows) for s in outcome.samples),
        wall_ratio=wall_ratio,
        model_share=stats.model_share,
        peak_memory_ratio=memory,
        limit_fraction=wall_ratio / (forward_seconds(plain, times) / forward_seconds(outcome, times)),
        deviation=deviation,
        quality={name: value for name, value in quality.items() if value is not None and isfinite(value)},
    )


def forward_seconds(outcome: Outcome, times: ForwardTimes, drafter: bool = True) -> float:
    """Seconds that the forwards of ``outcome`` take by themselves: sum over widths of count times cost.

    Args:
        drafter: Whether those of the drafter's own network count.
    """
    rounds = outcome.stats.widths
    drafting = outcome.stats.seconds.get("draft_model", 0.0) if drafter else 0.0
    verifying = sum(count * times.at(width) for width, count in rounds.items())
    return len(outcome.samples) * times.prefill + verifying + drafting


def median_wall_ratio(outcome: Outcome, plain: Outcome) -> float:
    """Median over the items of plain wall time divided by the method's."""
    pairs = zip(plain.samples, outcome.samples, strict=True)
    return median(a.stats.seconds["total"] / b.stats.seconds["total"] for a, b in pairs)
