"""How wide the next draft is. A width may depend on accepted counts and on timings, never on open draft tokens.

A width never changes the tokens of a SAME_TOKENS rule; it only changes how fast they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: widths (nodes, root included) that the cost-aware controller chooses from
WIDTHS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class RoundReport:
    """One finished round as controllers see it: nodes verified, emitted tokens of each active row, model seconds."""

    width: int
    emitted: list[int]
    seconds: float


class Controller(Protocol):
    """Plans the number of nodes of the next draft, root included."""

    def plan(self, limit: int) -> int:
        """Return a width between 1 and ``limit``, the largest width that any row can still use."""
        ...

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round."""
        ...


@dataclass
class FixedController:
    """Always the same width."""

    width: int

    def plan(self, limit: int) -> int:
        return min(self.width, limit)

    def observe(self, report: RoundReport) -> None:
        pass


@dataclass
class AIMDController:
    """transformers' heuristic: two more draft tokens after a fully accepted draft, one fewer otherwise, at least one."""

    width: int = 6
    largest: int = 64

    def plan(self, limit: int) -> int:
        return min(self.width, limit)

    def observe(self, report: RoundReport) -> None:
        full = min(report.emitted) >= report.width
        self.width = min(self.largest, self.width + 2) if full else max(2, self.width - 1)


@dataclass
class CostCurve:
    """Measured seconds of a target forward by (rows, width): the least of the last few, since noise only adds.

    Shared by the calls of a pipeline. It holds timings alone, so it can change how fast tokens come, never which.
    """

    seconds: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    kept: int = 8

    def add(self, rows: int, width: int, seconds: float) -> None:
        recent = self.seconds.get((rows, width), [])
        self.seconds[rows, width] = [*recent[1 - self.kept :], seconds]

    def get(self, rows: int, width: int) -> float | None:
        recent = self.seconds.get((rows, width))
        return min(recent) if recent else None


@dataclass
class CostAwareController:
    """Take the width with the most tokens per second, from measured costs and measured acceptance.

    Tokens per forward at width w come from the rounds seen so far: a round at width w or more tells what every
    narrower width would have emitted at least, so min(emitted, w) is counted for all of them. They start from
    ``prior``, the curve that was measured when the checkpoint was made. Costs start from ``costs`` and are measured
    where missing: each width that could win, by its prior, is tried once.

    Args:
        rows: Batch size, the first key of the cost curve.
        costs: Verification cost of this machine.
        prior: Expected tokens per forward by width, ``{1: 1.0, 16: 4.2, ...}``; missing widths are interpolated.
        overhead: Seconds of a round outside the model.
        weight: How many rounds the prior is worth.
    """

    rows: int
    costs: CostCurve
    prior: Mapping[int, float]
    largest: int = 64
    overhead: float = 3e-4
    weight: float = 8.0
    _emitted: dict[int, float] = field(init=False)
    _rounds: dict[int, float] = field(init=False)

    def __post_init__(self) -> None:
        widths = [w for w in WIDTHS if w <= self.largest]
        self._emitted = {w: self.weight * _interpolate(self.prior, w) for w in widths}
        self._rounds = dict.fromkeys(widths, self.weight)

    def rate(self, width: int) -> float:
        """Expected tokens per second and row at ``width``; infinite while its cost is unknown."""
        cost = self.costs.get(self.rows, width)
        return float("inf") if cost is None else self._emitted[width] / self._rounds[width] / (cost + self.overhead)

    def plan(self, limit: int) -> int:
        legal = [w for w in self._rounds if w <= limit] or [1]
        measured = [w for w in legal if self.costs.get(self.rows, w) is not None]
        if not measured:
            return legal[-1]
        best = max(measured, key=self.rate)
        # a wider forward never costs less than a narrower one, so an unmeasured width is worth a try
        # only if it would win even at the cost of the widest narrower one that is known
        for width in reversed(legal):
            if width in measured:
                continue
            floor = min((self.costs.get(self.rows, w) or 0.0 for w in measured if w < width), default=0.0)
            if self._emitted[width] / self._rounds[width] / (floor + self.overhead) > self.rate(best):
                return width
        return best

    def observe(self, report: RoundReport) -> None:
        self.costs.add(self.rows, report.width, report.seconds)
        for width in self._rounds:
            if width <= report.width:
                self._emitted[width] += sum(min(e, width) for e in report.emitted) / len(report.emitted)
                self._rounds[width] += 1


def _interpolate(curve: Mapping[int, float], width: int) -> float:
    """Piecewise-linear value of ``curve`` at ``width``; 1 token at width 1, flat beyond the last point."""
    points = sorted({1: 1.0, **{int(k): float(v) for k, v in curve.items()}}.items())
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if left <= width <= right:
            return low + (high - low) * (width - left) / (right - left)
    return points[-1][1]
