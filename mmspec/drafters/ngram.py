"""Prompt lookup (Saxena, 2023): copy what followed the last occurrence of the current suffix. Costs no forward.

Symbols: B rows, P prompt tokens, M new tokens at most, H = P + M places of history.
"""

from __future__ import annotations

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.core.controllers import Controller, CostCurve
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import Drafter, DraftSetup, check_controller, check_positive, make_controller


class NGramDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Copy the continuation of the longest suffix that occurred before, in the prompt or in the output so far.

    Args:
        num_draft_tokens: Most tokens to copy.
        max_ngram: Longest suffix to look for; shorter ones follow.
        controller: ``fixed``, ``aimd`` or ``cost-aware``.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    law = DraftLaw.DETERMINISTIC
    max_siblings = 1

    @register_to_config
    def __init__(self, num_draft_tokens: int = 10, max_ngram: int = 3, controller: str = "fixed") -> None:
        check_positive("num_draft_tokens", num_draft_tokens)
        check_positive("max_ngram", max_ngram)
        check_controller(controller)

    @property
    def max_nodes(self) -> int:
        return self.config.num_draft_tokens + 1

    def controller(self, costs: CostCurve) -> Controller:
        return make_controller(self.config.controller, self.max_nodes, costs, None)

    def session(self, setup: DraftSetup) -> DraftSession:
        return NGramSession(self.config.max_ngram, setup)


class NGramSession:
    forwards = 0
    revisable = True

    def __init__(self, max_ngram: int, setup: DraftSetup) -> None:
        self.max_ngram = max_ngram
        empty = torch.zeros(setup.num_rows, 0, dtype=torch.long, device=setup.device)
        self.prompt = empty if setup.prompt_ids is None else setup.prompt_ids
        self.prompt_lengths = (self.prompt >= 0).sum(-1)

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        history, length = self._history(context)
        start, found = self._find(history, length)
        count = width - 1
        index = start[:, None] + torch.arange(count, device=start.device)
        valid = found[:, None] & (index < length[:, None])
        copied = history.gather(1, index.clamp(0, history.shape[1] - 1))
        tokens = torch.cat([context.root[:, None], torch.where(valid, copied, 0)], dim=1)
        valid = torch.cat([torch.ones_like(found)[:, None], valid], dim=1)
        used = 1 + int(valid[:, 1:].any(0).sum())  # nothing found anywhere: the round is plain decoding
        return Draft(tokens[:, :used], DraftLaw.DETERMINISTIC, valid=valid[:, :used])

    def _history(self, context: RoundContext) -> tuple[Tensor, Tensor]:
        """Prompt and output of each row without a gap (B, H), and their joint length (B,)."""
        joined = torch.cat([self.prompt, context.tokens], dim=1)
        place = torch.arange(joined.shape[1], device=joined.device)
        gap = self.prompt.shape[1] - self.prompt_lengths[:, None]
        source = torch.where(place < self.prompt_lengths[:, None], place, place + gap)
        history = joined.gather(1, source.clamp_max(joined.shape[1] - 1))
        return history, self.prompt_lengths + context.generated

    def _find(self, history: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Place behind the latest match of the longest suffix (B,), and whether there is one (B,)."""
        start = torch.zeros_like(length)
        found = torch.zeros_like(length, dtype=torch.bool)
        for size in range(min(self.max_ngram, history.shape[1] - 1), 0, -1):
            offset = torch.arange(size, device=history.device)
            suffix = history.gather(1, (length[:, None] - size + offset).clamp_min(0))
            windows = history.unfold(1, size, 1)  # (B, H - size + 1, size)
            begin = torch.arange(windows.shape[1], device=history.device)
            match = (windows == suffix[:, None]).all(-1) & (begin + size < length[:, None])
            match &= (length >= size + 1)[:, None]
            latest = torch.where(match, begin, -1).amax(-1)
            better = ~found & (latest >= 0)
            start = torch.where(better, latest + size, start)
            found |= better
        return start, found

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        self.prompt, self.prompt_lengths = self.prompt[rows], self.prompt_lengths[rows]
