"""Run the decoding loop on a toy target."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.core.controllers import WIDTHS, Controller, CostCurve, FixedController
from mmspec.core.drafting import NoDraft
from mmspec.core.grammar import Grammar, GrammarSession
from mmspec.core.loop import SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import Stopping
from mmspec.core.target import Target
from mmspec.drafters.base import Drafter, DraftSetup


def decode(
    target: Target,
    seeds: Tensor,
    max_new_tokens: int,
    drafter: Drafter | Any = None,
    rule: Any = None,
    sampling: SamplingParams | None = None,
    width: int | None = None,
    stop_tokens: tuple[int, ...] = (),
    row_length: int | None = None,
    draft_target: Any = None,
    prompt_ids: Tensor | None = None,
    grammar: Grammar | None = None,
    row_start: int = 0,
    frame_length: int | None = None,
) -> tuple[Tensor, DecodeStats]:
    """Decode ``len(seeds)`` rows; plain without a drafter. ``drafter`` may also be a ready session."""
    sampling = sampling or SamplingParams()
    rule = rule or CoupledAcceptance()
    session: Any = NoDraft()
    controller: Controller = FixedController(1)
    if isinstance(drafter, Drafter):
        if isinstance(rule, Acceptance):  # a bound rule was checked before
            rule.check(drafter.law, sampling, type(drafter).__name__)
        setup = DraftSetup(
            num_rows=len(seeds), vocab_size=target.vocab_size, device=seeds.device, max_new_tokens=max_new_tokens,
            needs_law=rule.needs_law, row_length=row_length, draft_target=draft_target, prompt_ids=prompt_ids,
            grammar=grammar, row_start=row_start, runner=target, frame_length=frame_length,
        )  # fmt: skip
        session = drafter.session(setup)
        controller = FixedController(width) if width else drafter.controller(flat_costs())
    elif drafter is not None:
        session, controller = drafter, FixedController(width or 8)
    if grammar is not None and drafter is not None:
        session = GrammarSession(session, grammar)
    stats = DecodeStats()
    noise = RowNoise(seeds, target.vocab_size)
    stopping = Stopping(max_new_tokens, stop_tokens)
    decoder = SpeculativeDecoder(target, session, rule, controller, noise, sampling, stopping, stats)
    for progress in decoder.steps():
        tokens = progress.tokens
    return tokens, stats


def seeds(count: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + count) * 7919 + 13


def flat_costs() -> CostCurve:
    """A machine on which width is free, so that the cost-aware controller drafts."""
    costs = CostCurve()
    for width in WIDTHS:
        costs.add(1, width, 0.01)
    return costs
