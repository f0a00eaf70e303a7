"""The relaxed chain rules as a whole: settings, what they promise, rows like solo, and what the stats report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.cool import CoolAcceptance
from mmspec.acceptance.fuzzy import FuzzyAcceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, random_table

VOCAB, LENGTH = 4, 5
TABLE = random_table(VOCAB, LENGTH, 5)
RULES = {
    "cool": CoolAcceptance(delta=1.5, nu=0.3),
    "fuzzy": FuzzyAcceptance(threshold=0.3),
    "fuzzy-reject": FuzzyAcceptance(threshold=0.3, fallback="reject"),
}


def run(rule: Any, count: int, first: int = 0, coupling: str = "independent") -> Any:
    drafter = JacobiDrafter(window=4, coupling=coupling, controller="fixed")
    return decode(TableTarget(TABLE, LENGTH, count), seeds(count, first), LENGTH, drafter, rule)


@pytest.mark.parametrize("coupling", ["independent", "maximal", "gumbel"])
@pytest.mark.parametrize("name", RULES)
def test_rows_equal_solo(name: str, coupling: str) -> None:
    def tokens(count: int, first: int = 0) -> Tensor:
        return run(RULES[name], count, first, coupling)[0]

    assert torch.equal(torch.cat([tokens(1, row) for row in range(8)]), tokens(40)[:8])


@pytest.mark.parametrize("rule", [CoolAcceptance(delta=1.0, nu=0.0), FuzzyAcceptance(threshold=0.0)])
def test_settings_that_relax_nothing_give_the_tokens_of_the_ratio_rule(rule: Any) -> None:
    tokens, stats = run(rule, 200)
    assert torch.equal(tokens, run(RatioAcceptance(), 200)[0])
    assert stats.step_tv_max < 1e-6


@pytest.mark.parametrize("name", RULES)
def test_more_is_accepted_and_the_deviation_is_reported(name: str) -> None:
    _, relaxed = run(RULES[name], 200)
    _, exact = run(RatioAcceptance(), 200)
    if name != "fuzzy-reject":
        assert relaxed.acceptance_rate > exact.acceptance_rate
    assert 0 < relaxed.step_tv_mean < relaxed.step_tv_max <= 1
    if RULES[name].step_tv_bound is not None:
        assert relaxed.step_tv_max <= RULES[name].step_tv_bound + 1e-6
    assert exact.step_tv_max == exact.sequence_tv == 0
    assert relaxed.sequence_tv > 0


def test_each_rule_says_what_it_promises() -> None:
    assert CoolAcceptance().guarantee is Guarantee.BOUNDED_TV
    assert CoolAcceptance(delta=1.5, nu=0.0).step_tv_bound == pytest.approx(1 / 3)
    assert CoolAcceptance(delta=1.0, nu=0.0).guarantee is Guarantee.SAME_LAW
    assert FuzzyAcceptance().guarantee is Guarantee.LAW_OF_TRANSFORM
    assert FuzzyAcceptance(threshold=0.2, divergence="tv").step_tv_bound == 0.2
    assert FuzzyAcceptance(threshold=0.02, divergence="kl").step_tv_bound == pytest.approx(0.1)
    assert FuzzyAcceptance().step_tv_bound is None


def test_drafts_without_a_law_are_refused() -> None:
    for rule in RULES.values():
        with pytest.raises(ValueError, match="deterministic"):
            rule.check(NGramDrafter.law, SamplingParams(), "NGramDrafter")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CoolAcceptance(delta=0.9), ValueError, "`delta`"),
        (lambda: CoolAcceptance(nu=-1), ValueError, "`nu`"),
        (lambda: CoolAcceptance(length=0), ValueError, "`length`"),
        (lambda: CoolAcceptance(length=2.5), TypeError, "`length`"),
        (lambda: FuzzyAcceptance(threshold=-1), ValueError, "`threshold`"),
        (lambda: FuzzyAcceptance(threshold=None), TypeError, "`threshold`"),
        (lambda: FuzzyAcceptance(divergence="chi"), ValueError, "js, kl, tv"),
        (lambda: FuzzyAcceptance(fallback="accept"), ValueError, "ratio, reject"),
    ],
)
def test_bad_settings_raise(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
