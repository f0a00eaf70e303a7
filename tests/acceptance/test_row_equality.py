"""Coupled decoding returns plain decoding's tokens; every rule returns for a row what it returns for that row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.base import Acceptance
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import RaggedSession, ScriptedSession, TreeSession
from tests.oracles.toy import TableTarget, random_table

VOCAB, LENGTH = 4, 6
TABLE, OTHER = random_table(VOCAB, LENGTH, 5), random_table(VOCAB, LENGTH, 6)
INITIALIZERS = ("copy-left", "copy-up", "law", "mix", "uniform")
SAMPLING = {
    "greedy": SamplingParams(temperature=0),
    "T=0.7": SamplingParams(temperature=0.7),
    "T=1.3 top-k": SamplingParams(temperature=1.3, top_k=2),
    "top-p": SamplingParams(top_p=0.7),
    "min-p": SamplingParams(min_p=0.2),
}


def run(row_seeds: Tensor, drafter: Any, rule: str | Acceptance, sampling: SamplingParams, **options: Any) -> Tensor:
    rule = ACCEPTANCE_RULES.create(rule) if isinstance(rule, str) else rule
    target = TableTarget(TABLE, LENGTH, len(row_seeds), OTHER, 1.7)
    return decode(target, row_seeds, LENGTH, drafter, rule, sampling, row_length=3, **options)[0]


@pytest.mark.parametrize("window", [2, 4, 50])
@pytest.mark.parametrize("initializer", INITIALIZERS)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_coupled_jacobi_equals_plain(coupling: str, initializer: str, window: int) -> None:
    drafter = JacobiDrafter(window=window, coupling=coupling, initializer=initializer, controller="fixed")
    for sampling in SAMPLING.values():
        plain = run(seeds(150), None, "coupled", sampling)
        assert torch.equal(run(seeds(150), drafter, "coupled", sampling), plain)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=list(SAMPLING))
@pytest.mark.parametrize("tree", ["random", "static"])
@pytest.mark.parametrize("holes", [0.0, 0.3])
def test_coupled_trees_equal_plain(sampling: SamplingParams, tree: str, holes: float) -> None:
    plain = run(seeds(400), None, "coupled", sampling)
    session = TreeSession(VOCAB, tree, holes)
    assert torch.equal(run(seeds(400), session, "coupled", sampling, width=9), plain)


@pytest.mark.parametrize("drafter", ["jacobi", "ngram", "tree"])
def test_greedy_rule_equals_plain_at_temperature_zero(drafter: str) -> None:
    greedy = SAMPLING["greedy"]
    made = {
        "jacobi": JacobiDrafter(window=4, controller="fixed"),
        "ngram": NGramDrafter(),
        "tree": TreeSession(VOCAB),
    }[drafter]
    plain = run(seeds(1), None, "coupled", greedy)
    assert torch.equal(run(seeds(50), made, "greedy", greedy), plain.expand(50, -1))


def test_match_rule_at_temperature_zero_is_greedy() -> None:
    greedy = SAMPLING["greedy"]
    plain = run(seeds(20), None, "coupled", greedy)
    assert torch.equal(run(seeds(20), JacobiDrafter(window=4, controller="fixed"), "match", greedy), plain)


ROW_CASES = [
    ("coupled", "gumbel"), ("match", "gumbel"), ("match", "independent"), ("match", "maximal"), ("ratio", "gumbel"),
    ("ratio", "independent"), ("ratio", "maximal"), ("block", "independent"),
]  # fmt: skip


@pytest.mark.parametrize("initializer", ["law", "mix"])
@pytest.mark.parametrize("window", [3, 20])
@pytest.mark.parametrize(("rule", "coupling"), ROW_CASES)
def test_rows_equal_solo(rule: str, coupling: str, window: int, initializer: str) -> None:
    """120 rows decoded together, 60 of them in groups of three, 15 alone; each row accepts its own lengths."""
    drafter = JacobiDrafter(window=window, coupling=coupling, initializer=initializer, controller="fixed")
    sampling = SamplingParams(temperature=0.9)
    together = run(seeds(120), drafter, rule, sampling)
    groups = [run(seeds(3, first), drafter, rule, sampling) for first in range(0, 60, 3)]
    assert torch.equal(torch.cat(groups), together[:60])
    alone = [run(seeds(1, row), drafter, rule, sampling) for row in range(15)]
    assert torch.equal(torch.cat(alone), together[:15])


@pytest.mark.parametrize(("rule", "coupling"), ROW_CASES)
def test_rows_do_not_depend_on_their_order(rule: str, coupling: str) -> None:
    drafter = JacobiDrafter(window=4, coupling=coupling, controller="fixed")
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    straight = run(seeds(200), drafter, rule, SamplingParams())
    assert torch.equal(run(seeds(200)[order], drafter, rule, SamplingParams()), straight[order])


def test_rows_with_equal_seeds_are_equal() -> None:
    tokens = run(seeds(1).repeat(7), JacobiDrafter(window=4, controller="fixed"), "coupled", SamplingParams())
    assert torch.equal(tokens, tokens[:1].expand(7, -1))


def test_rows_without_drafts_do_not_eat_noise() -> None:
    """Fault 17: rows draft 0 to 5 tokens each, right ones, beside rows that end early; all equal plain."""
    plain = run(seeds(120), None, "coupled", SamplingParams())
    session = RaggedSession(plain, torch.arange(120) % 6)
    assert torch.equal(run(seeds(120), session, "coupled", SamplingParams(), width=6), plain)
    for rule in ("coupled", "match"):
        stopped = run(seeds(120), ScriptedSession(plain), rule, SamplingParams(), width=6, stop_tokens=(0,))
        alone = run(seeds(1, 60), ScriptedSession(plain[60:61]), rule, SamplingParams(), width=6, stop_tokens=(0,))
        assert torch.equal(stopped[60:61], alone)


def test_rules_refuse_drafts_that_they_cannot_judge_exactly() -> None:
    for rule, drafter in [
        ("block", JacobiDrafter(coupling="gumbel")),
        ("block", JacobiDrafter(coupling="maximal")),
        ("block", NGramDrafter()),
        ("ratio", NGramDrafter()),
    ]:
        with pytest.raises(ValueError, match=r"CoupledAcceptance") as caught:
            ACCEPTANCE_RULES.create(rule).check(drafter.law, SamplingParams(), type(drafter).__name__)
        assert drafter.law.value in str(caught.value)


def test_greedy_rule_refuses_other_temperatures() -> None:
    with pytest.raises(ValueError, match=r"0\.5"):
        ACCEPTANCE_RULES.create("greedy").check(NGramDrafter.law, SamplingParams(0.5), "NGramDrafter")
