"""Decoding of frames whose residual codes a :class:`mmspec.speech.mask_predictor.MaskPredictor` fills in parallel.

All rows are at the same frame: a call of the talker draws code 0 or the end, then a fixed number of calls fills the rest. Nothing is
drafted or verified. The law is not that of the code predictor; how often it draws what the code predictor never would is measured on the finished
output by one teacher-forced pass.

Symbols: B rows of the call, b that are still decoded, M new tokens at most, G codes a step, n tokens of a commit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mmspec.core.loop import Progress
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import draw
from mmspec.core.stats import DecodeStats, RowStats
from mmspec.core.stopping import FinishReason, Stopping
from mmspec.speech.code_sampling import CodeLaw
from mmspec.speech.frame_model import FrameModel
from mmspec.speech.mask_predictor import MaskPredictor


class MaskedFrameDecoder:
    """Decode B rows to their ends, a frame at a time.

    Args:
        model: The talker with its prompts, and the code predictor that is measured against.
        network: Fills the residual codes.
        steps: Its calls a frame.
        law: How codes are drawn.
        noise, stopping, stats: As for :class:`mmspec.core.loop.SpeculativeDecoder`.
    """

    #: frames that the measuring pass runs at once
    chunk = 256

    def __init__(
        self,
        model: FrameModel,
        network: MaskPredictor,
        steps: int,
        law: CodeLaw,
        noise: RowNoise,
        stopping: Stopping,
        stats: DecodeStats,
    ) -> None:
        self.model, self.network, self.depth_steps = model, network, steps
        self.law, self.noise, self.stopping, self.stats = law, noise, stopping, stats
        self.interrupted = False

    def steps(self) -> Iterator[Progress]:
        """Yield after every frame; set :attr:`interrupted` to end early."""
        self._open()
        while self._alive and not self.interrupted:
            with self.stats.timed("total"):
                self._frame()
            if not self._alive:
                with self.stats.timed("measure"):
                    self._measure()
            yield Progress(self.tokens, list(self.lengths), finished=not self._alive)
        for row in self._alive:
            self.stats.rows[row].finish_reason = FinishReason.INTERRUPTED.name.lower()

    def _open(self) -> None:
        zeros = torch.zeros_like(self.noise.seeds)
        self.tokens = zeros.new_zeros(len(zeros), self.stopping.max_new_tokens)
        self.lengths, self._alive = [0] * len(zeros), list(range(len(zeros)))
        self._budgets = self.stopping.budgets(len(zeros), zeros.device)
        self._place = 0  # order index of the next token of every row
        self._codes = zeros[:, None]  # the last frame (b, G)
        self._seen = self.law.history(len(zeros))
        self._filled: list[tuple[Tensor, Tensor]] = []  # talker states (b, D) and codes (b, G) of all frames
        self.stats.rows = [RowStats() for _ in self._alive]
        self.stats.calls = {"talker": 0, "predictor": 0}

    def _frame(self) -> None:
        start = self._place
        with self.stats.timed("model"):
            logits, self._states = self.model.advance(None, self._codes) if start else self.model.prefill()
        self._count("talker", 1)
        noise = self.noise.target(torch.full_like(self.noise.seeds, start), 1, start, start)
        first = draw(self.law.first(logits, self._seen), noise[:, 0])
        if self._seen is not None:
            self._seen = self._seen.scatter(1, first[:, None], True)
        first = first[self._commit(first[:, None])]
        if not self._alive:
            return
        with self.stats.timed("model"):
            rest = self.network.fill(self._states, first, self.law, self.noise, start, self.depth_steps)
        self._count("predictor", self.depth_steps)
        codes = torch.cat([first[:, None], rest], dim=1)
        self._filled.append((self._states, codes))
        self._codes = codes[self._commit(rest)]

    def _count(self, part: str, calls: int) -> None:
        self.stats.calls[part] += calls
        self.stats.forwards += calls

    def _commit(self, tokens: Tensor) -> Tensor:
        """Append ``tokens`` (b, n), drop the rows that end within them, and return the places of those that go on."""
        generated = torch.full_like(self._budgets, self._place)
        count = torch.full_like(generated, tokens.shape[1])
        kept, reason = self.stopping.truncate(tokens, count, generated, self._place, self._budgets)
        numbers = torch.stack([kept, reason]).tolist()  # the host waits for the device here only
        for place, (row, number, ended) in enumerate(zip(self._alive, *numbers, strict=True)):
            self.tokens[row, self._place : self._place + number] = tokens[place, :number]
            self.lengths[row] += number
            self.stats.add_round(row, 0, 0, number, ended)
        self._place += tokens.shape[1]
        running = torch.tensor([p for p, ended in enumerate(numbers[1]) if not ended], device=tokens.device).long()
        if len(running) < len(self._alive):
            self._alive = [self._alive[place] for place in running.tolist()]
            self._budgets, self._states = self._budgets[running], self._states[running]
            self._seen = None if self._seen is None else self._seen[running]
            if self._alive:
                self.model.select_rows(running)
                self.noise.select_rows(running)
        return running

    def _measure(self) -> None:
        """How many residual codes the code predictor never draws after the same codes before them."""
        if not self._filled:
            return
        states, codes = (torch.cat(parts) for parts in zip(*self._filled, strict=True))
        books = torch.arange(1, codes.shape[1], device=codes.device)
        for some, frames in zip(states.split(self.chunk), codes.split(self.chunk), strict=True):
            hidden = self.model.inner(some, frames[:, :-1])[:, 1:]
            law = self.law.rest(self.model.head(hidden, books), books.expand(len(frames), -1))
            never = law.gather(-1, frames[:, 1:, None]) == -torch.inf
            self.stats.add_deviation(never.numel(), outside_support=float(never.sum()))
