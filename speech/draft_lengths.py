"""How many residual codes to draft behind each code of a frame, by dynamic programming over measured acceptance.

With g codes committed, a draft of r codes costs kappa(r) = 1 + c r predictor calls and commits a + 1 codes if a of them are accepted, so
the least expected cost V(g) of the rest of a frame of G codes is

    V(g) = min over r of kappa(r) + sum_{a<r} P_g(a) (1 - alpha_g(a + 1)) V(g + a + 1) + P_g(r) V(g + r + 1),

P_g(a) = alpha_g(1) ... alpha_g(a), with V(G) = 0. alpha_g(j), the probability that the j-th draft code is accepted given those before it, is a
moving average. The last code of a frame needs no draft: it is the bonus of the call before.
"""

from __future__ import annotations

from collections.abc import Sequence

_DECAY = 0.98
_FLOOR = 0.05  # a draft that never was accepted may still become useful
_START = 0.5
_REFRESH = 100  # rounds between tables


class DraftLengths:
    """Measured acceptance and the table of draft lengths.

    Args:
        num_codebooks: G.
        largest: Most draft codes of a call.
        node_cost: c, the cost of a draft code in predictor calls.
        prior: alpha_g(j) as measured before: row g - 1, column j - 1; ``None`` starts from one half everywhere.
        first: Whether there are drafts behind code 0, before the predictor has run.

    Raises:
        ValueError: If a number is out of range, or the prior has another shape.
    """

    def __init__(
        self,
        num_codebooks: int,
        largest: int,
        node_cost: float = 0.05,
        prior: Sequence[Sequence[float]] | None = None,
        first: bool = True,
    ) -> None:
        if node_cost < 0 or largest < 0:
            raise ValueError(f"`node_cost` ({node_cost}) and `largest` ({largest}) must be at least 0.")
        self.num_codebooks, self.largest, self.node_cost, self.first = num_codebooks, largest, node_cost, first
        size = num_codebooks - 1
        self.alpha = [[_START] * size for _ in range(size)]
        if prior is not None:
            if len(prior) != size or any(len(row) != size - place for place, row in enumerate(prior)):
                raise ValueError(f"`prior` must have {size} rows of {size}, {size - 1}, ..., 1 numbers.")
            for place, row in enumerate(prior):
                self.alpha[place][: len(row)] = [min(1.0, max(_FLOOR, float(value))) for value in row]
        self._rounds = 0
        self.table = self.solve()

    def __getitem__(self, filled: int) -> int:
        """Draft codes to make with ``filled`` codes committed."""
        return self.table[filled]

    def solve(self) -> list[int]:
        """The best length for every number of committed codes from 0 to G."""
        lengths, _ = self._solved()
        return lengths

    def expected_calls(self) -> float:
        """Expected predictor calls a frame under the table, drafts counted as free."""
        values = [0.0] * (self.num_codebooks + 1)
        for filled in range(self.num_codebooks - 1, 0, -1):
            values[filled] = 1 + self._rest(filled, self.table[filled], values)
        return values[1]

    def _solved(self) -> tuple[list[int], list[float]]:
        books = self.num_codebooks
        values, lengths = [0.0] * (books + 1), [0] * (books + 1)
        for filled in range(books - 1, 0, -1):
            most = min(self.largest, books - 1 - filled) if filled > 1 or self.first else 0
            costs = [1 + self.node_cost * r + self._rest(filled, r, values) for r in range(most + 1)]
            values[filled] = min(costs)
            lengths[filled] = costs.index(values[filled])
        return lengths, values

    def _rest(self, filled: int, length: int, values: list[float]) -> float:
        """Expected cost behind a call with ``length`` draft codes."""
        alpha, reached, cost = self.alpha[filled - 1], 1.0, 0.0
        for accepted in range(length):
            cost += reached * (1 - alpha[accepted]) * values[filled + accepted + 1]
            reached *= alpha[accepted]
        return cost + reached * values[min(filled + length + 1, self.num_codebooks)]

    def observe(self, filled: int, drafted: int, accepted: int) -> None:
        """Learn from a call that verified ``drafted`` codes behind ``filled`` and accepted the first ``accepted``."""
        row = self.alpha[filled - 1]
        for place in range(min(drafted, accepted + 1)):
            hit = float(place < accepted)
            row[place] = max(_FLOOR, _DECAY * row[place] + (1 - _DECAY) * hit)
        self._rounds += 1
        if self._rounds % _REFRESH == 0:
            self.table = self.solve()
