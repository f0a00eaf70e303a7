"""Draft shapes: the dynamic programme against brute force and against simulated frames."""

from __future__ import annotations

import itertools
import random

import pytest

from mmspec.core.trees import static_tree
from mmspec.speech.draft_shapes import DraftShapes, cut

BOOKS = 5


def prior_of(seed: int) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.uniform(0.1, 0.98) for _ in range(BOOKS - 1 - row)] for row in range(BOOKS - 1)]


def ranked(prior: list[list[float]]) -> list[list[list[float]]]:
    """The same shares, of first guesses."""
    return [[[share] for share in row] for row in prior]


def length(shapes: DraftShapes, filled: int) -> int:
    return max(shapes[filled].depth)


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
    shapes = DraftShapes(BOOKS, 30, node_cost, ranked(prior))
    lengths = [tree.num_nodes - 1 for tree in shapes.table]
    choices = [range(max(0, BOOKS - 1 - filled) + 1) for filled in range(1, BOOKS)]
    best = min(cost_of(choice, prior, node_cost) for choice in itertools.product(*choices))
    ours = cost_of(tuple(lengths[filled] for filled in range(1, BOOKS)), prior, node_cost)
    assert ours == pytest.approx(best)
    assert lengths[BOOKS - 1] == lengths[BOOKS] == 0  # the last code is a bonus, the next frame the talker's


@pytest.mark.parametrize("siblings", [1, 3])
def test_expected_calls_are_those_of_simulated_frames(siblings: int) -> None:
    rng = random.Random(1)
    prior = [[[share * 0.6 * 0.4**rank for rank in range(3)] for share in row] for row in prior_of(7)]
    shapes = DraftShapes(BOOKS, 12, 0.03, prior, siblings=siblings)
    assert (max(max(tree.rank) for tree in shapes.table) > 0) == (siblings > 1)
    calls, frames = 0, 20_000
    for _ in range(frames):
        filled = 1
        while filled < BOOKS:
            calls += 1
            filled += len(right_path(shapes, filled, prior, rng)) + 1
    assert calls / frames == pytest.approx(shapes.expected_calls(), rel=0.03)


def right_path(shapes: DraftShapes, filled: int, prior: list[list[list[float]]], rng: random.Random) -> list[int]:
    """Nodes of a draft that turn out to be right, when shares of ranks are those of ``prior``."""
    tree, path, node = shapes[filled], [], 0
    while tree.children[node]:
        shares = prior[filled - 1][len(path)]
        rank = rng.choices([*range(len(shares)), -1], [*shares, 1 - sum(shares)])[0]
        right = [child for child in tree.children[node] if tree.rank[child] == rank]
        if not right:
            break
        node = right[0]
        path.append(node)
    return path


def test_branches_save_calls() -> None:
    prior = [[[0.4, 0.3, 0.1]] * (BOOKS - 1 - row) for row in range(BOOKS - 1)]
    chains, trees = (DraftShapes(BOOKS, 20, 0.01, prior, siblings=siblings) for siblings in (1, 3))
    assert trees.expected_calls() < 0.9 * chains.expected_calls()
    assert max(max(tree.rank) for tree in trees.table) == 2
    assert max(tree.num_nodes for tree in trees.table) <= 21


def test_useless_drafts_are_given_up_and_useful_ones_come_back() -> None:
    shapes = DraftShapes(BOOKS, 30, 0.3)
    chain = static_tree([[0], [0, 0], [0, 0, 0]])
    for _ in range(400):
        shapes.observe(1, chain, [])
    assert length(shapes, 1) == 0
    for _ in range(400):
        shapes.observe(1, chain, [1, 2, 3])
    assert length(shapes, 1) == 3


def test_shares_are_learnt_by_rank() -> None:
    shapes = DraftShapes(BOOKS, 12, 0.05, siblings=2)
    tree = static_tree([[0], [1], [1, 0], [1, 1]])
    second, below = tree.children[0][1], tree.children[2]
    for _ in range(400):
        shapes.observe(2, tree, [second, below[0]])
    assert shapes.alpha[1][0] == pytest.approx([0.05, 1.0], abs=0.01)
    assert shapes.alpha[1][1] == pytest.approx([1.0, 0.005], abs=0.01)
    assert shapes.alpha[0][0] == [0.5, 0.15]  # other places are not touched
    assert shapes[2].rank[1] == 1  # the second guess comes first now


def test_a_tree_without_room_becomes_a_chain() -> None:
    assert cut(static_tree([[0], [1], [0, 0], [0, 0, 0]]), 2) == static_tree([[0], [0, 0]])


def test_no_draft_before_the_predictor_ran() -> None:
    assert length(DraftShapes(BOOKS, 30, 0.0, first=False), 1) == 0
    assert length(DraftShapes(BOOKS, 2, 0.0), 1) == 2


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="node_cost"):
        DraftShapes(BOOKS, 3, -1.0)
    with pytest.raises(ValueError, match="prior"):
        DraftShapes(BOOKS, 3, 0.1, [[[0.5]]])
