"""Draft lengths: the dynamic programme against brute force and against simulated frames."""

from __future__ import annotations

import itertools
import random

import pytest

from mmspec.speech.draft_lengths import DraftLengths

BOOKS = 5


def prior_of(seed: int) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.uniform(0.1, 0.98) for _ in range(BOOKS - 1 - row)] for row in range(BOOKS - 1)]


def cost_of(lengths: tuple[int, ...], prior: list[list[float]], node_cost: float) -> float:
    """Expected cost of a frame under fixed lengths, by summing over every outcome."""

    def rest(filled: int) -> float:
        if filled >= BOOKS:
            return 0.0
        count, reached = lengths[filled - 1], 1.0
        cost = 1 + node_cost * count
        for accepted in range(count):
            alpha = prior[filled - 1][accepted]
            cost += reached * (1 - alpha) * rest(filled + accepted + 1)
            reached *= alpha
        return cost + reached * rest(filled + count + 1)

    return rest(1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("node_cost", [0.0, 0.2, 0.6])
def test_table_is_optimal(seed: int, node_cost: float) -> None:
    prior = prior_of(seed)
    lengths = DraftLengths(BOOKS, 30, node_cost, prior)
    choices = [range(max(0, BOOKS - 1 - filled) + 1) for filled in range(1, BOOKS)]
    best = min(cost_of(choice, prior, node_cost) for choice in itertools.product(*choices))
    ours = cost_of(tuple(lengths[filled] for filled in range(1, BOOKS)), prior, node_cost)
    assert ours == pytest.approx(best)
    assert lengths[BOOKS - 1] == lengths[BOOKS] == 0  # the last code is a bonus, the next frame the talker's


def test_expected_calls_are_those_of_simulated_frames() -> None:
    prior, rng = prior_of(7), random.Random(1)
    lengths = DraftLengths(BOOKS, 30, 0.05, prior)
    calls, frames = 0, 20_000
    for _ in range(frames):
        filled = 1
        while filled < BOOKS:
            calls += 1
            accepted = 0
            while accepted < lengths[filled] and rng.random() < prior[filled - 1][accepted]:
                accepted += 1
            filled += accepted + 1
    assert calls / frames == pytest.approx(lengths.expected_calls(), rel=0.03)


def test_useless_drafts_are_given_up_and_useful_ones_come_back() -> None:
    lengths = DraftLengths(BOOKS, 30, 0.3)
    for _ in range(400):
        lengths.observe(1, 3, 0)
    assert lengths[1] == 0
    for _ in range(400):
        lengths.observe(1, 3, 3)
    assert lengths[1] == 3


def test_no_draft_before_the_predictor_ran() -> None:
    assert DraftLengths(BOOKS, 30, 0.0, first=False)[1] == 0
    assert DraftLengths(BOOKS, 2, 0.0)[1] == 2


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="node_cost"):
        DraftLengths(BOOKS, 3, -1.0)
    with pytest.raises(ValueError, match="prior"):
        DraftLengths(BOOKS, 3, 0.1, [[0.5]])
