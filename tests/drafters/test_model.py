"""A draft model never changes a token, keeps step through ragged rounds, and is refused where it does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.controllers import RoundReport
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.model import ModelDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, random_table

VOCAB, LENGTH, ROWS = 4, 6, 120
TABLE = random_table(VOCAB, LENGTH, 5)
NEAR = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(0))


class DraftTarget(TableTarget):
    """A table that can forget committed tokens, as a draft model's runner can."""

    def rollback(self, count: Tensor) -> None:
        assert bool((count >= 0).all())
        assert bool((count <= self.count).all())
        self.count = self.count - count


def open_draft(table: Tensor, rows: int = ROWS) -> Any:
    return lambda model: DraftTarget(table, LENGTH, rows)


def run(drafter: Any, rule: str, sampling: SamplingParams, table: Tensor, rows: int = ROWS, **options: Any) -> Any:
    target = TableTarget(TABLE, LENGTH, rows)
    return decode(
        target, seeds(rows), LENGTH, drafter, ACCEPTANCE_RULES.create(rule), sampling,
        draft_target=open_draft(table, rows), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "sampling", [SamplingParams(0), SamplingParams(0.7), SamplingParams(top_k=2)], ids=["T0", "T.7", "k2"]
)
@pytest.mark.parametrize("block", [1, 2, 4, 20])
@pytest.mark.parametrize("controller", ["fixed", "aimd", "cost-aware"])
def test_equals_plain(controller: str, block: int, sampling: SamplingParams) -> None:
    plain, _ = run(None, "coupled", sampling, NEAR)
    tokens, stats = run(ModelDrafter(block, controller, model="m"), "coupled", sampling, NEAR)
    assert torch.equal(tokens, plain)
    assert stats.draft_forwards >= 1


def test_the_target_as_its_own_drafter_is_always_right() -> None:
    """Shared noise: every draft token is accepted, so an output of 6 takes the prefill and one round of five."""
    tokens, stats = run(ModelDrafter(4, model="m"), "coupled", SamplingParams(), TABLE)
    assert torch.equal(tokens, run(None, "coupled", SamplingParams(), TABLE)[0])
    assert stats.forwards == 2
    assert [row.acceptance_length for row in stats.rows] == [5.0] * ROWS
    assert stats.acceptance_rate == 1.0


@pytest.mark.parametrize("rule", ["coupled", "match", "ratio", "block"])
def test_a_row_that_accepts_less_than_its_neighbours_equals_solo(rule: str) -> None:
    together, stats = run(ModelDrafter(3, model="m"), rule, SamplingParams(), NEAR)
    assert len({row.rounds for row in stats.rows}) > 1, "rows must be ragged for this test to mean anything"
    for row in range(12):
        target = TableTarget(TABLE, LENGTH, 1)
        alone, _ = decode(
            target, seeds(1, row), LENGTH, ModelDrafter(3, model="m"), ACCEPTANCE_RULES.create(rule),
            draft_target=open_draft(NEAR, 1),
        )  # fmt: skip
        assert torch.equal(alone[0], together[row])


class OnOff:
    """Draft lengths 0, 3, 0, 0, 2, ...: rounds without drafting leave the draft model behind, who must catch up."""

    def __init__(self) -> None:
        self.widths = [1, 4, 1, 1, 3, 1, 1, 1, 2]
        self.round = 0

    def plan(self, limit: int, rows: int) -> int:
        self.round += 1
        return min(self.widths[(self.round - 1) % len(self.widths)], limit)

    def observe(self, report: RoundReport) -> None:
        pass


@pytest.mark.parametrize("shift", range(5))
@pytest.mark.parametrize("table", [TABLE, NEAR], ids=["same", "near"])
def test_rounds_without_drafting_do_not_lose_tokens(
    table: Tensor, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = OnOff()
    controller.round = shift
    monkeypatch.setattr(ModelDrafter, "controller", lambda *arguments: controller)
    tokens, stats = run(ModelDrafter(3, model="m"), "coupled", SamplingParams(), table)
    assert torch.equal(tokens, run(None, "coupled", SamplingParams(), table)[0])
    if table is TABLE:  # in step with the target it is always right, also after rounds that it slept through
        assert stats.acceptance_rate == 1.0


def test_a_useless_model_costs_tokens_per_forward_only() -> None:
    useless = random_table(VOCAB, LENGTH, 99)
    tokens, stats = run(ModelDrafter(3, model="m"), "coupled", SamplingParams(), useless)
    assert torch.equal(tokens, run(None, "coupled", SamplingParams(), useless)[0])
    assert stats.forwards <= LENGTH


def setup(vocab_size: int, opened: Any) -> DraftSetup:
    return DraftSetup(2, vocab_size, torch.device("cpu"), LENGTH, draft_target=opened)


def test_another_vocabulary_is_refused_with_both_sizes() -> None:
    """Fault 29, before the first forward."""
    with pytest.raises(ValueError, match=r"4.*28"):
        ModelDrafter(model="m").session(setup(28, open_draft(TABLE, 2)))


def test_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model"):
        ModelDrafter().session(setup(VOCAB, open_draft(TABLE, 2)))
    with pytest.raises(ValueError, match="model"):
        ModelDrafter(model="m").session(setup(VOCAB, None))
