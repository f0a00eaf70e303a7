"""Recursive rejection: golden acceptance, the target's law by enumeration and end to end, and mistakes that are found."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.acceptance.recursive import RecursiveAcceptance
from mmspec.acceptance.relaxed import Exact
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.laws import ordered_draws, random_laws, sibling_laws
from tests.oracles.sessions import TreeSession
from tests.oracles.siblings import SiblingSession
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
LAWS = {"without": DraftLaw.WITHOUT_REPLACEMENT, "with": DraftLaw.INDEPENDENT}


def enumerated(p: Tensor, q: Tensor, count: int, law: DraftLaw) -> tuple[Tensor, float]:
    """Law of the committed token and acceptance, over all draws of the siblings."""
    siblings, weight = ordered_draws(q, count, replace=law is DraftLaw.INDEPENDENT)
    emitted, accept, _ = sibling_laws(p, q, siblings, law, Exact())
    return (weight[:, None] * emitted).sum(0), float((weight * accept).sum())


def best_acceptance(p: Tensor, draws: Tensor, weight: Tensor) -> float:
    """No lossless rule accepts more often: 1 + min over sets S of p(S) - Pr(all candidates lie in S)."""
    best = 1.0
    for members in itertools.product([False, True], repeat=len(p)):
        inside = torch.tensor(members)
        best = min(best, 1 + float(p[inside].sum()) - float(weight[inside[draws].all(-1)].sum()))
    return best


@pytest.mark.parametrize(("law", "golden", "optimum"), [("without", 0.80857, 0.98571), ("with", 0.76, 0.86)])
def test_two_siblings_are_accepted_as_often_as_in_closed_form(law: str, golden: float, optimum: float) -> None:
    emitted, accept = enumerated(P, Q, 2, LAWS[law])
    assert accept == pytest.approx(golden, abs=1e-5)
    torch.testing.assert_close(emitted, P)
    draws, weight = ordered_draws(Q, 2, replace=law == "with")
    assert best_acceptance(P, draws, weight) == pytest.approx(optimum, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 1 << 20), st.booleans(), st.sampled_from([*LAWS]))
def test_the_law_is_the_targets_to_rounding(size: int, count: int, seed: int, zeros: bool, law: str) -> None:
    """Zeros, disjoint supports and laws with fewer tokens than siblings included."""
    p, q = random_laws(2, size, seed, zeros)
    siblings, weight = ordered_draws(q, min(count, size), replace=law == "with")
    emitted, accept, _ = sibling_laws(p, q, siblings, LAWS[law], Exact())
    torch.testing.assert_close((weight[:, None] * emitted).sum(0), p, atol=1e-12, rtol=0)
    assert float((weight * accept).sum()) <= best_acceptance(p, siblings, weight) + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 1 << 20), st.booleans())
def test_chosen_siblings_are_accepted_with_their_own_mass(size: int, count: int, seed: int, zeros: bool) -> None:
    """Of any chosen set S, twins included, the rule accepts with p(S), the optimum; and the law is exact for each."""
    p, q = random_laws(2, size, seed, zeros)
    siblings = torch.randint(size, (8, count), generator=torch.Generator().manual_seed(seed))
    emitted, accept, _ = sibling_laws(p, q, siblings, DraftLaw.DETERMINISTIC, Exact())
    torch.testing.assert_close(emitted, p.expand(8, -1), atol=1e-12, rtol=0)
    mass = torch.stack([p[row.unique()].sum() for row in siblings])
    torch.testing.assert_close(accept, mass, atol=1e-12, rtol=0)


VOCAB, LENGTH, COUNT = 3, 4, 30_000
TABLE, DRAFT = random_table(VOCAB, LENGTH, 1), random_table(VOCAB, LENGTH, 3)
PASS, FAIL = 4.5, 8.0


def deviation(kind: str, sampling: SamplingParams | None = None, **changes: object) -> float:
    target = TableTarget(TABLE, LENGTH, COUNT)
    session = SiblingSession(TableTarget(DRAFT, LENGTH, COUNT), kind, **changes)
    tokens, stats = decode(target, seeds(COUNT), LENGTH, session, RecursiveAcceptance(), sampling, width=7)
    assert stats.acceptance_rate > 0.3
    return abs(z_score(string_numbers(tokens, VOCAB), enumerate_law(target, sampling or SamplingParams())))


@pytest.mark.parametrize("kind", ["without-replacement", "independent", "beam"])
def test_sampled_trees_have_the_law(kind: str) -> None:
    assert deviation(kind) < PASS
    assert deviation(kind, SamplingParams(temperature=0.8, top_k=2)) < PASS


def test_chosen_trees_and_chains_have_the_law() -> None:
    target = TableTarget(TABLE, LENGTH, COUNT)
    law = enumerate_law(target, SamplingParams())
    for drafter, width in ((TreeSession(VOCAB, holes=0.2), 7), (NGramDrafter(), 3)):
        target = TableTarget(TABLE, LENGTH, COUNT)
        tokens, _ = decode(target, seeds(COUNT), LENGTH, drafter, RecursiveAcceptance(), width=width)
        assert abs(z_score(string_numbers(tokens, VOCAB), law)) < PASS


def test_mistakes_in_the_tree_are_found() -> None:
    """Siblings in the wrong order, draws without replacement taken for independent ones, pruning by the drawn token."""
    assert deviation("without-replacement", order="reversed") > FAIL
    assert deviation("without-replacement", claim=DraftLaw.INDEPENDENT) > FAIL
    assert deviation("without-replacement", prune=0.3) > FAIL


def test_a_chain_with_a_law_is_judged_as_by_the_ratio_rule() -> None:
    for coupling in ("independent", "maximal"):
        drafter = JacobiDrafter(window=4, coupling=coupling, controller="fixed")
        runs = [
            decode(TableTarget(TABLE, LENGTH, 200), seeds(200), LENGTH, drafter, rule)[0]
            for rule in (RatioAcceptance(), RecursiveAcceptance())
        ]
        assert torch.equal(*runs)


@pytest.mark.parametrize("kind", ["without-replacement", "independent", "beam"])
def test_rows_equal_solo(kind: str) -> None:
    def run(count: int, first: int = 0) -> Tensor:
        session = SiblingSession(TableTarget(DRAFT, LENGTH, count), kind)
        target = TableTarget(TABLE, LENGTH, count)
        return decode(target, seeds(count, first), LENGTH, session, RecursiveAcceptance(), width=7)[0]

    together = run(60)
    assert torch.equal(torch.cat([run(1, row) for row in range(12)]), together[:12])
    assert torch.equal(torch.cat([run(3, row) for row in range(0, 30, 3)]), together[:30])


def test_at_temperature_zero_it_is_greedy() -> None:
    greedy = SamplingParams(temperature=0)
    plain = decode(TableTarget(TABLE, LENGTH, 20), seeds(20), LENGTH, None, None, greedy)[0]
    for session in (SiblingSession(TableTarget(DRAFT, LENGTH, 20), "without-replacement"), TreeSession(VOCAB)):
        tokens, _ = decode(
            TableTarget(TABLE, LENGTH, 20), seeds(20), LENGTH, session, RecursiveAcceptance(), greedy, width=7
        )
        assert torch.equal(tokens, plain)


def test_the_children_of_a_tree_are_listed_in_order_and_only_if_valid() -> None:
    draft = Draft(
        torch.zeros(2, 6, dtype=torch.long), DraftLaw.DETERMINISTIC,
        parent=torch.tensor([[0, 0, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4]]),
        valid=torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0]], dtype=torch.bool),
    )  # fmt: skip
    assert draft.children[0].tolist() == [[1, 4], [3, 5], [-1, -1], [-1, -1], [-1, -1], [-1, -1]]
    assert draft.children[1].tolist() == [[1, -1], [2, -1], [3, -1], [4, -1], [-1, -1], [-1, -1]]
    chain = Draft(torch.zeros(1, 3, dtype=torch.long), DraftLaw.DETERMINISTIC)
    assert chain.children[0].tolist() == [[1], [2], [-1]]
