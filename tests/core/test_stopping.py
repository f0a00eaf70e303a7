"""A row ends inside the committed run: nothing after a stop token or beyond the budget is ever kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.core.controllers import FixedController
from mmspec.core.loop import SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import FinishReason, Stopping
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import ScriptedSession
from tests.oracles.toy import TableTarget, random_table

LENGTH = 12


def target(rows: int) -> TableTarget:
    """A law per prefix for the first four tokens, uniform afterwards."""
    return TableTarget(random_table(5, 4), 4, rows)


class CyclicTarget(TableTarget):
    """Deterministic: token t of every row is ``t % 5``, so that stops can be placed anywhere."""

    def __init__(self, rows: int) -> None:
        super().__init__(torch.zeros(1, 5), 1, rows)

    def logits(self, index: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(depth % 5, 5).float() * 50


def test_truncate_cuts_at_the_first_stop_token() -> None:
    tokens = torch.tensor([[4, 9, 4, 9], [9, 1, 1, 1], [1, 1, 1, 9], [1, 1, 1, 1]])
    kept, reason = Stopping(100, (9,)).truncate(tokens, torch.tensor([4, 4, 3, 4]), torch.zeros(4, dtype=torch.long))
    assert kept.tolist() == [2, 1, 3, 4]  # the 9 of row 2 lies behind what was committed
    assert [FinishReason(r) for r in reason.tolist()] == [
        FinishReason.STOP, FinishReason.STOP, FinishReason.RUNNING, FinishReason.RUNNING
    ]  # fmt: skip


def test_truncate_spends_the_budget_exactly() -> None:
    tokens = torch.ones(3, 5, dtype=torch.long)
    kept, reason = Stopping(10).truncate(tokens, torch.full((3,), 5), torch.tensor([3, 5, 8]))
    assert kept.tolist() == [5, 5, 2]
    assert reason.tolist() == [FinishReason.RUNNING, FinishReason.LENGTH, FinishReason.LENGTH]


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    kept, reason = Stopping(3, (7,)).truncate(torch.tensor([[5, 7, 7]]), torch.tensor([3]), torch.tensor([1]))
    assert (kept.tolist(), reason.tolist()) == ([2], [FinishReason.STOP])


def test_reaching_a_fixed_length_is_completion() -> None:
    _, reason = Stopping(3, fixed_length=True).truncate(torch.zeros(1, 3).long(), torch.tensor([3]), torch.tensor([0]))
    assert reason.tolist() == [FinishReason.COMPLETE]


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_below_one_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match=str(budget)):
        Stopping(budget)


@pytest.mark.parametrize("place", range(10))
def test_stop_inside_a_right_draft_ends_the_row_there(place: int) -> None:
    """Fault 01: the whole output is known to the drafter, the stop token lies at every place of a block of 8."""
    plain, _ = decode(target(6), seeds(6), LENGTH)
    for row in range(6):
        stop = int(plain[row, place])
        first = plain[row].tolist().index(stop)
        tokens, stats = decode(target(6), seeds(6), LENGTH, ScriptedSession(plain), width=8, stop_tokens=(stop,))
        assert stats.rows[row].tokens == first + 1
        assert stats.rows[row].finish_reason == "stop"
        assert tokens[row, : first + 1].tolist() == plain[row, : first + 1].tolist()
        assert not tokens[row, first + 1 :].any()


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7])
def test_budget_is_exact_although_the_block_is_longer(budget: int) -> None:
    """Faults 02 and 72."""
    plain, _ = decode(target(4), seeds(4), LENGTH)
    tokens, stats = decode(target(4), seeds(4), budget, ScriptedSession(plain), width=8)
    assert tokens.shape == (4, budget)
    assert torch.equal(tokens, plain[:, :budget])
    assert [row.tokens for row in stats.rows] == [budget] * 4
    assert stats.finish_reasons == ["length"] * 4


def test_rows_with_their_own_budgets_end_as_alone() -> None:
    """Every row of a batch is cut at its own budget, also one that a relaxed rule fills with its draft."""
    plain, _ = decode(target(5), seeds(5), LENGTH)
    budgets = (1, 3, 12, 7, 5)
    other = (plain + 1) % 5
    for script in (plain, torch.where(torch.arange(LENGTH) % 3 == 2, other, plain)):
        for rule in (None, LikelihoodAcceptance("abs", 0.05)):
            stopping = Stopping(LENGTH, row_budgets=budgets)
            together, stats = run_with(stopping, script, rule, range(5))
            assert [row.tokens for row in stats.rows] == list(budgets)
            assert stats.finish_reasons == ["length"] * 5
            for row, budget in enumerate(budgets):
                alone, _ = run_with(Stopping(budget), script, rule, [row])
                assert together[row, :budget].tolist() == alone[0].tolist()
                if rule is None:
                    assert together[row, :budget].tolist() == plain[row, :budget].tolist()


def run_with(
    stopping: Stopping, script: torch.Tensor, rule: Any, rows: Iterable[int]
) -> tuple[torch.Tensor, DecodeStats]:
    """Decode some of five rows with drafts of ``script``."""
    chosen, stats = list(rows), DecodeStats()
    decoder = SpeculativeDecoder(
        target(len(chosen)), ScriptedSession(script[chosen]), rule or CoupledAcceptance(), FixedController(8),
        RowNoise(seeds(5)[chosen], 5), SamplingParams(), stopping, stats,
    )  # fmt: skip
    *_, progress = decoder.steps()
    return progress.tokens, stats


def test_row_budgets_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Stopping(3, row_budgets=(3, 0))
    with pytest.raises(ValueError, match="largest"):
        Stopping(5, row_budgets=(3, 4))
    with pytest.raises(ValueError, match="2 `row_budgets` for 3 rows"):
        Stopping(3, row_budgets=(3, 1)).budgets(3, torch.device("cpu"))


def test_stop_as_the_very_first_token_ends_after_the_prefill() -> None:
    tokens, stats = decode(CyclicTarget(2), seeds(2), 6, stop_tokens=(0,))
    assert stats.forwards == 1
    assert [row.tokens for row in stats.rows] == [1, 1]
    assert not tokens.any()


def test_rows_that_stop_early_leave_the_batch_and_the_others_go_on() -> None:
    plain, _ = decode(target(40), seeds(40), LENGTH)
    for drafter in (None, ScriptedSession(plain)):
        tokens, stats = decode(target(40), seeds(40), LENGTH, drafter, width=4, stop_tokens=(2,))
        for row in range(40):
            expected = plain[row].tolist()
            expected = expected[: expected.index(2) + 1] if 2 in expected else expected
            assert tokens[row, : len(expected)].tolist() == expected
            assert stats.rows[row].tokens == len(expected)


def test_several_stop_tokens_and_greedy() -> None:
    tokens, stats = decode(CyclicTarget(1), seeds(1), 9, stop_tokens=(3, 4), sampling=SamplingParams(temperature=0))
    assert tokens[0, :4].tolist() == [0, 1, 2, 3]
    assert stats.finish_reasons == ["stop"]


def test_a_drafters_filler_that_equals_the_stop_token_does_not_stop() -> None:
    """Fault 03: the rejected rest of the draft is full of stop tokens, which the target never makes."""
    script = torch.full((1, 9), 4)
    tokens, stats = decode(CyclicTarget(1), seeds(1), 4, ScriptedSession(script), width=8, stop_tokens=(4,))
    assert tokens.tolist() == [[0, 1, 2, 3]]
    assert stats.finish_reasons == ["length"]
