"""Ancestors, depths and walks over trees equal their plain-Python definitions on random trees."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.core.draft import Draft, DraftLaw, ancestors
from mmspec.core.verify import (
    chain_verdict,
    descend,
    first_rejection,
    follow_on_device,
    follow_on_host,
    follow_target,
    residual,
)


@st.composite
def trees(draw: st.DrawFn, largest: int = 12, vocab_size: int = 3) -> Draft:
    """One random tree with small tokens, so that siblings are often equal, and some nodes that are not valid."""
    size = draw(st.integers(1, largest))
    parent = [0] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    tokens = [draw(st.integers(0, vocab_size - 1)) for _ in range(size)]
    valid = [True]
    for node in range(1, size):
        valid.append(valid[parent[node]] and draw(st.integers(0, 4)) > 0)
    return Draft(
        torch.tensor([tokens]), DraftLaw.DETERMINISTIC, parent=torch.tensor([parent]), valid=torch.tensor([valid])
    )


def root_path(parent: list[int], node: int) -> list[int]:
    path = [node]
    while path[0] != 0:
        path.insert(0, parent[path[0]])
    return path


@settings(max_examples=80, deadline=None)
@given(trees(largest=20))
def test_ancestors_and_depth_equal_the_walk_to_the_root(draft: Draft) -> None:
    parent = draft.parent[0].tolist()
    for node in range(draft.num_nodes):
        path = root_path(parent, node)
        assert draft.ancestors[0, node].nonzero()[:, 0].tolist() == sorted(path)
        assert int(draft.depth[0, node]) == len(path) - 1


def test_a_chain_of_parents_is_a_chain() -> None:
    for size in (1, 2, 3, 7, 64, 65):
        parent = (torch.arange(size) - 1).clamp_min(0)[None]
        tokens = torch.zeros(1, size, dtype=torch.long)
        tree, chain = (Draft(tokens, DraftLaw.DETERMINISTIC, parent=p) for p in (parent, None))
        assert torch.equal(tree.ancestors, chain.ancestors)
        assert torch.equal(tree.depth, chain.depth)


def test_rows_of_a_batch_have_their_own_trees() -> None:
    parent = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 2]])
    both = ancestors(parent)
    for row in range(2):
        assert torch.equal(both[row], ancestors(parent[row : row + 1])[0])


@settings(max_examples=150, deadline=None)
@given(trees(), st.data())
def test_descend_finds_the_deepest_node_with_an_accepted_path(draft: Draft, data: st.DataObject) -> None:
    size, parent = draft.num_nodes, draft.parent[0].tolist()
    accepted = [data.draw(st.booleans()) for _ in range(size)]
    valid = draft.valid[0].tolist()
    reached = [
        node for node in range(size) if all(accepted[n] and valid[n] for n in root_path(parent, node) if n != 0)
    ]
    deepest = max(len(root_path(parent, node)) for node in reached)
    expected = next(node for node in reached if len(root_path(parent, node)) == deepest)
    best, depth, path = descend(draft, torch.tensor([accepted]))
    assert int(best) == expected
    assert int(depth) == deepest - 1
    walk = root_path(parent, expected)
    assert path[0].tolist() == walk + [expected] * (size - len(walk))


@settings(max_examples=150, deadline=None)
@given(trees(), st.data())
def test_follow_target_commits_the_targets_own_choices(draft: Draft, data: st.DataObject) -> None:
    """Duplicate siblings included: whichever twin is followed, the committed tokens are the choices along the path."""
    size, parent = draft.num_nodes, draft.parent[0].tolist()
    # nodes with the same token history are the same prefix, so a target chooses the same token after them
    history = [tuple(int(draft.tokens[0, n]) for n in root_path(parent, node)) for node in range(size)]
    choice_of = {past: data.draw(st.integers(0, 2)) for past in sorted(set(history))}
    chosen = torch.tensor([[choice_of[past] for past in history]])
    verdict = follow_target(draft, chosen)
    expected, past = [], (int(draft.tokens[0, 0]),)
    prefixes = {history[n] for n in range(size) if draft.valid[0, n]}
    while past in prefixes:
        expected.append(choice_of[past])
        past = (*past, expected[-1])
    count = int(verdict.num_accepted) + 1
    assert verdict.tokens[0, :count].tolist() == expected[:count]
    assert int(verdict.next_token) == expected[count - 1]
    if len(prefixes) == int(draft.valid.sum()):  # no twins: nothing that matches is left out
        assert count == len(expected)
    assert verdict.path[0, :count].tolist() == root_path(parent, int(verdict.path[0, -1]))


@settings(max_examples=60, deadline=None)
@given(trees(), st.data())
def test_the_host_and_the_device_follow_alike(draft: Draft, data: st.DataObject) -> None:
    size = draft.tokens.numel()
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))).view_as(draft.tokens)
    ours, theirs = follow_on_host(draft, chosen), follow_on_device(draft, chosen)
    assert torch.equal(ours.num_accepted, theirs.num_accepted)
    assert torch.equal(ours.next_token, theirs.next_token)
    assert ours.path is not None
    assert theirs.path is not None
    assert torch.equal(ours.path, theirs.path)
    for row, accepted in enumerate(ours.num_accepted.tolist()):
        assert torch.equal(ours.tokens[row, : accepted + 1], theirs.tokens[row, : accepted + 1])


def test_twins_with_different_children_do_not_hide_each_other() -> None:
    """Two equal siblings, only the second of which has the right child: its longer path is taken."""
    draft = Draft(torch.tensor([[9, 4, 4, 7, 5]]), DraftLaw.DETERMINISTIC, parent=torch.tensor([[0, 0, 0, 1, 2]]))
    verdict = follow_target(draft, torch.tensor([[4, 5, 5, 0, 6]]))
    assert verdict.path[0].tolist() == [0, 2, 4, 4, 4]
    assert verdict.tokens[0, :3].tolist() == [4, 5, 6]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=0, max_size=8))
def test_first_rejection_counts_the_accepted_prefix(verdicts: list[tuple[bool, bool]]) -> None:
    accepted = torch.tensor([[a for a, _ in verdicts]], dtype=torch.bool).reshape(1, -1)
    valid = torch.tensor([[v for _, v in verdicts]], dtype=torch.bool).reshape(1, -1)
    expected = 0
    while expected < len(verdicts) and all(verdicts[expected]):
        expected += 1
    assert int(first_rejection(accepted, valid)) == expected


def test_chain_verdict_joins_prefix_and_correction() -> None:
    draft = Draft(torch.tensor([[1, 2, 3], [1, 2, 3]]), DraftLaw.DETERMINISTIC)
    verdict = chain_verdict(draft, torch.tensor([0, 2]), torch.tensor([8, 9]))
    assert verdict.tokens[0, :1].tolist() == [8]
    assert verdict.tokens[1].tolist() == [2, 3, 9]


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 8), st.integers(0, 1 << 30))
def test_residual_completes_the_law(size: int, seed: int) -> None:
    """min(p, q) + (1 - sum of it) * residual is p: what makes the ratio test exact."""
    generator = torch.Generator().manual_seed(seed)
    p, q = torch._standard_gamma(torch.full((2, size), 0.5, dtype=torch.float64), generator)
    p[0] *= seed % 2
    p, q = p / p.sum(), q / q.sum()
    weights = residual(p, q)
    assert bool((weights >= 0).all())
    overlap = torch.minimum(p, q)
    rebuilt = overlap + (1 - overlap.sum()) * weights / weights.sum()
    torch.testing.assert_close(rebuilt, p, atol=1e-9, rtol=1e-9)


def test_residual_of_equal_laws_is_the_law() -> None:
    law = torch.tensor([0.2, 0.8])
    assert torch.equal(residual(law, law), law)
