"""Mistakes that published code makes are found by the chi-square of ``test_laws``; the right version beside each passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.block import BlockAcceptance
from mmspec.acceptance.match import MatchAcceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.draft import Draft
from mmspec.core.noise import Stream
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.initializers import Initializer
from mmspec.drafters.jacobi import JacobiDrafter, JacobiSession
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import LawSession
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

VOCAB, LENGTH, COUNT = 3, 4, 60_000
TABLE, DRAFT = random_table(VOCAB, LENGTH, 1), random_table(VOCAB, LENGTH, 3)
PASS, FAIL = 4.5, 8.0


def deviation(session: Any, rule: Any, width: int = 4) -> float:
    target = TableTarget(TABLE, LENGTH, COUNT)
    tokens, _ = decode(target, seeds(COUNT), LENGTH, session, rule, width=width)
    return abs(z_score(string_numbers(tokens, VOCAB), enumerate_law(target, SamplingParams())))


def jacobi_session(kind: type[JacobiSession], coupling: str) -> JacobiSession:
    setup = DraftSetup(COUNT, VOCAB, torch.device("cpu"), LENGTH, needs_law=True)
    law = JacobiDrafter(coupling=coupling).law
    return kind(coupling, Initializer("mix", VOCAB, None, 0.3), law, setup)


class OldLawForKeptTokens(JacobiSession):
    """Maximal coupling that leaves the law of a token that it kept as it was, as two of three public ports do."""

    def _redraw(
        self, context: RoundContext, draft: Draft, logits: Tensor, verdict: Verdict
    ) -> tuple[Tensor, Tensor | None]:
        redrawn, log_p = super()._redraw(context, draft, logits, verdict)
        count = draft.num_nodes - 1
        kept = redrawn[:, :count] == draft.tokens[:, 1:]
        old = torch.where(kept[..., None], draft.log_q[:, :count], log_p[:, :count])
        return redrawn, torch.cat([old, log_p[:, count:]], dim=1)


def test_law_of_a_kept_token_is_the_newest_one() -> None:
    assert deviation(jacobi_session(JacobiSession, "maximal"), RatioAcceptance()) < PASS
    assert deviation(jacobi_session(OldLawForKeptTokens, "maximal"), RatioAcceptance()) > FAIL


def test_correction_comes_from_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.acceptance.ratio.residual", lambda p, q: p)
    assert deviation(jacobi_session(JacobiSession, "independent"), RatioAcceptance()) > FAIL


class LockStep(RatioAcceptance):
    """All three rows of a group commit what the slowest of them accepts; the session may look at what each accepted."""

    accepted: Tensor

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        verdict = super().__call__(draft, logits, context)
        self.accepted = verdict.num_accepted
        slowest = verdict.num_accepted.view(-1, 3).amin(-1).repeat_interleave(3)
        token = verdict.tokens.gather(1, slowest[:, None])[:, 0]
        return replace(verdict, num_accepted=slowest, next_token=token)


class KeepAccepted(JacobiSession):
    """Tokens that were accepted but not committed stay in the window under their old law (lock-step SJD)."""

    rule: LockStep

    def _redraw(
        self, context: RoundContext, draft: Draft, logits: Tensor, verdict: Verdict
    ) -> tuple[Tensor, Tensor | None]:
        redrawn, log_p = super()._redraw(context, draft, logits, verdict)
        count = draft.num_nodes - 1
        kept = torch.arange(count) < self.rule.accepted[:, None]
        tokens = torch.where(kept, draft.tokens[:, 1:], redrawn[:, :count])
        law = torch.where(kept[..., None], draft.log_q[:, :count], log_p[:, :count])
        return torch.cat([tokens, redrawn[:, count:]], dim=1), torch.cat([law, log_p[:, count:]], dim=1)


def test_lock_step_groups_are_exact_only_with_the_newest_law() -> None:
    assert deviation(jacobi_session(JacobiSession, "maximal"), LockStep()) < PASS
    rule, session = LockStep(), jacobi_session(KeepAccepted, "independent")
    session.rule = rule
    assert deviation(session, rule) > FAIL


def fresh_noise(context: RoundContext, depth: int) -> Tensor:
    return context.noise.gumbel(Stream.DRAFT, context.rounds[:, None] * 64 + depth)[:, 0]


def position_noise(context: RoundContext, depth: int) -> Tensor:
    """The same noise for a place in every round that drafts it."""
    return context.noise.gumbel(Stream.DRAFT, context.generated[:, None] + depth)[:, 0]


def unlikely_token(tokens: Tensor, log_q: Tensor) -> Tensor:
    """Cut the draft before the first token that the draft model itself finds unlikely."""
    likely = log_q.gather(-1, tokens[..., None])[..., 0].exp() > 0.4
    return likely.long().cumprod(-1).sum(-1)


def draft_model() -> TableTarget:
    return TableTarget(DRAFT, LENGTH, COUNT)


def test_a_sampled_draft_must_not_be_cut_by_its_own_probability() -> None:
    """The ratio test needs the law that tokens were *kept* with; match needs no law and stays exact."""
    assert deviation(LawSession(draft_model(), fresh_noise), RatioAcceptance()) < PASS
    assert deviation(LawSession(draft_model(), fresh_noise, unlikely_token), RatioAcceptance()) > FAIL
    assert deviation(LawSession(draft_model(), fresh_noise, unlikely_token), MatchAcceptance()) < PASS


def test_block_rule_needs_noise_of_the_round() -> None:
    """The block rule looks ahead, so noise that survives a rejection biases the next round; token-wise ratio does not."""
    assert deviation(LawSession(draft_model(), fresh_noise), BlockAcceptance()) < PASS
    assert deviation(LawSession(draft_model(), position_noise), RatioAcceptance()) < PASS
    assert deviation(LawSession(draft_model(), position_noise), BlockAcceptance()) > FAIL
