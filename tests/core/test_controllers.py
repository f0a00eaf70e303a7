"""Widths: never above the limit, the best of the measured curve, and 1 where nothing pays."""

from __future__ import annotations

import random

import pytest
import torch

from mmspec.core.controllers import (
    WIDTHS,
    AIMDController,
    Controller,
    CostAwareController,
    CostCurve,
    FixedController,
    RoundReport,
)
from mmspec.drafters.base import make_controller
from mmspec.drafters.jacobi import JacobiDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, random_table

OVERHEAD = 3e-4


def simulate(
    controller: Controller, cost: dict[int, float], alpha: float, rounds: int, seed: int = 0
) -> tuple[list[int], float, float]:
    """Run against a machine with ``cost`` seconds a width and acceptance ``alpha`` a token: widths, seconds, tokens."""
    generator = random.Random(seed)
    widths, seconds, tokens = [], 0.0, 0.0
    for _ in range(rounds):
        width = controller.plan(1000, 1)
        emitted = 1
        while emitted < width and generator.random() < alpha:
            emitted += 1
        controller.observe(RoundReport(width, [emitted], cost[width]))
        widths.append(width)
        seconds += cost[width] + OVERHEAD
        tokens += emitted
    return widths, seconds, tokens


def expected_rate(width: int, cost: dict[int, float], alpha: float) -> float:
    return sum(alpha**i for i in range(width)) / (cost[width] + OVERHEAD)


def cost_aware(cost: dict[int, float], prior: dict[int, float] | None = None) -> CostAwareController:
    """A controller that knows the machine's costs, as :meth:`SpecPipeline.measure_costs` provides them."""
    costs = CostCurve()
    for width, seconds in cost.items():
        costs.add(1, width, seconds)
    return CostAwareController(costs, prior or {1: 1.0, 64: 5.0}, overhead=OVERHEAD)


MACHINES = {
    "flat": dict.fromkeys(WIDTHS, 0.01),  # memory bound: width is free
    "linear": {w: 0.004 + 0.002 * w for w in WIDTHS},
    "steep": {w: 0.01 * w for w in WIDTHS},  # compute bound: width costs in full
    "cliff": {w: 0.01 if w <= 8 else 0.2 for w in WIDTHS},
}


def test_fixed_is_clipped_by_the_limit() -> None:
    controller = FixedController(8)
    assert [controller.plan(limit, 1) for limit in (100, 8, 3, 1)] == [8, 8, 3, 1]


def test_aimd_widens_by_two_and_narrows_by_one() -> None:
    controller = AIMDController(width=6, largest=9)
    widths = []
    for emitted in (6, 8, 2, 1, 1):
        controller.observe(RoundReport(controller.plan(100, 1), [emitted], 0.01))
        widths.append(controller.plan(100, 1))
    assert widths == [8, 9, 8, 7, 6]


def test_aimd_keeps_drafting_something() -> None:
    controller = AIMDController(width=3)
    for _ in range(10):
        controller.observe(RoundReport(controller.plan(100, 1), [1], 0.01))
    assert controller.plan(100, 1) == 2


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.9])
def test_cost_aware_with_a_measured_prior_finds_a_width_as_good_as_the_best(machine: str, alpha: float) -> None:
    cost = MACHINES[machine]
    prior = {w: sum(alpha**i for i in range(w)) for w in WIDTHS}
    widths, _, _ = simulate(cost_aware(cost, prior), cost, alpha, rounds=400)
    best = max(expected_rate(w, cost, alpha) for w in WIDTHS)
    late = widths[-50:]
    reached = sum(expected_rate(w, cost, alpha) for w in late) / len(late)
    assert reached > 0.93 * best


@pytest.mark.parametrize("alpha", [0.6, 0.9])
def test_cost_aware_leaves_plain_decoding_whatever_it_starts_with(alpha: float) -> None:
    """A prior that foresees next to nothing at small widths, on a machine where width costs much."""
    cost = {w: 0.004 + 0.002 * w for w in WIDTHS}
    _, seconds, tokens = simulate(cost_aware(cost, {1: 1.0, 64: 5.0}), cost, alpha, rounds=400)
    best = max(expected_rate(w, cost, alpha) for w in WIDTHS)
    assert tokens / seconds > 0.8 * best  # the time it took to find out included


def test_cost_aware_picks_the_right_side_of_a_cliff() -> None:
    widths, _, _ = simulate(cost_aware(MACHINES["cliff"]), MACHINES["cliff"], alpha=0.95, rounds=300)
    assert widths[-50:].count(8) >= 45


@pytest.mark.parametrize("machine", ["linear", "steep"])  # elsewhere some width costs no more than plain decoding
def test_cost_aware_falls_back_to_plain_decoding_when_nothing_is_accepted(machine: str) -> None:
    widths, _, _ = simulate(cost_aware(MACHINES[machine]), MACHINES[machine], alpha=0.0, rounds=300)
    assert widths[-100:].count(1) >= 90  # the rest are trials


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9])
def test_cost_aware_is_never_slower_than_plain_decoding_but_for_the_trials(machine: str, alpha: float) -> None:
    cost = MACHINES[machine]
    rounds = 2000
    widths, seconds, tokens = simulate(cost_aware(cost), cost, alpha, rounds)
    plain = tokens * (cost[1] + OVERHEAD)
    assert seconds < 1.03 * plain, (seconds / plain, {w: widths.count(w) for w in set(widths)})


@pytest.mark.parametrize(("drafting", "pays"), [(0.0, True), (0.005, True), (0.08, False)])
def test_cost_aware_counts_the_time_that_drafting_takes(drafting: float, pays: bool) -> None:
    """Five tokens a forward are worth a draft that takes half a forward, not one that takes eight."""
    controller = cost_aware(MACHINES["flat"])
    widths = []
    for _ in range(60):
        width = controller.plan(1000, 1)
        widths.append(width)
        controller.observe(RoundReport(width, [1 if width == 1 else 5], 0.01, drafting if width > 1 else 0.0))
    assert (sum(width > 1 for width in widths[10:]) > 25) == pays
    assert controller.drafting(1, 1) == 0.0
    assert controller.drafting(64, 1) == drafting


def test_cost_aware_respects_the_limit_also_where_nothing_is_known() -> None:
    for limit in (1, 2, 3, 5, 63, 64, 1000):
        assert 1 <= cost_aware({}).plan(limit, 1) <= limit
    controller = cost_aware(MACHINES["flat"])
    simulate(controller, MACHINES["flat"], 0.9, rounds=50)
    for limit in (1, 2, 3, 5, 63):
        assert 1 <= controller.plan(limit, 1) <= limit


def test_costs_are_shared_between_calls_by_batch_size() -> None:
    costs = CostCurve()
    costs.add(1, 8, 0.5)
    costs.add(4, 8, 0.9)
    assert (costs.get(1, 8), costs.get(4, 8), costs.get(1, 4)) == (0.5, 0.9, None)
    assert costs.get(7, 8) == 0.9  # the nearest batch size that was measured
    assert [costs.covers(rows) for rows in (1, 2, 8, 9)] == [True, True, True, False]


def test_cost_is_the_median_of_the_recent_ones() -> None:
    costs = CostCurve(kept=3)
    for seconds in (0.1, 0.5, 0.4, 0.6):
        costs.add(1, 8, seconds)
    assert costs.get(1, 8) == 0.5
    assert len(costs.seconds[1, 8]) == 3


def test_unknown_costs_mean_plain_decoding() -> None:
    assert cost_aware({}).plan(64, 1) == 1


def test_prior_is_interpolated() -> None:
    controller = cost_aware({}, {8: 3.0})
    tokens = {w: controller.expected(w) for w in (1, 4, 8, 64)}
    assert tokens[1] == 1.0
    assert tokens[4] == pytest.approx(1 + 2 * 3 / 7)
    assert tokens[8] == tokens[64] == 3.0


@pytest.mark.parametrize("kind", ["aimd", "cost-aware", "fixed"])
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_controllers_never_exceed_the_drafters_window(kind: str, width: int) -> None:
    controller = make_controller(kind, width, CostCurve(), None)
    for _ in range(30):
        planned = controller.plan(1000, 1)
        assert 1 <= planned <= width
        controller.observe(RoundReport(planned, [planned, planned], 0.01))


@pytest.mark.parametrize("kind", ["aimd", "cost-aware", "fixed"])
def test_the_controller_never_changes_a_token(kind: str) -> None:
    table = random_table(4, 5)
    plain, _ = decode(TableTarget(table, 5, 64), seeds(64), 5)
    tokens, _ = decode(TableTarget(table, 5, 64), seeds(64), 5, JacobiDrafter(window=16, controller=kind))
    assert torch.equal(tokens, plain)
