"""How wide the next draft is. A width may depend on accepted counts and on timings, never on open draft tokens.

A width never changes the tokens of a SAME_TOKENS rule; it only changes how fast they come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Protocol

#: widths (nodes, root included) that the cost-aware controller chooses from
WIDTHS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class RoundReport:
    """One finished round as controllers see it.

    ``width`` nodes were verified, which took the model ``seconds``; ``emitted`` are the tokens of each active row;
    making the draft took ``drafting`` seconds before.
    """

    width: int
    emitted: list[int]
    seconds: float
    drafting: float = 0.0


class Controller(Protocol):
    """Plans the number of nodes of the next draft, root included."""

    def plan(self, limit: int, rows: int) -> int:
        """Return a width from 1 to ``limit``, the most that any of the ``rows`` active rows can still use."""
        ...

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round."""
        ...


@dataclass
class FixedController:
    """Always the same width."""

    width: int

    def plan(self, limit: int, rows: int) -> int:
        return min(self.width, limit)

    def observe(self, report: RoundReport) -> None:
        pass


@dataclass
class AIMDController:
    """transformers' heuristic: two more draft tokens after a fully accepted draft, one fewer otherwise, at least one."""

    width: int = 6
    largest: int = 64

    def plan(self, limit: int, rows: int) -> int:
        return min(self.width, limit)

    def observe(self, report: RoundReport) -> None:
        full = min(report.emitted) >= report.width
        self.width = min(self.largest, self.width + 2) if full else max(2, self.width - 1)


@dataclass
class AdaptiveController:
    """``margin`` times the mean number of tokens that a round brought, between ``least`` and ``largest`` nodes.

    It looks at accepted counts only; the first rounds are as wide as allowed, so that the mean starts high enough.
    """

    largest: int = 256
    least: int = 16
    margin: float = 1.5
    decay: float = 0.8
    _mean: float | None = None

    def plan(self, limit: int, rows: int) -> int:
        wanted = self.largest if self._mean is None else math.ceil(self.margin * self._mean)
        return max(1, min(max(wanted, self.least), self.largest, limit))

    def observe(self, report: RoundReport) -> None:
        emitted = sum(report.emitted) / len(report.emitted)
        self._mean = emitted if self._mean is None else self.decay * self._mean + (1 - self.decay) * emitted


@dataclass
class CostCurve:
    """Measured seconds of a target forward by (rows, width): the median of the last few.

    Shared by the calls of a pipeline. It holds timings alone, so it can change how fast tokens come, never which.
    """

    seconds: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    kept: int = 9

    def add(self, rows: int, width: int, seconds: float) -> None:
        recent = self.seconds.get((rows, width), [])
        self.seconds[rows, width] = [*recent[1 - self.kept :], seconds]

    def get(self, rows: int, width: int) -> float | None:
        """Cost at ``width``; where this batch size was never measured, that of the nearest one."""
        known = [r for r, w in self.seconds if w == width]
        if not known:
            return None
        return median(self.seconds[min(known, key=lambda r: abs(r - rows)), width])

    def covers(self, rows: int) -> bool:
        """Whether a batch size within a factor of two of ``rows`` was measured."""
        return any(r <= 2 * rows and rows <= 2 * r for r, _ in self.seconds)


@dataclass
class CostAwareController:
    """Take the width with the most tokens per second, from measured costs, of drafting too, and measured acceptance.

    The expected tokens of a forward start from ``prior``, the curve that was measured when the checkpoint was made;
    its gain over 1 is scaled by what all rounds so far brought, and at each width mixed with what that very width
    brought. The neighbours of the best width have their turns as long as that is expected to cost less than the share
    :attr:`trials` of the time, so that no wrong start lasts. Where drafting cannot pay the width is 1, plain decoding.

    Args:
        costs: Verification cost on this machine.
        prior: Expected tokens per forward by width, ``{1: 1.0, 16: 4.2, ...}``; missing widths are interpolated.
        largest: Widest draft.
        overhead: Seconds of a round outside the model.
        weight: How many rounds the scaled prior is worth at each width.
        trials: Largest share of the time to lose by trying neighbours.
    """

    costs: CostCurve
    prior: Mapping[int, float]
    largest: int = 64
    overhead: float = 3e-4
    weight: float = 8.0
    trials: float = 0.015
    _emitted: dict[int, float] = field(init=False)
    _rounds: dict[int, int] = field(init=False)
    _drafting: CostCurve = field(init=False)
    _elapsed: float = 0.0
    _lost: float = 0.0
    _wider: bool = False

    def __post_init__(self) -> None:
        widths = [w for w in WIDTHS if w <= self.largest]
        self._emitted = dict.fromkeys(widths, 0.0)
        self._rounds = dict.fromkeys(widths, 0)
        self._drafting = CostCurve()

    def expected(self, width: int) -> float:
        """Expected tokens per row of a forward at ``width``."""
        gained = sum(self._emitted[w] - n for w, n in self._rounds.items())
        foreseen = sum(n * (_interpolate(self.prior, w) - 1) for w, n in self._rounds.items())
        scale = (self.weight + gained) / (self.weight + foreseen)
        guess = 1 + (_interpolate(self.prior, width) - 1) * scale
        return (self.weight * guess + self._emitted[width]) / (self.weight + self._rounds[width])

    def rate(self, width: int, rows: int) -> float:
        """Expected tokens per second and row at ``width``; 0 while its cost is unknown."""
        cost = self.costs.get(rows, width)
        return 0.0 if cost is None else self.expected(width) / (cost + self.drafting(width, rows) + self.overhead)

    def drafting(self, width: int, rows: int) -> float:
        """Seconds that drafting ``width`` nodes takes; where that was never measured, those of the nearest width."""
        known = [w for _, w in self._drafting.seconds if w > 1]
        if width == 1 or not known:
            return 0.0
        return self._drafting.get(rows, min(known, key=lambda w: abs(w - width))) or 0.0

    def plan(self, limit: int, rows: int) -> int:
        legal = [w for w in self._rounds if w <= limit]
        rates = {width: self.rate(width, rows) for width in legal}
        best = max(legal, key=lambda width: rates[width])
        self._wider = not self._wider
        place = legal.index(best) + (1 if self._wider else -1)
        if not 0 <= place < len(legal) or rates[legal[place]] == 0:
            return best
        neighbour = legal[place]
        seconds = self.expected(neighbour) / rates[neighbour]
        loss = seconds * (1 - rates[neighbour] / rates[best])
        if self._lost + loss > self.trials * self._elapsed:
            return best
        self._lost += loss
        return neighbour

    def observe(self, report: RoundReport) -> None:
        self.costs.add(len(report.emitted), report.width, report.seconds)
        self._drafting.add(len(report.emitted), report.width, report.drafting)
        self._elapsed += report.seconds + report.drafting + self.overhead
        if report.width in self._rounds:
            self._emitted[report.width] += sum(report.emitted) / len(report.emitted)
            self._rounds[report.width] += 1


def _interpolate(curve: Mapping[int, float], width: int) -> float:
    """Piecewise-linear value of ``curve`` at ``width``; 1 token at width 1, flat beyond the last point."""
    points = sorted({1: 1.0, **{int(k): float(v) for k, v in curve.items()}}.items())
    for (left, low), (right, high) in pairwise(points):
        if left <= width <= right:
            return low + (high - low) * (width - left) / (right - left)
    return points[-1][1]
