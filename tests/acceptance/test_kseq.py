"""K-SEQ: golden rho and acceptance, the target's law by enumeration and end to end, and drafts for which it is wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.kseq import KSeqAcceptance, failure_weights, smallest_rho
from mmspec.acceptance.recursive import RecursiveAcceptance
from mmspec.core.draft import DraftLaw
from mmspec.core.sampling import SamplingParams
from tests.oracles.decode import decode, seeds
from tests.oracles.laws import ordered_draws, random_laws
from tests.oracles.siblings import SiblingSession
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def enumerated(p: Tensor, q: Tensor, count: int, rho: float | None = None) -> tuple[Tensor, float, float]:
    """Law of the committed token over all draws of the siblings, acceptance, and rho."""
    number = torch.tensor([count])
    scale = smallest_rho(p[None], q[None], number) if rho is None else torch.tensor([rho], dtype=p.dtype)
    accept = torch.where(q > 0, (p / (scale * q.clamp_min(1e-300))).clamp_max(1), 0.0)
    siblings, weight = ordered_draws(q, count, replace=True)
    law, left = torch.zeros_like(p), weight
    for place in range(count):
        token = siblings[:, place]
        law.index_add_(0, token, left * accept[token])
        left = left * (1 - accept[token])
    fallback = failure_weights(p[None], q[None], scale, number)[0]
    return law + left.sum() * fallback / fallback.sum(), float(1 - left.sum()), float(scale)


@pytest.mark.parametrize(("count", "golden", "rho"), [(1, 0.7, 1.0), (2, 0.79136, 1.45678), (3, 0.85852, None)])
def test_golden_acceptance(count: int, golden: float, rho: float | None) -> None:
    law, accept, found = enumerated(P, Q, count)
    assert accept == pytest.approx(golden, abs=1e-5)
    assert rho is None or found == pytest.approx(rho, abs=1e-5)
    torch.testing.assert_close(law, P, atol=1e-8, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 1 << 20), st.booleans())
def test_the_law_is_the_targets(size: int, count: int, seed: int, zeros: bool) -> None:
    p, q = random_laws(2, size, seed, zeros)
    law, accept, rho = enumerated(p, q, count)
    torch.testing.assert_close(law, p, atol=1e-7, rtol=0)
    assert 1 <= rho <= count
    loose, less, _ = enumerated(p, q, count, rho=float(count))
    torch.testing.assert_close(loose, p, atol=1e-7, rtol=0)
    assert less <= accept + 1e-9


def test_a_rho_that_is_too_small_breaks_the_law() -> None:
    law, _, _ = enumerated(P, Q, 2, rho=1.0)
    assert float((law - P).abs().sum() / 2) > 0.02


VOCAB, LENGTH, COUNT = 3, 4, 30_000
TABLE, DRAFT = random_table(VOCAB, LENGTH, 1), random_table(VOCAB, LENGTH, 3)


def deviation(kind: str, claim: DraftLaw | None = None) -> float:
    session = SiblingSession(TableTarget(DRAFT, LENGTH, COUNT), kind, claim=claim)
    target = TableTarget(TABLE, LENGTH, COUNT)
    tokens, _ = decode(target, seeds(COUNT), LENGTH, session, KSeqAcceptance(), width=7)
    return abs(z_score(string_numbers(tokens, VOCAB), enumerate_law(target, SamplingParams())))


def test_independent_trees_have_the_law_and_others_do_not() -> None:
    assert deviation("independent") < 4.5
    assert deviation("without-replacement", claim=DraftLaw.INDEPENDENT) > 8


def test_rows_equal_solo() -> None:
    def run(count: int, first: int = 0) -> Tensor:
        session = SiblingSession(TableTarget(DRAFT, LENGTH, count), "independent")
        target = TableTarget(TABLE, LENGTH, count)
        return decode(target, seeds(count, first), LENGTH, session, KSeqAcceptance(), width=7)[0]

    assert torch.equal(torch.cat([run(1, row) for row in range(8)]), run(30)[:8])


def test_it_refuses_drafts_of_other_laws() -> None:
    for law in (DraftLaw.WITHOUT_REPLACEMENT, DraftLaw.DETERMINISTIC, DraftLaw.COUPLED):
        with pytest.raises(ValueError, match=law.value):
            KSeqAcceptance().check(law, SamplingParams(), "SomeDrafter")
        RecursiveAcceptance().check(law, SamplingParams(), "SomeDrafter")
