"""Tree builders: fixed shapes, best-first selection, pruning and padding, against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw, ancestors
from mmspec.core.trees import (
    Candidates,
    TokenTree,
    best_static_paths,
    expected_length,
    joined_trees,
    prune,
    select_best,
    static_tree,
    top_children,
)


def test_static_tree_is_in_breadth_first_order() -> None:
    tree = static_tree([[0], [0, 0], [1], [0, 1], [0, 0, 0]])
    assert tree.parent == (0, 0, 0, 1, 1, 3)
    assert tree.rank == (0, 0, 1, 0, 1, 0)
    assert tree.depth == (0, 1, 1, 2, 2, 3)
    assert tree.level(2) == [3, 4]


def test_a_narrower_static_tree_keeps_the_first_paths() -> None:
    tree = static_tree([[0], [0, 0], [1], [0, 1], [0, 0, 0]], num_nodes=4)
    assert tree.parent == (0, 0, 0, 1)
    assert tree.rank == (0, 0, 1, 0)
    assert static_tree([[0]], num_nodes=1).num_nodes == 1


@pytest.mark.parametrize(
    ("paths", "message"),
    [([[1, 0]], r"\[1, 0\] before its parent \[1\]"), ([[0], [0]], "twice"), ([[]], "list of ranks"), ([[-1]], "-1"),
     ([["a"]], "'a'"), ([[True]], "True")],
)  # fmt: skip
def test_wrong_paths_are_refused(paths: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        static_tree(paths)


def path_product(path: tuple[int, ...], shares: list[list[float]]) -> float:
    return math.prod(shares[depth][rank] for depth, rank in enumerate(path))


def test_best_static_paths_are_the_largest_products() -> None:
    shares = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).tolist()
    every = [path for depth in (1, 2, 3) for path in itertools.product(range(4), repeat=depth)]
    every.sort(key=lambda path: -path_product(path, shares))
    assert [tuple(path) for path in best_static_paths(shares, 12)] == every[:11]
    assert static_tree(best_static_paths(shares, 12)).num_nodes == 12


def test_ranks_that_are_never_right_get_no_node() -> None:
    assert best_static_paths([[0.5, 0.0]], 9) == [[0]]


def grow(rows: int, widths: list[int], count: int, seed: int) -> Candidates:
    """Random levels: the best ``widths[d]`` candidates of a level get ``count`` children each. Token = candidate number."""
    generator = torch.Generator().manual_seed(seed)
    candidates = Candidates.of(torch.zeros(rows, dtype=torch.long))
    expanded = torch.zeros(rows, 1, dtype=torch.long)
    for width in widths:
        first = candidates.tokens.shape[1]
        tokens = torch.arange(first, first + expanded.shape[1] * count).view(1, -1, count).repeat(rows, 1, 1)
        edges = torch.rand(rows, expanded.shape[1], count, generator=generator).log()
        candidates = candidates.add_level(expanded, tokens, edges)
        expanded = candidates.best_of_level(width)
    return candidates


def brute_force(score: Tensor, parent: Tensor, size: int) -> float:
    """Largest sum of path products over all ancestor-closed sets of ``size`` candidates, the root included."""
    best = 0.0
    for chosen in itertools.combinations(range(1, len(score)), size - 1):
        inside = {0, *chosen}
        if all(int(parent[node]) in inside for node in chosen):
            best = max(best, float(score[list(chosen)].exp().sum()))
    return best


@pytest.mark.parametrize("size", [2, 4, 6])
def test_selection_is_the_best_closed_set(size: int) -> None:
    candidates = grow(rows=3, widths=[2, 2, 0], count=2, seed=1)
    tokens, _, valid = select_best(candidates, size)
    assert tokens.shape == (3, size)
    assert bool(valid.all())
    for row in range(3):
        total = float(candidates.score[row, tokens[row, 1:]].exp().sum())
        assert total == pytest.approx(brute_force(candidates.score[row], candidates.parent[row], size), rel=1e-5)


def test_selection_keeps_parents_tokens_and_the_order_of_siblings() -> None:
    candidates = grow(rows=4, widths=[3, 3, 3, 0], count=3, seed=2)
    tokens, parent, _ = select_best(candidates, 12)
    nodes = torch.arange(12)
    assert bool((parent[:, 1:] < nodes[1:]).all())
    assert torch.equal(tokens.gather(1, parent), candidates.parent.gather(1, tokens))
    assert bool((tokens[:, 1:] > tokens[:, :-1]).all())  # numbers grow by level, parent and rank


def test_rows_with_few_candidates_are_padded_with_invalid_nodes() -> None:
    candidates = Candidates.of(torch.tensor([7, 8]))
    edges = torch.tensor([[[-0.1, -torch.inf]], [[-0.1, -0.2]]])
    candidates = candidates.add_level(torch.zeros(2, 1, dtype=torch.long), torch.tensor([[[3, 4]], [[5, 6]]]), edges)
    tokens, parent, valid = select_best(candidates, 3)
    assert tokens.tolist() == [[7, 3, 0], [8, 5, 6]]
    assert valid.tolist() == [[True, True, False], [True, True, True]]
    assert parent.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_child_never_outscores_its_parent() -> None:
    candidates = Candidates.of(torch.tensor([0]))
    zero = torch.zeros(1, 1, dtype=torch.long)
    candidates = candidates.add_level(zero, torch.ones(1, 1, 1, dtype=torch.long), torch.full((1, 1, 1), 1e-7))
    assert float(candidates.score[0, 1]) == 0.0


def test_top_children_mark_what_does_not_exist() -> None:
    ranking = torch.tensor([[[0.0, -torch.inf, 2.0]]])
    tokens, edges = top_children(ranking, ranking.log_softmax(-1), 5)
    assert tokens[0, 0, :2].tolist() == [2, 0]
    assert edges[0, 0].isinf().tolist() == [False, False, True]


TREE = Draft(
    torch.tensor([[9, 1, 2, 3, 4, 5]]), DraftLaw.DETERMINISTIC, parent=torch.tensor([[0, 0, 0, 1, 1, 3]]),
    valid=torch.tensor([[True, True, True, True, False, True]]),
)  # fmt: skip


def test_pruning_takes_descendants_along_and_moves_the_rest_to_the_front() -> None:
    pruned = prune(TREE, torch.tensor([[False, True, False, True, True, True]]))
    assert pruned.tokens.tolist() == [[9, 1, 3, 5, 0, 0]]
    assert pruned.valid is not None
    assert pruned.parent is not None
    assert pruned.valid.tolist() == [[True, True, True, True, False, False]]
    assert pruned.parent.tolist() == [[0, 0, 1, 2, 0, 0]]
    cut = prune(TREE, torch.tensor([[True, False, True, True, True, True]]), num_nodes=3)
    assert cut.tokens.tolist() == [[9, 2, 0]]
    assert prune(TREE, torch.ones(1, 6, dtype=torch.bool), num_nodes=8).num_nodes == 8


def test_pruning_a_chain_cuts_it() -> None:
    chain = Draft(torch.tensor([[9, 1, 2, 3]]), DraftLaw.DETERMINISTIC)
    pruned = prune(chain, torch.tensor([[True, True, False, True]]))
    assert pruned.valid is not None
    assert pruned.valid.tolist() == [[True, True, False, False]]


def test_a_sampled_draft_is_not_pruned() -> None:
    chain = Draft(torch.zeros(1, 2, dtype=torch.long), DraftLaw.SAMPLED, log_q=torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="log_q"):
        prune(chain, torch.ones(1, 2, dtype=torch.bool))


def test_expected_length_sums_path_products() -> None:
    shares = torch.tensor([[1.0, 0.5, 0.25, 0.5, 0.0, 0.5]])
    assert TREE.parent is not None
    assert float(expected_length(shares.log(), TREE.parent)) == pytest.approx(0.5 + 0.25 + 0.25 + 0.0 + 0.125)


def test_joined_trees_know_their_relations() -> None:
    """Relations found on the host are those of the parents, padding included."""
    one, other = TokenTree(3), TokenTree(5)
    for above, token in ((0, 1), (0, 2), (1, 4), (3, 4)):
        one.add(above, token)
    other.add(0, 9)
    draft = joined_trees([one, other], torch.device("cpu"))
    assert draft.parent is not None
    assert draft.relations is not None
    assert torch.equal(draft.ancestors, ancestors(draft.parent))
    assert torch.equal(draft.depth, ancestors(draft.parent).sum(-1) - 1)
    assert draft.valid is not None
    assert draft.valid.sum(-1).tolist() == [5, 2]
