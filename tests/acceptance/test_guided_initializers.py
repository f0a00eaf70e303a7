"""Every initialiser with every coupling under guidance: the law of the guided target, and rows that equal solo runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.initializers import INITIALIZERS
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

VOCAB, LENGTH, COUNT, SCALE = 3, 4, 20_000, 2.5
TABLE, OTHER = random_table(VOCAB, LENGTH, 1), random_table(VOCAB, LENGTH, 2)
SAMPLING = SamplingParams(temperature=0.8)
EVERY = pytest.mark.parametrize("initializer", INITIALIZERS)
COUPLED = pytest.mark.parametrize("coupling", COUPLINGS)


def target(count: int, scale: float = SCALE) -> TableTarget:
    return TableTarget(TABLE, LENGTH, count, None if scale == 1 else OTHER, scale)


def run(row_seeds: Tensor, coupling: str, initializer: str, rule: str, window: int = 3) -> Tensor:
    drafter = JacobiDrafter(window=window, coupling=coupling, initializer=initializer, controller="fixed")
    made = ACCEPTANCE_RULES.create(rule)
    return decode(target(len(row_seeds)), row_seeds, LENGTH, drafter, made, SAMPLING, row_length=2)[0]


@EVERY
@COUPLED
def test_ratio_rule_keeps_the_guided_law(coupling: str, initializer: str) -> None:
    strings = string_numbers(run(seeds(COUNT), coupling, initializer, "ratio"), VOCAB)
    assert abs(z_score(strings, enumerate_law(target(1), SAMPLING))) < 4.5
    # negative control: the law of the condition alone, and that of another scale, are told apart
    for other in (1.0, 1.5):
        assert z_score(strings, enumerate_law(target(1, other), SAMPLING)) > 20


@pytest.mark.parametrize("rule", ["match", "ratio"])
@EVERY
@COUPLED
def test_rows_equal_solo(coupling: str, initializer: str, rule: str) -> None:
    together = run(seeds(40), coupling, initializer, rule)
    groups = [run(seeds(4, first), coupling, initializer, rule) for first in range(0, 20, 4)]
    assert torch.equal(torch.cat(groups), together[:20])
    alone = [run(seeds(1, row), coupling, initializer, rule) for row in range(8)]
    assert torch.equal(torch.cat(alone), together[:8])
