"""Every rule, coupling, initialiser, drafter and tree leaves the target's law as it is, by chi-square over all strings.

60 000 rows are one vectorised, ragged batch. ``test_negative_controls`` shows that the same statistic finds mistakes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.base import Acceptance
from mmspec.core.controllers import CostCurve
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import TreeSession
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

VOCAB, LENGTH, COUNT = 3, 4, 60_000
TABLE, OTHER, DRAFT = (random_table(VOCAB, LENGTH, seed) for seed in (1, 2, 3))
INITIALIZERS = ("copy-left", "copy-up", "law", "mix", "uniform")
LIMIT = 4.5

#: how the target's law is shaped: (sampling, guidance scale)
SHAPES = {"top-k": (SamplingParams(top_k=2), 1.0), "cfg": (SamplingParams(temperature=0.8), 2.5)}


def target(shape: str, count: int = COUNT, table: torch.Tensor = TABLE) -> TableTarget:
    scale = SHAPES[shape][1]
    return TableTarget(table, LENGTH, count, None if scale == 1 else OTHER, scale)


def deviation(shape: str, drafter: Any, rule: Acceptance, **options: Any) -> float:
    """z of the decoded strings against the enumerated law of the target."""
    sampling = SHAPES[shape][0]
    tokens, _ = decode(target(shape), seeds(COUNT), LENGTH, drafter, rule, sampling, row_length=2, **options)
    return z_score(string_numbers(tokens, VOCAB), enumerate_law(target(shape, 1), sampling))


def jacobi(coupling: str, initializer: str, window: int) -> JacobiDrafter:
    return JacobiDrafter(window=window, coupling=coupling, initializer=initializer, controller="fixed")


def legal(rule: Acceptance, coupling: str) -> bool:
    return jacobi(coupling, "mix", 2).law in rule.legal_laws


STOCHASTIC = [ACCEPTANCE_RULES.create(name) for name in ("block", "coupled", "match", "ratio")]
JACOBI = [
    pytest.param(rule, coupling, id=f"{type(rule).__name__.removesuffix('Acceptance').lower()}-{coupling}")
    for rule in STOCHASTIC
    for coupling in COUPLINGS
    if legal(rule, coupling)
]


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_decoding_has_the_law(shape: str) -> None:
    assert abs(deviation(shape, None, ACCEPTANCE_RULES.create("coupled"))) < LIMIT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [2, 6], ids=["narrow", "wide"])
@pytest.mark.parametrize(("rule", "coupling"), JACOBI)
def test_jacobi_has_the_law(rule: Acceptance, coupling: str, window: int, shape: str) -> None:
    """Windows narrower and wider than the output; the initialiser varies with the case."""
    case = STOCHASTIC.index(rule) + COUPLINGS.index(coupling) + window + len(shape)
    initializer = INITIALIZERS[case % len(INITIALIZERS)]
    assert abs(deviation(shape, jacobi(coupling, initializer, window), rule)) < LIMIT


@pytest.mark.parametrize("initializer", INITIALIZERS)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_every_initialiser_has_the_law_under_the_ratio_rule(coupling: str, initializer: str) -> None:
    rule = ACCEPTANCE_RULES.create("ratio")
    assert abs(deviation("top-k", jacobi(coupling, initializer, 3), rule)) < LIMIT


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_every_initialiser_has_the_law_under_the_block_rule(initializer: str) -> None:
    rule = ACCEPTANCE_RULES.create("block")
    assert abs(deviation("cfg", jacobi("independent", initializer, 3), rule)) < LIMIT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [2, 5], ids=["narrow", "wide"])
@pytest.mark.parametrize("rule", STOCHASTIC, ids=lambda rule: type(rule).__name__)
def test_a_draft_model_leaves_the_law(rule: Acceptance, width: int, shape: str) -> None:
    drafter = ModelDrafter(model="table", num_draft_tokens=width - 1)
    opened = deviation(shape, drafter, rule, draft_target=lambda _: RollbackTarget(shape))
    assert abs(opened) < LIMIT


class RollbackTarget(TableTarget):
    """A draft model: another law for every prefix, under the same shape."""

    def __init__(self, shape: str) -> None:
        scale = SHAPES[shape][1]
        super().__init__(DRAFT, LENGTH, COUNT, None if scale == 1 else OTHER, scale)

    def rollback(self, count: torch.Tensor) -> None:
        self.count = self.count - count


@pytest.mark.parametrize("tree", ["random", "static"])
@pytest.mark.parametrize("rule", ["coupled", "match"])
def test_trees_with_twin_siblings_leave_the_law(rule: str, tree: str) -> None:
    session = TreeSession(VOCAB, tree, holes=0.2)
    assert abs(deviation("top-k", session, ACCEPTANCE_RULES.create(rule), width=7)) < LIMIT


@pytest.mark.parametrize("controller", ["aimd", "cost-aware"])
def test_a_width_that_follows_the_accepted_counts_leaves_the_law(controller: str) -> None:
    drafter = JacobiDrafter(window=5, coupling="maximal", controller=controller)
    assert drafter.controller(CostCurve()).plan(4, 1) <= 4
    assert abs(deviation("top-k", drafter, ACCEPTANCE_RULES.create("ratio"))) < LIMIT
