"""Prompts of B pictures as token ids, for models that read condition and picture in one sequence.

Each model row keeps its own length, so both branches of guidance and all rows of a batch have positions from 0.

Symbols: B samples, R model rows, P slots of the longest prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenPrompts:
    """Token ids of the conditional and the unconditional prompt of each sample, in the model's own vocabulary."""

    conditional: list[list[int]]
    unconditional: list[list[int]]

    def __len__(self) -> int:
        return len(self.conditional)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(ids) for ids in (*self.conditional, *self.unconditional))

    def repeat(self, count: int) -> TokenPrompts:
        """Every sample ``count`` times in a row."""
        return TokenPrompts(
            [ids for ids in self.conditional for _ in range(count)],
            [ids for ids in self.unconditional for _ in range(count)],
        )

    def rows(self, start: int, stop: int) -> TokenPrompts:
        """The samples ``start`` to ``stop``."""
        return TokenPrompts(self.conditional[start:stop], self.unconditional[start:stop])

    def padded(self, guided: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        """Prompts (R, P), right-padded with 0, and their lengths (R,); with guidance the unconditional rows follow."""
        rows = [*self.conditional, *(self.unconditional if guided else ())]
        width = max(len(ids) for ids in rows)
        lengths = torch.tensor([len(ids) for ids in rows], device=device)
        return torch.tensor([ids + [0] * (width - len(ids)) for ids in rows], device=device), lengths


def fit_prompt(ids: Sequence[int], num_kept: int, limit: int, truncate: bool, text: str) -> list[int]:
    """``ids`` if there are at most ``limit`` of them, else cut in front of the last ``num_kept``.

    Args:
        ids: Token ids of a prompt: text, then ``num_kept`` tokens that open the picture.
        limit: Positions that the model has beside the picture.
        truncate: Whether to cut the text.
        text: The prompt, for the message.

    Raises:
        ValueError: If the prompt is too long and ``truncate`` is False, or nothing of the text would be left.
    """
    if len(ids) <= limit:
        return list(ids)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    if not truncate or limit <= num_kept:
        raise ValueError(
            f"The prompt {shown!r} has {len(ids)} tokens, but the model has room for {limit} beside a picture of this "
            "size; shorten it, choose a smaller size, or set `truncate_prompt=True`."
        )
    return [*ids[: limit - num_kept], *ids[len(ids) - num_kept :]]
