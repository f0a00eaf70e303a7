"""Which residual codes to draft behind each code of a frame, by dynamic programming over measured acceptance.

A draft is a tree: behind the newest code the best few guesses of the next one, behind each of these guesses of the one after it. With g codes
committed, a tree of n nodes costs 1 + c n predictor calls. Let R(d) be the chance that it holds the next d codes, that is the sum over its nodes
of depth d of the products of acceptance along their paths. The call commits d + 1 codes with chance R(d) - R(d + 1), so the least expected cost
V(g) of the rest of a frame of G codes is

    V(g) = min over n of 1 + c n + sum_d (R(d) - R(d + 1)) V(g + d + 1),    V(G) = 0,

where the tree of n nodes is that with the largest products. alpha_g(d, r), the chance that code g + d is its parent's guess of rank r, is a
moving average. A chain is the tree that takes rank 0 only. The last code of a frame needs no draft: it is the bonus of the call before.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmspec.core.trees import StaticTree, best_static_paths, static_tree

_DECAY = 0.98
_FLOOR = 0.05  # a first guess that never was right may still become useful
_LOW_FLOOR = 0.005
_START, _START_RATIO = 0.5, 0.3
_REFRESH = 100  # rounds between tables

Prior = Sequence[Sequence[Sequence[float]]]


class DraftShapes:
    """Measured acceptance and the table of draft trees.

    Args:
        num_codebooks: G.
        largest: Most draft codes of a call.
        node_cost: c, the cost of a draft code in predictor calls.
        prior: alpha_g(d, r) as measured before: entry ``[g - 1][d - 1][r]``; ``None`` starts from one half for every first guess.
        first: Whether there are drafts behind code 0, before the predictor has run.
        siblings: Most guesses of a code; 1 for chains.

    Raises:
        ValueError: If a number is out of range, or the prior has another shape.
    """

    def __init__(
        self,
        num_codebooks: int,
        largest: int,
        node_cost: float = 0.05,
        prior: Prior | None = None,
        first: bool = True,
        siblings: int = 1,
    ) -> None:
        if node_cost < 0 or largest < 0:
            raise ValueError(f"`node_cost` ({node_cost}) and `largest` ({largest}) must be at least 0.")
        self.num_codebooks, self.largest, self.node_cost, self.first = num_codebooks, largest, node_cost, first
        size = num_codebooks - 1
        start = [_START * _START_RATIO**rank for rank in range(siblings)]
        self.alpha = [[list(start) for _ in range(size - place)] for place in range(size)]
        if prior is not None:
            self._read(prior)
        self._rounds = 0
        self.table = self.solve()

    def _read(self, prior: Prior) -> None:
        size = self.num_codebooks - 1
        if len(prior) != size or any(len(row) != size - place for place, row in enumerate(prior)):
            raise ValueError(f"`prior` must have {size} rows of {size}, {size - 1}, ..., 1 lists of shares by rank.")
        for known, row in zip(self.alpha, prior, strict=True):
            for shares, given in zip(known, row, strict=True):
                for rank in range(len(shares)):
                    share = float(given[rank]) if rank < len(given) else 0.0
                    shares[rank] = min(1.0, max(_floor(rank), share))

    def __getitem__(self, filled: int) -> StaticTree:
        """The draft to make with ``filled`` codes committed."""
        return self.table[filled]

    def solve(self) -> list[StaticTree]:
        """The best tree for every number of committed codes from 0 to G."""
        trees, values = [static_tree([])] * (self.num_codebooks + 1), [0.0] * (self.num_codebooks + 1)
        for filled in range(self.num_codebooks - 1, 0, -1):
            trees[filled], values[filled] = self._best(filled, values)
        return trees

    def _best(self, filled: int, values: list[float]) -> tuple[StaticTree, float]:
        """The tree behind ``filled`` codes and its expected cost, given those of later places."""
        room = self.num_codebooks - 1 - filled
        if room == 0 or not (filled > 1 or self.first):
            return static_tree([]), 1 + values[filled + 1]
        alpha = self.alpha[filled - 1][:room]
        paths = best_static_paths(alpha, self.largest + 1)
        reach: dict[tuple[int, ...], float] = {(): 1.0}
        cost = value = 1 + values[filled + 1]  # of no draft
        count = 0
        for number, path in enumerate(map(tuple, paths), start=1):
            reach[path] = reach[path[:-1]] * alpha[len(path) - 1][path[-1]]
            # with this chance the call ends one code later than it would without the node
            cost += self.node_cost + reach[path] * (values[filled + len(path) + 1] - values[filled + len(path)])
            if cost < value - 1e-9:
                value, count = cost, number
        return static_tree(paths[:count]), value

    def expected_calls(self) -> float:
        """Expected predictor calls a frame under the table, drafts counted as free."""
        values = [0.0] * (self.num_codebooks + 1)
        for filled in range(self.num_codebooks - 1, 0, -1):
            tree, alpha = self.table[filled], self.alpha[filled - 1]
            values[filled], reach = 1 + values[filled + 1], [1.0]
            for node in range(1, tree.num_nodes):
                depth = tree.depth[node]
                reach.append(reach[tree.parent[node]] * alpha[depth - 1][tree.rank[node]])
                values[filled] += reach[-1] * (values[filled + depth + 1] - values[filled + depth])
        return values[1]

    def observe(self, filled: int, tree: StaticTree, path: Sequence[int]) -> None:
        """Learn from a call that verified ``tree`` behind ``filled`` codes and accepted the nodes of ``path``, the root not counted."""
        alpha = self.alpha[filled - 1]
        above = 0
        for depth, right in enumerate([*path, -1]):
            for node in tree.children[above]:
                rank = tree.rank[node]
                share = _DECAY * alpha[depth][rank] + (1 - _DECAY) * (node == right)
                alpha[depth][rank] = max(_floor(rank), share)
            above = right
        self._rounds += 1
        if self._rounds % _REFRESH == 0:
            self.table = self.solve()


def _floor(rank: int) -> float:
    return _LOW_FLOOR if rank else _FLOOR


def cut(tree: StaticTree, most: int) -> StaticTree:
    """The chain of first guesses of ``tree``, at most ``most`` of them, where the whole has no room."""
    depth = min(most, max(tree.depth))
    return static_tree([[0] * length for length in range(1, depth + 1)])
