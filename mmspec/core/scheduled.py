"""Decoding in the order of a schedule: several cells of a grid per forward, none of them ever taken back.

A schedule is a fixed list of forwards; each feeds the tokens of some cells and draws others from the logits. Nothing is
verified: where a cell is drawn before a cell that it depends on, its law is not the target's. How far off it is gets
measured on the finished output. With q the law that a token x was drawn from and p the law that plain decoding has for
it after the same tokens before it,

    E[max(0, 1 - p(x) / q(x))] = sum_x q(x) max(0, 1 - p(x) / q(x)) = TV(p, q),

so one teacher-forced pass estimates the mean total variation without keeping any law.

Plain decoding is the schedule of one cell per forward; the noise of a cell is keyed by its place in the output, as in
:mod:`mmspec.core.loop`, so that this schedule returns plain decoding's tokens.

Symbols: B rows, M cells, n inputs of a forward, m cells drawn from it, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.loop import Progress
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import SamplingParams, draw_token, process
from mmspec.core.stats import DecodeStats, RowStats
from mmspec.core.stopping import FinishReason
from mmspec.core.target import TargetOutput
from mmspec.core.timing import DeviceTimer
from mmspec.core.trace import Round


@dataclass(frozen=True)
class ScheduleStep:
    """One forward of a schedule.

    Attributes:
        cells: Cells that are fed (n,), ascending.
        sources: Cell whose token each input carries (n,): the fed cell itself, or an earlier one that stands in for a
            token which does not exist yet (a placeholder).
        draws: Whether the cell after each input is drawn from its logits (n,).
    """

    cells: tuple[int, ...]
    sources: tuple[int, ...]
    draws: tuple[bool, ...]

    @property
    def drawn(self) -> list[int]:
        """The cells drawn from this forward."""
        return [cell + 1 for cell, draws in zip(self.cells, self.draws, strict=True) if draws]


def is_raster(steps: Sequence[ScheduleStep]) -> bool:
    """Whether ``steps`` draw one cell after the other, each from its predecessor: plain decoding."""
    return all(step == ScheduleStep((i,), (i,), (True,)) for i, step in enumerate(steps))


class ScheduledTarget(Protocol):
    """One decoding session of a target that takes tokens in any order."""

    def prefill(self) -> TargetOutput:
        """Run the prompts; the logits (B, 1, V) are of cell 0."""
        ...

    def step(self, tokens: Tensor, cells: Tensor, allowed: Tensor, last: int) -> TargetOutput:
        """Feed ``tokens`` (B, n) at ``cells`` (n,); input i sees the prompt and the cells of ``allowed`` (n, M).

        Row i of the logits (B, n, V) is of the cell after ``cells[i]``. A cell that is fed again is overwritten.
        ``last`` is the largest of ``cells``, known on the host.
        """
        ...


@dataclass(frozen=True)
class _Forward:
    """A step of the schedule as tensors on the device, made before decoding begins so that no forward waits for them."""

    step: ScheduleStep
    cells: Tensor  # (n,)
    sources: Tensor  # (n,)
    readers: Tensor  # (m,) inputs that cells are drawn from
    drawn: Tensor  # (m,) these cells
    allowed: Tensor  # (n, M)


class ScheduledDecoder:
    """Decode B rows of M cells in the order of a schedule; all rows advance together.

    Args:
        target: A session of the target model.
        schedule: The forwards after the prefill; together with cell 0 they draw every cell once.
        num_cells: M.
        masked: Whether inputs see the cells that exist only. Otherwise they see every cell before theirs, existing or
            not, and placeholders too, as the public code does.
        measure: Whether to estimate the deviation from the target in the end, by one more pass over the output.
        noise, sampling, stats: As for :class:`mmspec.core.loop.SpeculativeDecoder`.
    """

    #: cells of the measuring pass that are fed at once
    chunk = 128

    def __init__(
        self,
        target: ScheduledTarget,
        schedule: Sequence[ScheduleStep],
        num_cells: int,
        noise: RowNoise,
        sampling: SamplingParams,
        stats: DecodeStats,
        *,
        masked: bool = True,
        measure: bool = True,
    ) -> None:
        self.target, self.schedule, self.num_cells = target, schedule, num_cells
        self.noise, self.sampling, self.stats = noise, sampling, stats
        self.masked, self.measure = masked, measure
        self.interrupted = False

    def steps(self) -> Iterator[Progress]:
        """Yield after the prefill and after every forward; set :attr:`interrupted` to end early."""
        with self.stats.timed("total"):
            self._prefill()
        yield self._progress()
        for forward in self._forwards:
            if self.interrupted:
                break
            with self.stats.timed("total"):
                self._step(forward)
                if self._complete:
                    self._settle()
            if self._complete and self.measure:
                with self.stats.timed("measure"):
                    self._measure()
            yield self._progress()
        if not self._complete:
            self._settle()
            for row in self.stats.rows:
                row.finish_reason = FinishReason.INTERRUPTED.name.lower()

    @property
    def _complete(self) -> bool:
        return all(self._exists)

    def _prefill(self) -> None:
        with self.stats.timed("model"):
            logits = self.target.prefill().logits
        self.stats.forwards += 1
        device, rows = logits.device, len(logits)
        self.tokens = torch.zeros(rows, self.num_cells, dtype=torch.long, device=device)
        self._drawn_log_q = torch.zeros(rows, self.num_cells, device=device)
        self._exists = [True] + [False] * (self.num_cells - 1)  # which cells have their token
        self._forwards = self._prepare(device)
        self._timers: list[DeviceTimer] = []
        self.stats.rows = [RowStats(tokens=1, trace=[Round(0, 0, 1)]) for _ in range(rows)]
        self._draw(torch.zeros(1, dtype=torch.long, device=device), logits)
        if self._complete:
            for row in self.stats.rows:
                row.finish_reason = FinishReason.COMPLETE.name.lower()

    def _prepare(self, device: torch.device) -> list[_Forward]:
        forwards = []
        everything = torch.arange(self.num_cells)
        written = torch.zeros(self.num_cells, dtype=torch.bool)  # cells whose own token is in the cache
        for step in self.schedule:
            cells, sources = torch.tensor(step.cells), torch.tensor(step.sources)
            written[cells[cells == sources]] = True
            allowed = everything <= cells[:, None]
            if self.masked:
                allowed &= written | (everything == cells[:, None])
            readers = torch.tensor(step.draws).nonzero()[:, 0]
            parts = (cells, sources, readers, cells[readers] + 1, allowed)
            forwards.append(_Forward(step, *(part.to(device) for part in parts)))
        return forwards

    def _step(self, forward: _Forward) -> None:
        width, drawn = len(forward.step.cells), forward.step.drawn
        timer = DeviceTimer(self.tokens.device)
        tokens = self.tokens[:, forward.sources]
        timer.start()
        output = self.target.step(tokens, forward.cells, forward.allowed, forward.step.cells[-1])
        timer.stop()
        self._timers.append(timer)
        self.stats.forwards += 1
        self.stats.widths[width] = self.stats.widths.get(width, 0) + 1
        with self.stats.timed("accept"):
            self._draw(forward.drawn, output.logits[:, forward.readers])
        for cell in drawn:
            self._exists[cell] = True
        reason = FinishReason.COMPLETE if self._complete else FinishReason.RUNNING
        for row in range(len(self.tokens)):
            self.stats.add_round(row, 0, 0, len(drawn), int(reason))

    def _settle(self) -> None:
        """Wait for the device, which no forward had to, and count the time that the forwards took on it."""
        if self.tokens.device.type == "cuda":
            torch.cuda.synchronize(self.tokens.device)
        self.stats.seconds["model"] += sum(timer.seconds() for timer in self._timers)
        self._timers.clear()

    def _draw(self, cells: Tensor, logits: Tensor) -> None:
        """Draw ``cells`` (m,) from raw ``logits`` (B, m, V)."""
        if self.sampling.greedy:
            drawn = logits.argmax(-1)
        else:
            gumbel = self.noise.gumbel(Stream.TARGET, cells.expand(len(self.tokens), -1))
            drawn = draw_token(logits, self.sampling, gumbel)
        self.tokens[:, cells] = drawn
        if self.measure:
            self._drawn_log_q[:, cells] = self._log_prob(logits, drawn)

    def _log_prob(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Log-probability of ``tokens`` (B, m) under the processed law of ``logits`` (B, m, V)."""
        return process(logits, self.sampling).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def _measure(self) -> None:
        """Compare the law of every token with that of plain decoding after the same tokens before it."""
        log_p = self._drawn_log_q[:, :1]  # cell 0 has the prefill's law in any schedule
        parts, everything = [log_p], torch.arange(self.num_cells, device=log_p.device)
        for start in range(0, self.num_cells - 1, self.chunk):
            cells = everything[start : min(start + self.chunk, self.num_cells - 1)]
            stop = start + len(cells)
            allowed = everything <= cells[:, None]
            logits = self.target.step(self.tokens[:, start:stop], cells, allowed, stop - 1).logits
            parts.append(self._log_prob(logits, self.tokens[:, start + 1 : stop + 1]))
        log_p = torch.cat(parts, dim=1)  # (B, M)
        ratio = (log_p - self._drawn_log_q).exp()
        self.stats.add_deviation(
            log_p.numel(),
            token_tv=float((1 - ratio).clamp_min(0).sum()),
            outside_support=float((log_p == -torch.inf).sum()),
        )

    def _progress(self) -> Progress:
        """``lengths`` count the cells up to the first missing one; cells beyond are final too, but have gaps."""
        length = next((i for i, exists in enumerate(self._exists) if not exists), self.num_cells)
        return Progress(self.tokens, [length] * len(self.tokens), finished=self._complete)
