"""Budgeted greedy verification: greedy without a budget, never beyond its budget, and as written out for one path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.budgeted import BudgetedAcceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee, RoundContext
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import TreeSession
from tests.oracles.toy import TableTarget, random_table

VOCAB, LENGTH = 4, 6
TABLE = random_table(VOCAB, LENGTH, 5)
GREEDY = SamplingParams(temperature=0)


def run(rule: Any, session: Any, count: int = 40, first: int = 0) -> Any:
    return decode(TableTarget(TABLE, LENGTH, count), seeds(count, first), LENGTH, session, rule, GREEDY, width=7)


def sessions() -> list[Any]:
    return [JacobiDrafter(window=5, controller="fixed"), NGramDrafter(), TreeSession(VOCAB, holes=0.2)]


@pytest.mark.parametrize("off", [{"budget": 0.0}, {"max_exceptions": 0}, {"gate": 0.0}])
def test_without_a_budget_it_is_greedy(off: dict[str, Any]) -> None:
    plain, _ = run(None, None)
    for session in sessions():
        tokens, stats = run(BudgetedAcceptance(**{"budget": 9.0, "gate": 9.0, **off}), session)
        assert torch.equal(tokens, plain)
        assert stats.step_tv_max == 0.0
        assert not any(row.regret for row in stats.rows)
    assert BudgetedAcceptance(budget=0.0).guarantee is Guarantee.SAME_TOKENS


def test_the_regret_stays_in_the_budget_and_is_that_of_the_output() -> None:
    """The sum of log p(best) - log p(emitted) along the output equals what was charged, and respects the budget."""
    for session in sessions():
        tokens, stats = run(BudgetedAcceptance(budget=0.3, gate=1.5, max_exceptions=2), session)
        charged = torch.tensor([row.regret for row in stats.rows])
        assert bool((charged <= 0.3 * LENGTH + 1e-5).all())
        target = TableTarget(TABLE, LENGTH, len(tokens))
        lost, number = torch.zeros(len(tokens)), torch.zeros(len(tokens), dtype=torch.long)
        for place in range(LENGTH):
            logits = target.logits(number[:, None], torch.full((len(tokens), 1), place))[:, 0]
            lost += (logits.amax(-1) - logits.gather(1, tokens[:, place : place + 1])[:, 0]).clamp_min(0)
            number = number * VOCAB + tokens[:, place]
        torch.testing.assert_close(lost, charged, atol=1e-4, rtol=1e-4)
        if not isinstance(session, NGramDrafter):
            assert float(charged.max()) > 0
            assert sum(row.step_tv for row in stats.rows) > 0


def written_out(regret: list[float], matches: list[bool], rule: BudgetedAcceptance, left: float) -> int:
    """Accepted length of a chain, token by token."""
    config, kept, spent, exceptions = rule.config, 0, 0.0, 0
    for place, (cost, match) in enumerate(zip(regret, matches, strict=True), 1):
        spent, exceptions = spent + cost * (not match), exceptions + (not match)
        if spent > left or exceptions > config.max_exceptions or (not match and cost > config.gate):
            break
        last = matches[max(0, place - config.min_reuse) : place]
        if exceptions == 0 or (all(last) and place >= config.min_reuse):
            kept = place
    return kept


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 1 << 20), st.integers(0, 3), st.integers(1, 3), st.sampled_from([0.3, 1.0, 5.0]),
    st.floats(0, 3), st.integers(1, 6),
)  # fmt: skip
def test_a_chain_is_judged_as_written_out(
    seed: int, most: int, reuse: int, gate: float, left: float, size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, size + 1, 3, generator=generator)
    best = logits.argmax(-1)
    other = torch.randint(3, (1, size), generator=generator)
    tokens = torch.where(torch.rand(1, size, generator=generator) < 0.6, best[:, :-1], other)
    rule = BudgetedAcceptance(budget=1.0, gate=gate, max_exceptions=most, min_reuse=reuse)
    zeros = torch.zeros(1, dtype=torch.long)
    context = RoundContext(
        tokens=torch.zeros(1, 4, dtype=torch.long), generated=zeros + 1, rounds=zeros, root=zeros,
        noise=RowNoise(zeros, 3), sampling=GREEDY, lowest=1, highest=1, regret=torch.tensor([4.0 - left]),
    )  # fmt: skip
    chain = Draft(torch.cat([zeros[:, None], tokens], 1), DraftLaw.DETERMINISTIC)
    verdict = rule(chain, logits, context)
    regret = (logits.amax(-1)[:, :-1] - logits[:, :-1].gather(-1, tokens[..., None])[..., 0])[0].tolist()
    matches = (tokens == best[:, :-1])[0].tolist()
    kept = written_out(regret, matches, rule, float(4.0 - context.regret[0]))
    assert int(verdict.num_accepted) == kept
    assert int(verdict.next_token) == int(best[0, kept])
    assert verdict.tokens[0, : kept + 1].tolist() == [*tokens[0, :kept].tolist(), int(best[0, kept])]
    assert verdict.step_tv[0].tolist()[:kept] == [float(not match) for match in matches[:kept]]
    tree = Draft(chain.tokens, DraftLaw.DETERMINISTIC, parent=chain.parents)
    assert torch.equal(rule(tree, logits, context).num_accepted, verdict.num_accepted)


def test_of_equally_deep_paths_the_cheaper_one_is_taken() -> None:
    """Two siblings, both near misses, each followed by a match."""
    logits = torch.tensor([[[0.0, 1.0, 0.5, 0.8], [5, 0, 0, 0], [5, 0, 0, 0], [5, 0, 0, 0], [5, 0, 0, 0]]])
    draft = Draft(torch.tensor([[0, 2, 3, 0, 0]]), DraftLaw.DETERMINISTIC, parent=torch.tensor([[0, 0, 0, 1, 2]]))
    zeros = torch.zeros(1, dtype=torch.long)
    context = RoundContext(
        tokens=torch.zeros(1, 9, dtype=torch.long), generated=zeros + 1, rounds=zeros, root=zeros,
        noise=RowNoise(zeros, 4), sampling=GREEDY, lowest=1, highest=1, regret=torch.zeros(1),
    )  # fmt: skip
    verdict = BudgetedAcceptance(budget=1.0)(draft, logits, context)
    assert verdict.path[0, :3].tolist() == [0, 2, 4]
    assert float(verdict.regret) == pytest.approx(0.2)


def test_rows_equal_solo() -> None:
    rule = BudgetedAcceptance(budget=0.3, gate=1.5)
    drafter = JacobiDrafter(window=5, controller="fixed")

    def tokens(count: int, first: int = 0) -> Tensor:
        return run(rule, drafter, count, first)[0]

    assert torch.equal(torch.cat([tokens(1, row) for row in range(10)]), tokens(40)[:10])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"budget": -1.0}, ValueError, "`budget`"),
        ({"gate": float("nan")}, ValueError, "`gate`"),
        ({"max_exceptions": 1.5}, TypeError, "`max_exceptions`"),
        ({"max_exceptions": -1}, ValueError, "`max_exceptions`"),
        ({"min_reuse": 0}, ValueError, "`min_reuse`"),
    ],
)
def test_bad_settings_raise(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BudgetedAcceptance(**changes)


def test_other_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.7"):
        BudgetedAcceptance().check(NGramDrafter.law, SamplingParams(0.7), "NGramDrafter")
