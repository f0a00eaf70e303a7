"""The rule of the guide has the law that it states: the mixture of target and draft, token by token."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import SamplingParams, draw
from mmspec.core.verify import Guarantee, RoundContext, Verdict

FILE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "mixture.py"
COUNT = 60_000
P = torch.tensor([0.45, 0.30, 0.15, 0.07, 0.03])  # the target's law
Q = torch.tensor([0.05, 0.20, 0.30, 0.05, 0.40])  # the draft's


def load() -> Any:
    spec = importlib.util.spec_from_file_location("mixture", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge(rule: Acceptance) -> Verdict:
    """One round of many rows: a draft token drawn from Q, judged under P, and a bonus token."""
    noise = RowNoise(torch.arange(COUNT) * 7919 + 13, len(P))
    zeros = torch.zeros(COUNT, dtype=torch.long)
    drawn = draw(Q.log(), noise.gumbel(Stream.DRAFT, zeros[:, None])[:, 0])
    log_q = torch.stack([Q.log(), torch.zeros(len(Q))]).expand(COUNT, -1, -1)
    draft = Draft(torch.stack([zeros, drawn], dim=1), DraftLaw.SAMPLED, log_q=log_q)
    context = RoundContext(
        tokens=zeros[:, None], generated=zeros, rounds=zeros, root=zeros, noise=noise, sampling=SamplingParams(), lowest=0,
        highest=0,
    )  # fmt: skip
    return rule(draft, P.log().expand(COUNT, 2, -1), context)


def z_score(tokens: Tensor, law: Tensor) -> float:
    """Pearson's chi-square of ``tokens`` (n,) against ``law`` (V,), standardised."""
    expected = law * len(tokens)
    statistic = ((torch.bincount(tokens, minlength=len(law)) - expected) ** 2 / expected).sum()
    freedom = len(law) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.7])
def test_the_committed_token_has_the_law_of_the_mixture(share: float) -> None:
    verdict = judge(load().MixtureAcceptance(share))
    assert abs(z_score(verdict.tokens[:, 0], (1 - share) * P + share * Q)) < 4.5
    bonus = verdict.next_token[verdict.num_accepted == 1]
    assert abs(z_score(bonus, P)) < 4.5


def test_the_exact_rule_does_not_have_that_law() -> None:
    """The same statistic finds a rule that has another law."""
    assert z_score(judge(RatioAcceptance()).tokens[:, 0], 0.75 * P + 0.25 * Q) > 8


def test_a_correction_from_the_target_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The common mistake: after a rejection, drawing from the law itself instead of the residual."""
    monkeypatch.setattr("mmspec.acceptance.ratio.residual", lambda p, q: p)
    assert z_score(judge(load().MixtureAcceptance(0.25)).tokens[:, 0], 0.75 * P + 0.25 * Q) > 8


def test_every_step_keeps_the_bound_and_the_guarantee_says_it() -> None:
    rule = load().MixtureAcceptance(0.25)
    verdict = judge(rule)
    assert verdict.step_tv is not None
    assert float(verdict.step_tv.max()) == pytest.approx(0.25 * float((P - Q).abs().sum() / 2))
    assert float(verdict.step_tv.max()) <= rule.step_tv_bound
    assert (rule.guarantee, load().MixtureAcceptance(0.0).guarantee) == (Guarantee.BOUNDED_TV, Guarantee.SAME_LAW)


def test_without_a_share_it_is_the_ratio_test() -> None:
    mine, theirs = judge(load().MixtureAcceptance(0.0)), judge(RatioAcceptance())
    assert torch.equal(mine.tokens, theirs.tokens)
    assert torch.equal(mine.num_accepted, theirs.num_accepted)


def test_a_share_of_one_accepts_everything() -> None:
    assert bool((judge(load().MixtureAcceptance(1.0)).num_accepted == 1).all())
