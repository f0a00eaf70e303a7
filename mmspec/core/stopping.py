"""When a row ends. Decided inside the committed run, so that nothing after the end is ever kept.

Symbols: B rows, C committed tokens of one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class FinishReason(IntEnum):
    """Why a row ended."""

    RUNNING = 0
    COMPLETE = 1
    """All tokens of a fixed-length output are there."""
    STOP = 2
    """A stop token was emitted."""
    LENGTH = 3
    """The budget of new tokens is used up."""
    INTERRUPTED = 4
    """The caller asked to stop."""


@dataclass(frozen=True)
class Stopping:
    """End of generation.

    Args:
        max_new_tokens: Exact budget of new tokens per row, at least 1.
        stop_tokens: Tokens that end a row; the token itself is kept. Empty: none.
        fixed_length: Whether reaching the budget is the natural end (an image) rather than a cut.
        row_budgets: Budgets of the rows of a call where they differ; ``max_new_tokens`` is the largest of them.

    Raises:
        ValueError: If a budget is below 1, or ``max_new_tokens`` is not the largest.
    """

    max_new_tokens: int
    stop_tokens: Sequence[int] = ()
    fixed_length: bool = False
    row_budgets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (least := min([self.max_new_tokens, *self.row_budgets])) < 1:
            raise ValueError(f"`max_new_tokens` must be at least 1, got {least}.")
        if self.row_budgets and max(self.row_budgets) != self.max_new_tokens:
            raise ValueError(
                f"`max_new_tokens` must be the largest of `row_budgets`, got {self.max_new_tokens} and {self.row_budgets}."
            )

    def budgets(self, num_rows: int, device: torch.device) -> Tensor:
        """Budget of each row of a call (B,)."""
        if self.row_budgets and len(self.row_budgets) != num_rows:
            raise ValueError(f"There are {len(self.row_budgets)} `row_budgets` for {num_rows} rows.")
        return torch.tensor(self.row_budgets or [self.max_new_tokens] * num_rows, device=device)

    def budget_of(self, row: int) -> int:
        """Budget of a row of the call."""
        return self.row_budgets[row] if self.row_budgets else self.max_new_tokens

    def truncate(
        self,
        tokens: Tensor,
        num_committed: Tensor,
        generated: Tensor,
        highest: int | None = None,
        budgets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cut the committed run of each row at its end.

        Args:
            tokens: Committed tokens (B, C); entries from ``num_committed`` on are undefined.
            num_committed: Tokens that the verdict would commit (B,).
            generated: Tokens of each row before this round (B,).
            highest: The largest of ``generated`` where the host knows it; saves the work far from the end.
            budgets: Budget of each of these rows (B,); ``None`` takes ``max_new_tokens``.

        Returns:
            Tokens to keep (B,) and the :class:`FinishReason` of each row (B,).
        """
        least = min([self.max_new_tokens, *self.row_budgets])
        if not self.stop_tokens and highest is not None and highest + tokens.shape[1] < least:
            return num_committed, torch.zeros_like(num_committed)
        limit = torch.full_like(generated, self.max_new_tokens) if budgets is None else budgets
        kept = torch.minimum(num_committed, limit - generated)
        reason = torch.where(
            generated + kept >= limit,
            int(FinishReason.COMPLETE if self.fixed_length else FinishReason.LENGTH),
            int(FinishReason.RUNNING),
        )
        if self.stop_tokens:
            stops = torch.isin(tokens, torch.tensor(list(self.stop_tokens), device=tokens.device))
            place = torch.arange(tokens.shape[1], device=tokens.device)
            first = torch.where(stops, place, tokens.shape[1]).amin(-1)
            stopped = first < kept
            kept = torch.where(stopped, first + 1, kept)
            reason = torch.where(stopped, int(FinishReason.STOP), reason)
        return kept, reason
