"""What a decoding run did, counted in emitted tokens: never what was proposed beyond the end of a row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mmspec.core.stopping import FinishReason
from mmspec.core.trace import Round
from mmspec.core.verify import Guarantee


@dataclass
class RowStats:
    """Counts of one row. ``tokens`` includes the first one, which the prefill yields.

    ``step_tv`` is the sum of the total variations of its steps, or an unbiased estimate of it, ``regret`` the log-probability given up for drafts;
    both are 0 under lossless rules. ``trace`` has an entry for each forward in order, see :mod:`mmspec.core.trace`.
    """

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    finish_reason: str = "running"
    step_tv: float = 0.0
    regret: float = 0.0
    trace: list[Round] = field(default_factory=list, repr=False, compare=False)

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verification round, bonus token included; 1 for plain decoding."""
        return (self.tokens - 1) / self.rounds if self.rounds else 1.0


@dataclass
class DecodeStats:
    """Counts and seconds of one call.

    Attributes:
        method: Drafter and acceptance rule, e.g. ``"jacobi+coupled"``, or ``"plain"``.
        guarantee: What the output is worth.
        rows: One entry per sample, in the order of the output.
        forwards: Sequential target forwards, prefill included.
        draft_forwards: Sequential forwards of a draft model.
        acceptance_by_depth: Share of the rounds in which the draft token of depth d + 1 was accepted and emitted.
        seconds: Wall time of the parts: ``model`` (target forwards), ``draft``, ``accept``, ``commit``, ``other``,
            and ``total``; ``draft_model`` is the part of ``draft`` that a drafter's own network takes. Pipelines add ``encode`` and ``decode`` outside ``total``, as is ``measure``, the time of
            measuring the deviation of a heuristic, whose forwards are not counted either.
        seeds: Seed of each row; run one alone to get the same sample again.
        step_tv_bound: Total variation that no step exceeds, where the rule promises one.
        step_tv_max: The largest that was measured.
        calls: Sequential calls of the parts of a target that has several, by name.
    """

    method: str = "plain"
    guarantee: Guarantee = Guarantee.SAME_TOKENS
    rows: list[RowStats] = field(default_factory=list)
    forwards: int = 0
    draft_forwards: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)
    step_tv_bound: float | None = None
    step_tv_max: float = 0.0
    deviation_sums: dict[str, float] = field(default_factory=dict)
    measured_tokens: int = 0
    accepted_at_depth: list[int] = field(default_factory=list)
    drafted_at_depth: list[int] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def deviation(self) -> dict[str, float] | None:
        """Measured figures per token, ``None`` where nothing was measured.

        ``token_tv`` estimates the mean total variation between the law that a token was drawn from and plain
        decoding's after the same tokens; ``outside_support`` is the share of tokens that plain decoding never draws.
        """
        if not self.measured_tokens:
            return None
        return {name: value / self.measured_tokens for name, value in self.deviation_sums.items()}

    @property
    def lossless(self) -> bool:
        return self.guarantee.lossless

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per row and sequential target forward (the field's block efficiency)."""
        return self.tokens / len(self.rows) / self.forwards if self.forwards else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted and emitted."""
        drafted = sum(row.drafted for row in self.rows)
        return sum(row.accepted for row in self.rows) / drafted if drafted else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        return [a / d if d else 0.0 for a, d in zip(self.accepted_at_depth, self.drafted_at_depth, strict=True)]

    @property
    def model_share(self) -> float:
        """Share of the decoding loop's wall time spent inside the target's forward."""
        total = self.seconds.get("total", 0.0)
        return self.seconds.get("model", 0.0) / total if total else 0.0

    @property
    def finish_reasons(self) -> list[str]:
        return [row.finish_reason for row in self.rows]

    @property
    def step_tv_mean(self) -> float:
        """Measured total variation from the target's law, mean over the emitted tokens."""
        return sum(row.step_tv for row in self.rows) / self.tokens if self.tokens else 0.0

    @property
    def sequence_tv(self) -> float:
        """Estimate, from these rows, of a bound on the total variation between the laws of whole outputs.

        By the chain rule TV(outputs) <= E[sum of the TVs of the steps], the mean taken over outputs of this method.
        """
        return min(1.0, sum(row.step_tv for row in self.rows) / len(self.rows)) if self.rows else 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the wall time of the block to ``seconds[part]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start

    def add_deviation(self, tokens: int, **sums: float) -> None:
        """Add measured figures of ``tokens`` more tokens, each summed over them."""
        self.measured_tokens += tokens
        for name, value in sums.items():
            self.deviation_sums[name] = self.deviation_sums.get(name, 0.0) + value

    def add_round(self, row: int, drafted: int, accepted: int, emitted: int, reason: int) -> None:
        """Count one verification round of one row; ``emitted`` is after truncation at the row's end."""
        counts = self.rows[row]
        accepted = min(accepted, emitted)
        counts.rounds += 1
        counts.tokens += emitted
        counts.drafted += drafted
        counts.accepted += accepted
        counts.trace.append(Round(drafted, accepted, emitted))
        if reason:
            counts.finish_reason = FinishReason(reason).name.lower()
        for depth in range(drafted):
            if depth == len(self.drafted_at_depth):
                self.drafted_at_depth.append(0)
                self.accepted_at_depth.append(0)
            self.drafted_at_depth[depth] += 1
            self.accepted_at_depth[depth] += depth < accepted

    def add_step_tv(self, rows: list[int], step_tv: list[list[float]], weight: int = 1) -> None:
        """Count the total variation of the emitted tokens of a round, listed for each of ``rows``.

        ``weight`` is how many tokens each measured one stands for.
        """
        for row, steps in zip(rows, step_tv, strict=True):
            self.rows[row].step_tv += weight * sum(steps)
            self.step_tv_max = max(self.step_tv_max, *steps, 0.0)

    def summary(self) -> dict[str, Any]:
        """The figures as plain values for JSON and tables."""
        return {
            "method": self.method,
            "guarantee": self.guarantee.value,
            "lossless": self.lossless,
            "tokens": self.tokens,
            "forwards": self.forwards,
            "draft_forwards": self.draft_forwards,
            "tokens_per_forward": self.tokens_per_forward,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_depth": self.acceptance_by_depth,
            "model_share": self.model_share,
            "seconds": dict(self.seconds),
            "seeds": list(self.seeds),
            "finish_reasons": self.finish_reasons,
            "acceptance_lengths": [row.acceptance_length for row in self.rows],
            "step_tv_mean": self.step_tv_mean,
            "step_tv_max": self.step_tv_max,
            "deviation": self.deviation,
            "step_tv_bound": self.step_tv_bound,
            "sequence_tv": self.sequence_tv,
            "regrets": [row.regret for row in self.rows],
            "calls": dict(self.calls),
        }

    def __str__(self) -> str:
        return (
            f"{self.method} [{self.guarantee.value}]: {self.tokens} tokens in {self.forwards} forwards "
            f"({self.tokens_per_forward:.2f} a row and forward), {self.seconds.get('total', 0.0):.2f} s, "
            f"{self.model_share:.0%} inside the model, seeds {self.seeds}"
        )


def merge_stats(parts: list[DecodeStats]) -> DecodeStats:
    """Join the stats of micro-batches that ran one after the other: rows follow one another, the rest adds up."""
    first = parts[0]
    merged = DecodeStats(method=first.method, guarantee=first.guarantee, step_tv_bound=first.step_tv_bound)
    for part in parts:
        merged.rows += part.rows
        merged.seeds += part.seeds
        merged.forwards += part.forwards
        merged.draft_forwards += part.draft_forwards
        merged.step_tv_max = max(merged.step_tv_max, part.step_tv_max)
        merged.add_deviation(part.measured_tokens, **part.deviation_sums)
        for key, value in part.seconds.items():
            merged.seconds[key] = merged.seconds.get(key, 0.0) + value
        for name, count in part.calls.items():
            merged.calls[name] = merged.calls.get(name, 0) + count
        for width, count in part.widths.items():
            merged.widths[width] = merged.widths.get(width, 0) + count
        for name in ("accepted_at_depth", "drafted_at_depth"):
            mine, more_depths = getattr(merged, name), getattr(part, name)
            size = max(len(mine), len(more_depths))
            padded = [[*d, *[0] * (size - len(d))] for d in (mine, more_depths)]
            setattr(merged, name, [a + b for a, b in zip(*padded, strict=True)])
    return merged


def join_stretches(parts: list[DecodeStats]) -> DecodeStats:
    """Join the stats of stretches that continue the same rows: the counts of a row add up."""
    joined = merge_stats(parts)
    count = len(parts[0].rows)
    joined.seeds = list(parts[0].seeds)
    joined.rows = [_add_rows([part.rows[row] for part in parts if row < len(part.rows)]) for row in range(count)]
    return joined


def _add_rows(rows: list[RowStats]) -> RowStats:
    total = RowStats(finish_reason=rows[-1].finish_reason)
    for row in rows:
        for name in ("tokens", "rounds", "drafted", "accepted", "step_tv", "regret", "trace"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    return total
