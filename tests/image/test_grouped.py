"""Grouped speculative decoding: equal to the authors' acceptances, exact with groups of one, structure left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.base import RuleSetup, TokenVectors
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.draft import DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.image.grouped import Distances, GroupedAcceptance, Groups
from tests.oracles.decode import decode, seeds
from tests.oracles.laws import random_laws
from tests.oracles.toy import TableTarget, random_table

DATA = Path(__file__).resolve().parent.parent / "data" / "grouped_cases.json"
CPU = torch.device("cpu")


class RecordedDistances:
    """Distances as recorded, instead of those of vectors."""

    vectors = torch.zeros(24, 1)

    def __init__(self, square: list[list[float]], limit: float) -> None:
        self.closer = torch.tensor(square) < limit

    def place(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(tokens, dtype=torch.bool), tokens

    def close(self, mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> Tensor:
        return self.closer[mine[1].expand_as(theirs[1]), theirs[1]]


def compare(stored: dict[str, Any], size: int | None = None) -> list[bool]:
    """Whether acceptance probabilities and the number of committed tokens equal the record, for every case."""
    settings = stored["gsd"]
    distances: Any = RecordedDistances(settings["sq_dist"], settings["d_thr"])
    groups = Groups(distances, size or 2 * settings["half_group"], settings["p_thr"], "token")
    equal = []
    for case in stored["cases"]:
        p, q, tokens = torch.tensor(case["p"])[:-1], torch.tensor(case["q"])[1:], torch.tensor(case["draft"])[1:]
        weight = groups.weigh(p, q, tokens, torch.arange(1, 6))
        accept = (weight / q.gather(1, tokens[:, None])[:, 0]).clamp_max(1)
        committed = int((torch.tensor(case["r"]) < accept).long().cumprod(0).sum()) + 1
        close = torch.allclose(accept, torch.tensor(case["gsd_accept_prob"]), atol=1e-5)
        equal.append(close and committed == case["gsd"]["matched"])
    return equal


def test_committed_cases_equal_the_reference() -> None:
    stored = json.loads(DATA.read_text())
    assert compare(stored) == [True] * 4
    assert not any(compare(stored, size=1))  # each has a token whose group matters


def test_all_cases_equal_the_reference(golden: Path) -> None:
    assert compare(json.loads((golden / "sjd" / "verify.json").read_text())) == [True] * 16


def codebook(size: int) -> Tensor:
    rows = torch.randn(size, 3, generator=torch.Generator().manual_seed(5))
    return torch.nn.functional.normalize(rows, dim=-1)


def test_a_group_is_what_the_definition_says() -> None:
    """Against the definition written out for one token at a time, ranks at both ends included."""
    size, gap, limit = 5, 0.05, 1.5
    vectors = codebook(16)
    p, q = random_laws(2, 16, 3, flat=3.0)
    groups = Groups(Distances(TokenVectors(vectors), limit, CPU), size, gap, "group")
    weights = groups.weights(p[None], q[None], torch.tensor([1]))[0]
    ranked = p.argsort().tolist()
    for token in range(16):
        rank = ranked.index(token)
        window = ranked[max(0, rank - size // 2) : rank + size - size // 2]
        near = [
            v for v in window if abs(p[v] - p[token]) < gap and (vectors[v] - vectors[token]).square().sum() < limit
        ]
        assert token in near
        expected = q[token] * p[near].sum() / q[near].sum()
        assert float(weights[token]) == pytest.approx(float(expected), rel=1e-6)


def test_structural_tokens_are_in_no_group() -> None:
    vectors = TokenVectors(codebook(4), tokens=torch.tensor([0, 1, 2, 3]), structural=frozenset({1}))
    groups = Groups(Distances(vectors, None, CPU), 6, 1.0, "group")
    p, q = random_laws(2, 6, 0, flat=9.0)
    weights = groups.weights(p[None], q[None], torch.tensor([1]))[0]
    torch.testing.assert_close(weights[[1, 4, 5]], p[[1, 4, 5]])
    free = torch.tensor([0, 2, 3])
    assert bool((weights[free] - p[free]).abs().max() > 1e-3)


VOCAB, LENGTH = 6, 5
TABLE = random_table(VOCAB, LENGTH, 5)
WINDOW = JacobiDrafter(window=4, coupling="independent", controller="fixed")


def run(rule: Any, count: int, first: int = 0) -> Any:
    vectors = TokenVectors(codebook(VOCAB))
    bound = rule.bind(RuleSetup(DraftLaw.SAMPLED, SamplingParams(), CPU, 1, lambda: vectors))
    return decode(TableTarget(TABLE, LENGTH, count), seeds(count, first), LENGTH, WINDOW, bound)


def test_groups_of_one_give_the_tokens_of_the_ratio_rule() -> None:
    exact, _ = run(RatioAcceptance(), 100)
    alone, stats = run(GroupedAcceptance(group_size=1, distance=None), 100)
    assert torch.equal(alone, exact)
    assert stats.step_tv_max == 0.0
    assert GroupedAcceptance(group_size=1).guarantee is Guarantee.SAME_LAW
    grouped, stats = run(GroupedAcceptance(group_size=4, probability_gap=1.0, distance=None), 100)
    assert not torch.equal(grouped, exact)
    assert stats.step_tv_max > 0.05


def test_measuring_a_part_of_the_steps_changes_no_token_and_estimates_the_mean() -> None:
    loose = {"group_size": 4, "probability_gap": 1.0, "distance": None}
    all_steps, every = run(GroupedAcceptance(**loose), 1500)
    some_steps, fourth = run(GroupedAcceptance(**loose, measure_every=4), 1500)
    assert torch.equal(all_steps, some_steps)
    assert fourth.step_tv_mean == pytest.approx(every.step_tv_mean, rel=0.1)
    assert fourth.step_tv_mean != every.step_tv_mean
    assert fourth.step_tv_max <= every.step_tv_max  # of the measured ones, not multiplied
    with pytest.raises(ValueError, match="measure_every"):
        GroupedAcceptance(measure_every=0)


@pytest.mark.parametrize("residual", ["token", "group"])
def test_rows_equal_solo(residual: str) -> None:
    rule = GroupedAcceptance(group_size=4, probability_gap=1.0, distance=None, residual=residual)
    together, _ = run(rule, 40)
    assert torch.equal(torch.cat([run(rule, 1, row)[0] for row in range(8)]), together[:8])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"group_size": 0}, ValueError, "`group_size`"),
        ({"group_size": 1.5}, TypeError, "`group_size`"),
        ({"probability_gap": 1.5}, ValueError, "`probability_gap`"),
        ({"distance": -1.0}, ValueError, "`distance`"),
        ({"residual": "both"}, ValueError, "token, group"),
    ],
)
def test_bad_settings_raise(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GroupedAcceptance(**settings)


def test_targets_and_drafts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="codebook"):
        GroupedAcceptance().bind(RuleSetup(DraftLaw.SAMPLED, SamplingParams(), CPU))
    with pytest.raises(ValueError, match="deterministic"):
        GroupedAcceptance().check(NGramDrafter.law, SamplingParams(), "NGramDrafter")
