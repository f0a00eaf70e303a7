"""Keys and values of a decoder, preallocated, with one length per row. Rolling back is not copying: it is a length.

Slots of row r up to ``lengths[r]`` are committed; a forward writes its N nodes behind them, and the next forward
overwrites whatever was not committed. Committing a path of a tree moves its nodes to the front with one gather.

Symbols: R model rows, S slots, H key-value heads, P head size, N nodes, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SpecCache:
    """Per-layer key and value buffers (R, S, H, P), allocated when a layer writes for the first time.

    Args:
        num_rows: Model rows R.
        capacity: Slots S per row.
        device: Where lengths and slots live.

    Attributes:
        lengths: Committed slots of each row (R,).
        start: First slot of each row (R,); earlier ones are left padding and never attended.
        visible: Slots that the running forward reads.
        static: Whether forwards are compiled, so that no slot may be a number of Python's.
    """

    def __init__(self, num_rows: int, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.lengths = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.start = torch.zeros_like(self.lengths)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._flat = self.lengths
        self._rows: Tensor | None = None
        self._first: int | None = None
        self.static = False
        self.visible = 0

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    def plan(self, num_nodes: int, visible: int, offsets: Tensor | None = None, only: Tensor | None = None) -> None:
        """Let the next forward write ``num_nodes`` slots behind each row's length and read the first ``visible``.

        ``offsets`` (N,) counts the slots from the length on; without it they follow one another. ``only`` (r,) lists
        the rows that the forward runs; without it all.
        """
        if visible > self.capacity:
            raise ValueError(f"The cache has {self.capacity} slots per row, but {visible} are needed.")
        rows = torch.arange(self.num_rows, device=self.lengths.device) if only is None else only
        nodes = torch.arange(num_nodes, device=self.lengths.device) if offsets is None else offsets
        first = rows * self.capacity + (self.lengths if only is None else self.lengths[only])
        self._flat = (first[:, None] + nodes).flatten()
        self._rows, self.visible = only, visible
        # a single row is written in one piece; elsewhere than here its length would cost a synchronisation
        alone = self.num_rows == 1 and offsets is None and only is None and self.lengths.device.type == "cpu"
        self._first = int(self.lengths[0]) if alone and not self.static else None

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store ``key`` and ``value`` (R, H, N, P) of ``layer``; return the visible (R, H, S', P), of planned rows only."""
        if layer == len(self.keys):
            shape = (self.num_rows, self.capacity, key.shape[1])
            # zeros, since 0 * nan from an unwritten slot would poison the row even where the mask hides it
            self.keys.append(key.new_zeros(*shape, key.shape[-1]))
            self.values.append(value.new_zeros(*shape, value.shape[-1]))
        if (first := self._first) is not None:
            for store, new in ((self.keys[layer], key), (self.values[layer], value)):
                store[0, first : first + new.shape[2]] = new[0].transpose(0, 1)
            stores = self.keys[layer], self.values[layer]
            return stores[0][:, : self.visible].transpose(1, 2), stores[1][:, : self.visible].transpose(1, 2)
        pair = []
        for store, new in ((self.keys[layer], key), (self.values[layer], value)):
            store.flatten(0, 1).index_copy_(0, self._flat, new.transpose(1, 2).flatten(0, 1))
            seen = store[:, : self.visible] if self._rows is None else store[self._rows, : self.visible]
            pair.append(seen.transpose(1, 2))
        return pair[0], pair[1]

    def commit(self, num_kept: Tensor, path: Tensor | None = None) -> None:
        """Keep ``num_kept`` (R,) nodes of the last forward: the first ones, or those along ``path`` (R, D + 1)."""
        if path is not None:
            steps = torch.arange(path.shape[1], device=path.device)
            first = torch.arange(self.num_rows, device=path.device)[:, None] * self.capacity + self.lengths[:, None]
            source, goal = (first + path).flatten(), (first + steps).flatten()
            for store in (*self.keys, *self.values):
                slots = store.flatten(0, 1)
                slots.index_copy_(0, goal, slots.index_select(0, source))  # copied first: the ranges overlap
        self.lengths = self.lengths + num_kept

    def rollback(self, count: int | Tensor) -> None:
        """Forget the last ``count`` committed slots of each row, at most all of them.

        Raises:
            ValueError: If a count is negative.
        """
        removed = torch.as_tensor(count, device=self.lengths.device)
        if bool((removed < 0).any()):
            raise ValueError(f"Cannot roll back a negative number of slots: {count}.")
        self.lengths = (self.lengths - removed).clamp_min(0)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows`` (R',), in that order."""
        self.lengths, self.start = self.lengths[rows], self.start[rows]
        self.keys = [store[rows] for store in self.keys]
        self.values = [store[rows] for store in self.values]
