"""Draft trees: fixed shapes, and best-first selection among candidates that a drafter grows level by level.

For edges that are accepted with probability a, the tree of N nodes with the most accepted tokens holds the N nodes with
the largest products of a along their paths. Products never grow with depth, so those nodes are closed under ancestors.
Static trees fix the shape beforehand (Cai et al., 2024, "Medusa"); dynamic ones take the drafter's own probabilities
for a, expand the best few nodes of each level and keep the best of all (Li et al., 2024, "EAGLE-2").

Symbols: B rows, M candidates with the root, W expanded nodes of a level, k children each, N nodes of the draft.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw, ancestors

_WORD = 62  # nodes whose relations fit into an integer


@dataclass(frozen=True)
class StaticTree:
    """A fixed tree in breadth-first order, node 0 the root.

    Attributes:
        parent: Parent of each node; ``parent[0] == 0`` and ``parent[n] < n``.
        rank: Which candidate of its parent each node takes, 0 the best; 0 for the root.
        depth: Distance of each node from the root.
    """

    parent: tuple[int, ...]
    rank: tuple[int, ...]
    depth: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.parent)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, in order."""
        found: list[list[int]] = [[] for _ in self.parent]
        for node, above in enumerate(self.parent[1:], start=1):
            found[above].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many nodes each level has, the root's first."""
        return tuple(self.depth.count(depth) for depth in range(max(self.depth) + 1))

    def level(self, depth: int) -> list[int]:
        """The nodes at ``depth``."""
        return [node for node, level in enumerate(self.depth) if level == depth]


def static_tree(paths: Sequence[Sequence[int]], num_nodes: int | None = None) -> StaticTree:
    """The tree whose nodes are named by the ranks along their paths, such as ``[[0], [1], [0, 0]]``.

    Args:
        paths: One path of ranks (0 is the best candidate) a node; a parent before its children.
        num_nodes: Keep the first ``num_nodes - 1`` paths only.

    Raises:
        ValueError: If a path is empty, negative, given twice, or comes before its parent.
    """
    known: dict[tuple[int, ...], int] = {(): 0}
    for path in paths:
        key = tuple(path)
        if not key or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 for rank in key):
            raise ValueError(f"A path of a tree is a list of ranks, 0 for the best candidate; got {list(path)!r}.")
        if key in known:
            raise ValueError(f"The tree names the path {list(key)} twice.")
        if key[:-1] not in known:
            raise ValueError(f"The tree names {list(key)} before its parent {list(key[:-1])}.")
        known[key] = len(known)
    kept = list(known)[:num_nodes]
    ordered = sorted(kept, key=lambda path: (len(path), path))
    place = {path: node for node, path in enumerate(ordered)}
    return StaticTree(
        parent=tuple(place[path[:-1]] for path in ordered),
        rank=tuple(path[-1] if path else 0 for path in ordered),
        depth=tuple(len(path) for path in ordered),
    )


def best_static_paths(acceptance: Sequence[Sequence[float]], num_nodes: int) -> list[list[int]]:
    """The paths with the largest products of measured acceptance, best first, as :func:`static_tree` takes them.

    Args:
        acceptance: Entry (d, r) is the share of rounds in which the candidate of rank r at depth d + 1 was right, given
            that its parent was.
        num_nodes: Nodes of the tree, root included.
    """
    paths: list[list[int]] = []
    heap: list[tuple[float, int, tuple[int, ...]]] = [(-p, 1, (r,)) for r, p in enumerate(acceptance[0]) if p > 0]
    heapq.heapify(heap)
    while heap and len(paths) < num_nodes - 1:
        value, depth, path = heapq.heappop(heap)
        paths.append(list(path))
        if depth < len(acceptance):
            for rank, share in enumerate(acceptance[depth]):
                if share > 0:
                    heapq.heappush(heap, (value * share, depth + 1, (*path, rank)))
    return paths


@dataclass
class Candidates:
    """Candidates of all levels so far, entry 0 the root.

    Attributes:
        tokens: Token ids (B, M).
        parent: Candidate that each one follows (B, M).
        score: Log of the product of the edges' acceptance along the path (B, M); -inf for what does not exist.
        start: First candidate of the newest level.
    """

    tokens: Tensor
    parent: Tensor
    score: Tensor
    start: int = 0

    @classmethod
    def of(cls, root: Tensor) -> Candidates:
        """The ``root`` (B,) alone."""
        zeros = torch.zeros_like(root)[:, None]
        return cls(root[:, None], zeros, zeros.float())

    def add_level(self, expanded: Tensor, tokens: Tensor, edges: Tensor) -> Candidates:
        """Add the children ``tokens`` (B, W, k) of the candidates ``expanded`` (B, W), log-acceptances ``edges``."""
        count = tokens.shape[2]
        parent = expanded.repeat_interleave(count, dim=1)
        # rounding must not lift a child above its parent, which selection relies on
        score = self.score.gather(1, parent) + edges.flatten(1).clamp_max(0)
        return Candidates(
            torch.cat([self.tokens, tokens.flatten(1)], dim=1),
            torch.cat([self.parent, parent], dim=1),
            torch.cat([self.score, score], dim=1),
            start=self.tokens.shape[1],
        )

    def best_of_level(self, width: int) -> Tensor:
        """The ``width`` candidates of the newest level with the highest scores (B, W), in the order of the level."""
        newest = self.score[:, self.start :]
        order = newest.sort(dim=1, descending=True, stable=True).indices[:, :width]
        return order.sort(dim=1).values + self.start


def top_children(ranking: Tensor, log_acceptance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` best tokens after each node.

    Args:
        ranking: What orders the tokens (B, W, V).
        log_acceptance: Log-probability that each token is the one (B, W, V).

    Returns:
        Tokens, best first, and their log-acceptances, -inf where the ranking is; both (B, W, k).
    """
    best = ranking.topk(min(count, ranking.shape[-1]), dim=-1)
    edges = log_acceptance.gather(-1, best.indices)
    return best.indices, edges.masked_fill(best.values == -torch.inf, -torch.inf)


def select_best(candidates: Candidates, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best tree of ``num_nodes`` nodes, as tokens, parents and validity, each (B, N).

    Parents come before children and siblings stay in the order in which they were added. Rows that have fewer
    candidates are filled with invalid nodes below the root.
    """
    order = candidates.score[:, 1:].sort(dim=1, descending=True, stable=True).indices[:, : num_nodes - 1] + 1
    order = order.sort(dim=1).values
    valid = candidates.score.gather(1, order) > -torch.inf
    order = torch.nn.functional.pad(order, (1, 0))
    valid = torch.nn.functional.pad(valid, (1, 0), value=True)
    count = torch.arange(order.shape[1], device=order.device).expand_as(order)
    place = torch.zeros_like(candidates.parent).scatter_(1, order, count)
    parent = place.gather(1, candidates.parent.gather(1, order))
    tokens = candidates.tokens.gather(1, order)
    return tokens.where(valid, 0), parent.where(valid, 0), valid


def prune(draft: Draft, keep: Tensor, num_nodes: int | None = None) -> Draft:
    """Keep the nodes ``keep`` (B, N) all of whose ancestors are kept too, moved to the front.

    Args:
        draft: A tree or a chain.
        keep: What to keep; the root always is.
        num_nodes: Nodes of the result, by default as many as ``draft`` has; rows with fewer are padded with invalid
            nodes below the root, of rows with more the last ones go.

    Raises:
        ValueError: If the draft carries ``log_q``. Dropping sampled tokens by what they are would bias any rule that
            reads it.
    """
    if draft.log_q is not None:
        raise ValueError("A sampled draft cannot be pruned by its tokens: its `log_q` would no longer be their law.")
    size = draft.num_nodes
    count = torch.arange(size, device=keep.device)
    parent = (count - 1).clamp_min(0).expand(len(keep), -1) if draft.parent is None else draft.parent
    keep = keep if draft.valid is None else keep & draft.valid
    keep = keep.index_fill(1, keep.new_zeros(1, dtype=torch.long), True)
    keep = ~(ancestors(parent) & ~keep[:, None]).any(-1)
    order = (~keep).long().sort(dim=1, stable=True).indices
    place = torch.zeros_like(order).scatter_(1, order, count.expand_as(order))
    valid = keep.gather(1, order)
    moved = place.gather(1, parent.gather(1, order))
    total = num_nodes or size
    fill = max(0, total - size)
    tokens, moved, valid = (
        torch.nn.functional.pad(part, (0, fill))[:, :total]
        for part in (draft.tokens.gather(1, order), moved.where(valid, 0), valid)
    )
    return replace(draft, tokens=tokens.where(valid, 0), parent=moved, valid=valid)


Shape = tuple[list[int], list[int], list[int]]
"""Parent, depth and candidate of each node of a tree, the root first, a parent before its children."""


def marginal_tree(edges: Sequence[Sequence[float]], num_nodes: int) -> Shape:
    """The best tree where the tokens of a depth do not depend on those before them: n best prefixes of a product of laws.

    Best-first is exact, since scores never grow along a path (block drafters: Ringel, 2026, "DDTree"). Ties go to the
    node that was reached first.

    Args:
        edges: Log-acceptance of the candidate of rank r at depth d + 1 as entry (d, r), best first, at most 0.
        num_nodes: Most nodes, root included.

    Returns:
        The tree; a node's candidate is its rank.
    """
    ranked = [list(zip(level, range(len(level)), strict=True)) for level in edges]
    return _best_first(lambda depth, _: ranked[depth] if depth < len(ranked) else [], num_nodes)


def conditional_tree(
    first: Sequence[float], transitions: Sequence[Sequence[Sequence[float]]], num_nodes: int
) -> Shape:
    """The best tree where a token depends on the one before it (as in DSpark, arXiv 2607.05147).

    Args:
        first: Log-acceptance of each candidate of depth 1, at most 0.
        transitions: Entry (d, i, j) is the log-acceptance of candidate j of depth d + 2 behind candidate i of depth d + 1.
        num_nodes: Most nodes, root included.
    """
    ranked: dict[tuple[int, int], list[tuple[float, int]]] = {}

    def children(depth: int, candidate: int) -> list[tuple[float, int]]:
        if depth > len(transitions):
            return []
        key = depth, candidate
        if key not in ranked:
            edges = first if depth == 0 else transitions[depth - 1][candidate]
            # the sort is stable: of equals the lower candidate comes first
            ranked[key] = sorted(zip(edges, range(len(edges)), strict=True), key=lambda edge: -edge[0])
        return ranked[key]

    return _best_first(children, num_nodes)


def _best_first(children: Callable[[int, int], Sequence[tuple[float, int]]], num_nodes: int) -> Shape:
    """Grow the node with the highest score until there are enough.

    Args:
        children: ``(depth, candidate) -> log-acceptances and candidates`` of what follows such a node, best first.
    """
    parent, depth, chosen = [0], [0], [0]
    lost, order = -float("inf"), 0
    heap: list[tuple[float, int, float, int, int, Sequence[tuple[float, int]], int]] = []

    def push(above: float, node: int, level: int, among: Sequence[tuple[float, int]], place: int) -> None:
        nonlocal order
        if place < len(among) and among[place][0] > lost:
            heapq.heappush(heap, (-(above + among[place][0]), order, above, node, level, among, place))
            order += 1

    push(0.0, 0, 1, children(0, 0), 0)
    while heap and len(parent) < num_nodes:
        cost, _, above, node, level, among, place = heapq.heappop(heap)
        parent.append(node)
        depth.append(level)
        chosen.append(among[place][1])
        push(above, node, level, among, place + 1)
        push(-cost, len(parent) - 1, level + 1, children(level, chosen[-1]), 0)
    return parent, depth, chosen


def expected_length(log_acceptance: Tensor, parent: Tensor) -> Tensor:
    """Expected accepted draft tokens (B,) of trees whose edges are accepted with these log-probabilities (B, N)."""
    edges = log_acceptance.index_fill(1, torch.zeros(1, dtype=torch.long, device=parent.device), 0.0)
    # a sum over the path, in which 0 * -inf must not arise
    paths = torch.where(ancestors(parent), edges[:, None], 0.0).sum(-1)
    return paths[:, 1:].exp().sum(-1)


class TokenTree:
    """A tree of one row while it grows on the host. Siblings with the same token are one node.

    Attributes:
        tokens, parents: Token and parent of each node, the root first, a parent before its children.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents = [root], [0]
        self._children: dict[tuple[int, int], int] = {}

    def add(self, above: int, token: int) -> int:
        """The child ``token`` of the node ``above``, added unless it is there."""
        node = self._children.setdefault((above, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(above)
        return node


def joined_trees(trees: Sequence[TokenTree], device: torch.device) -> Draft:
    """Trees of the rows as one draft of chosen tokens."""
    most = max(len(tree.tokens) for tree in trees)
    rows = [[part + [0] * (most - len(part)) for part in (tree.tokens, tree.parents)] for tree in trees]
    tokens, parent = torch.tensor(rows, device=device).unbind(1)
    relations = _relations([parents for _, parents in rows], device) if most <= _WORD else None
    count = torch.tensor([len(tree.tokens) for tree in trees], device=device)
    valid = torch.arange(most, device=device) < count[:, None]
    return Draft(tokens, DraftLaw.DETERMINISTIC, parent=parent, valid=valid, relations=relations)


def _relations(parents: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ancestors (B, N, N) and depths (B, N) of trees that are known on the host, where a path is a word of bits."""
    paths, depths = [], []
    for row in parents:
        path, depth = [1], [0]
        for node, above in enumerate(row[1:], start=1):
            path.append(path[above] | 1 << node)
            depth.append(depth[above] + 1)
        paths.append(path)
        depths.append(depth)
    bits = torch.tensor(paths, device=device)[:, :, None] >> torch.arange(len(parents[0]), device=device)
    return bits.bitwise_and_(1).bool(), torch.tensor(depths, device=device)
