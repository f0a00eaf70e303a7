"""The decoding loop: prefill, propose, verify, accept, commit, stop.

Plain decoding is this loop with drafts of one node. Rows are ragged: each commits its own length, none waits for
another, and finished rows are compacted away. The loop knows no modality and no model.

Symbols: B rows still decoded, M new tokens at most, N nodes of a draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.controllers import Controller, RoundReport
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession, PromptDraftSession
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams, draw, process
from mmspec.core.stats import DecodeStats, RowStats
from mmspec.core.stopping import FinishReason, Stopping
from mmspec.core.target import Target, TargetOutput
from mmspec.core.timing import DeviceTimer
from mmspec.core.verify import AcceptanceRule, RoundContext, Verdict


@dataclass
class Progress:
    """What is committed after a round: ``tokens`` (B0, M) of all rows of the call, ``lengths`` per row on the host."""

    tokens: Tensor
    lengths: list[int]
    finished: bool


class Decoder(Protocol):
    """What runs a call: this loop, or that of :mod:`mmspec.core.scheduled`."""

    stats: DecodeStats
    interrupted: bool

    def steps(self) -> Iterator[Progress]: ...


class SpeculativeDecoder:
    """Decode B rows to their ends.

    Args:
        target: A session of the target model.
        drafter: A session of a drafter, :class:`mmspec.core.drafting.NoDraft` for plain decoding.
        rule: The acceptance rule, already checked against the drafter.
        controller: Plans the width of each draft.
        noise: The rows' noise.
        sampling: How tokens are drawn.
        stopping: When rows end.
        stats: Filled while decoding.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftSession,
        rule: AcceptanceRule,
        controller: Controller,
        noise: RowNoise,
        sampling: SamplingParams,
        stopping: Stopping,
        stats: DecodeStats,
    ) -> None:
        self.target, self.drafter, self.rule, self.controller = target, drafter, rule, controller
        self.noise, self.sampling, self.stopping, self.stats = noise, sampling, stopping, stats
        self.interrupted = False

    def steps(self) -> Iterator[Progress]:
        """Yield after the prefill and after every round; set :attr:`interrupted` to end early."""
        with self.stats.timed("total"):
            self._prefill()
        yield self._progress()
        while self._alive and not self.interrupted:
            with self.stats.timed("total"):
                self._round()
            yield self._progress()
        for row in self._alive:
            self.stats.rows[row].finish_reason = FinishReason.INTERRUPTED.name.lower()

    def _prefill(self) -> None:
        """Run the prompts for the first token, or, where the drafter reads the prompt alone, verify a draft at once."""
        self.context = context = self._open()
        draft, drafting = Draft(context.root[:, None], DraftLaw.DETERMINISTIC), False
        if isinstance(self.drafter, PromptDraftSession):
            drafting = True
            with self.stats.timed("draft"):
                draft = self._within_budget(self.drafter.propose_first(context, self.stopping.max_new_tokens))
        with self.stats.timed("model"):
            output = self.target.prefill(draft) if drafting else self.target.prefill()
        self.stats.forwards += 1
        verdict = self.rule(draft, output.logits, context) if drafting else self._first_token(output)
        kept, reason = self.stopping.truncate(
            verdict.tokens,
            verdict.num_accepted + 1,
            context.generated,
            budgets=self._budgets,
            past=context.tokens,
        )
        if drafting:
            self.target.commit(verdict, kept)
        context.rounds = context.rounds if drafting else context.rounds - 1  # a round is a verification
        self._append(verdict, kept)
        if not drafting:
            context.lowest = context.highest = 1
        self.drafter.start(context, output)
        self.stats.rows = [RowStats(rounds=0 if drafting else -1) for _ in self._alive]
        self._tally(torch.stack([verdict.num_accepted, kept, reason, self._drafted(draft, kept)]).tolist(), verdict)

    def _open(self) -> RoundContext:
        zeros = torch.zeros_like(self.noise.seeds)
        self.tokens = zeros.new_zeros(len(zeros), self.stopping.max_new_tokens)
        self._open_buffer(self.tokens)
        self._budgets = self.stopping.budgets(len(zeros), zeros.device)
        self._least_budget = min(self.stopping.budget_of(row) for row in range(len(zeros)))
        # lengths, and the original numbers of the rows that are still decoded
        self.lengths, self._alive = [0] * len(zeros), list(range(len(zeros)))
        return RoundContext(
            tokens=self._buffer[:, :-1], generated=zeros, rounds=zeros, root=zeros, noise=self.noise,
            sampling=self.sampling, lowest=0, highest=0, stop_tokens=tuple(self.stopping.stop_tokens),
            regret=zeros.float(),
        )  # fmt: skip

    def _first_token(self, output: TargetOutput) -> Verdict:
        zeros, logits = self.context.generated, output.logits[:, 0]
        if self.sampling.greedy:
            return Verdict(zeros, logits.argmax(-1), logits.argmax(-1)[:, None])
        first = draw(process(logits, self.sampling), self.noise.target(zeros, 1, 0, 0)[:, 0])
        return Verdict(zeros, first, first[:, None])

    def _round(self) -> None:
        context, stats = self.context, self.stats
        limit = max(self.stopping.budget_of(row) - self.lengths[row] for row in self._alive)
        drafting, timer = DeviceTimer(context.tokens.device), DeviceTimer(context.tokens.device)
        with stats.timed("draft"):
            planned = self.controller.plan(limit, len(self._alive))
            drafting.start()
            draft = self._within_budget(self.drafter.propose(context, planned))
            drafting.stop()
        timer.start()
        output = self.target.verify(draft, context.highest)
        timer.stop()
        stats.forwards += 1
        with stats.timed("accept"):
            verdict = self.rule(draft, output.logits, context)
            kept, reason = self.stopping.truncate(
                verdict.tokens,
                verdict.num_accepted + 1,
                context.generated,
                context.highest,
                self._budgets,
                context.tokens,
            )
        with stats.timed("draft"):
            self.drafter.observe(context, draft, output, verdict)
        with stats.timed("commit"):
            # the cache holds the root and the accepted nodes; the newest token becomes the next root, uncached
            self.target.commit(verdict, kept)
            self._append(verdict, kept)
            # the one host synchronisation of a round
            numbers = torch.stack([verdict.num_accepted, kept, reason, self._drafted(draft, kept)]).tolist()
            stats.seconds["model"] += timer.seconds()
            if (clock := getattr(self.drafter, "clock", None)) is not None:
                stats.seconds["draft_model"] = clock.seconds()
            stats.widths[draft.num_nodes] = stats.widths.get(draft.num_nodes, 0) + 1
            self.controller.observe(RoundReport(draft.num_nodes, numbers[1], timer.seconds(), drafting.seconds()))
            self._tally(numbers, verdict)

    def _within_budget(self, draft: Draft) -> Draft:
        """Drop the nodes that a row has no room for, so that its last token is judged alike beside slower rows and alone."""
        context = self.context
        if draft.num_nodes > self._least_budget - context.highest:
            inside = draft.depth < (self._budgets - context.generated)[:, None]
            draft.valid = inside if draft.valid is None else draft.valid & inside
        return draft

    @staticmethod
    def _drafted(draft: Draft, like: Tensor) -> Tensor:
        """Depth of the deepest draft node of each row (B,)."""
        if draft.is_chain and draft.valid is None:
            return torch.full_like(like, draft.num_nodes - 1)
        depth = draft.depth if draft.valid is None else draft.depth * draft.valid
        return depth.amax(-1)

    def _append(self, verdict: Verdict, kept: Tensor) -> None:
        context = self.context
        place = torch.arange(verdict.tokens.shape[1], device=kept.device)
        columns = torch.where(place < kept[:, None], context.generated[:, None] + place, context.tokens.shape[1])
        self._buffer.scatter_(1, columns, verdict.tokens)
        context.generated = context.generated + kept
        context.rounds = context.rounds + 1
        context.root = verdict.next_token  # of rows that go on; those that were cut short are over
        if verdict.regret is not None and context.regret is not None:
            context.regret = context.regret + verdict.regret

    def _tally(self, numbers: list[list[int]], verdict: Verdict) -> None:
        """Count a forward by the accepted, kept, ended and drafted ``numbers`` of each row, and drop rows that ended."""
        accepted, kept, reason, drafted = numbers
        for place, row in enumerate(self._alive):
            room = self.stopping.budget_of(row) - self.lengths[row]
            self.stats.add_round(row, min(drafted[place], room), accepted[place], kept[place], reason[place])
            self.lengths[row] += kept[place]
        self.stats.draft_forwards = self.drafter.forwards
        if verdict.step_tv is not None:
            spent = verdict.step_tv.tolist()
            steps = [tv[:count] for tv, count in zip(spent, kept, strict=True)]
            self.stats.add_step_tv(self._alive, steps, verdict.step_tv_weight)
        if verdict.regret is not None:
            for row, regret in zip(self._alive, verdict.regret.tolist(), strict=True):
                self.stats.rows[row].regret += regret
        self._write_back()
        self._drop([place for place, code in enumerate(reason) if not code])

    def _drop(self, running: list[int]) -> None:
        """Go on with the rows at the places ``running``."""
        context = self.context
        if len(running) < len(self._alive):
            self._alive = [self._alive[place] for place in running]
            if not running:
                return
            rows = torch.tensor(running, device=self.tokens.device)
            for part in (self.target, self.drafter, self.noise):
                part.select_rows(rows)
            for name in ("generated", "rounds", "root", "regret"):
                setattr(context, name, getattr(context, name)[rows])
            self._budgets = self._budgets[rows]
            self._open_buffer(context.tokens[rows])
            context.tokens = self._buffer[:, :-1]
        lengths = [self.lengths[row] for row in self._alive]
        context.lowest, context.highest = min(lengths), max(lengths)

    def _open_buffer(self, tokens: Tensor) -> None:
        """Keep the ``tokens`` (B, M) of the running rows with one more column, to which unused places are written."""
        self._buffer = torch.nn.functional.pad(tokens, (0, 1))

    def _write_back(self) -> None:
        if len(self._alive) == len(self.tokens):
            self.tokens.copy_(self.context.tokens)
        else:
            self.tokens[torch.tensor(self._alive, device=self.tokens.device)] = self.context.tokens

    def _progress(self) -> Progress:
        return Progress(self.tokens, list(self.lengths), finished=not self._alive)
