"""The token layout of a picture: a grid of codes in raster order, with row ends and marks around it.

Token ids here are those of the decoding loop: codes are ``0 .. num_codes - 1``, the very indices of the picture
tokenizer's codebook, and every id from ``num_codes`` on is structural. Adapters translate them to the model's own ids.

Symbols: B pictures, M tokens of a picture, V vocabulary of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.grammar import Grammar


@dataclass(frozen=True)
class Grid:
    """Where codes and structural tokens of one picture lie.

    Args:
        rows, columns: Codes per column and row.
        num_codes: Size of the codebook; ids from there on are structural.
        row_end: Structural token behind each row, ``None`` for models without.
        header, footer: Structural tokens before the first and behind the last row.

    Raises:
        ValueError: If a side is not positive, or a structural token is the id of a code.
    """

    rows: int
    columns: int
    num_codes: int
    row_end: int | None = None
    header: tuple[int, ...] = ()
    footer: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"A grid needs at least one row and column, got {self.rows} x {self.columns}.")
        if wrong := [token for token in self.structural if token < self.num_codes]:
            raise ValueError(f"Structural tokens must be at least {self.num_codes}, got {wrong[0]}.")

    @property
    def structural(self) -> tuple[int, ...]:
        """Ids of the structural tokens that occur, each once."""
        ends = () if self.row_end is None else (self.row_end,)
        return tuple(sorted({*self.header, *ends, *self.footer}))

    @property
    def row_length(self) -> int:
        """Tokens per row, the row end included."""
        return self.columns + (self.row_end is not None)

    @property
    def row_start(self) -> int:
        """Order index of the first code."""
        return len(self.header)

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture, structural ones included."""
        return len(self.header) + self.rows * self.row_length + len(self.footer)

    @property
    def vocab_size(self) -> int:
        """Ids of the loop: codes, then structural tokens."""
        return max([self.num_codes, *(token + 1 for token in self.structural)])

    def grammar(self) -> Grammar | None:
        """What each order index allows; ``None`` if there are codes only, everywhere."""
        if not self.structural:
            return None
        row: list[int | None] = [None] * self.columns
        if self.row_end is not None:
            row.append(self.row_end)
        slots = [*self.header, *row * self.rows, *self.footer]
        return Grammar.of_slots(slots, torch.arange(self.vocab_size) < self.num_codes)

    def complete_rows(self, length: int) -> int:
        """Rows whose codes are all among the first ``length`` tokens."""
        inside = max(length - self.row_start, 0)
        return min((inside + (self.row_end is not None)) // self.row_length, self.rows)

    def codes(self, tokens: Tensor, rows: int | None = None) -> Tensor:
        """Codes (B, rows, columns) of ``tokens`` (B, M); of the first ``rows`` rows, by default all."""
        count = self.rows if rows is None else rows
        padded = torch.nn.functional.pad(tokens[:, self.row_start :], (0, 1))  # the last row may lack its end
        return padded[:, : count * self.row_length].unflatten(1, (count, self.row_length))[..., : self.columns]
