"""First guesses for slots that enter a Jacobi window. Every one is exact under its stated law; they differ in speed.

    uniform    any token, law 1 / V; drawn with the slot's own target noise, so it is coupled already
    copy-left  the last known token; at the start of a grid row, the one above
    copy-up    the nearest known token straight above
    mix        the token above with probability 1 - mix, else uniform; law (1 - mix) one-hot + mix / V
    law        a draw, with the slot's own noise, from the newest law before the slot

Symbols: B rows, L slots of the window, C slots to fill, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmspec.core.noise import Stream
from mmspec.core.verify import RoundContext

INITIALIZERS = ("copy-left", "copy-up", "law", "mix", "uniform")


class Initializer:
    """Guess the tokens of unfilled slots.

    Args:
        kind: One of :data:`INITIALIZERS`.
        vocab_size: Number of tokens V.
        row_length: Tokens per grid row. A target without a grid is one endless row: there is nothing above.
        mix: Uniform share of ``mix``.

    Raises:
        ValueError: If ``copy-up`` is asked of a target without a grid.
    """

    def __init__(self, kind: str, vocab_size: int, row_length: int | None, mix: float) -> None:
        if kind == "copy-up" and row_length is None:
            raise ValueError(
                "`initializer` 'copy-up' needs a target with a grid; use 'copy-left', 'uniform' or 'law'."
            )
        self.kind, self.vocab_size, self.row_length, self.mix = kind, vocab_size, row_length, mix
        self.needs_scores = kind == "law"
        self._copies: Tensor | None = None  # (B, order indices), hashed once for many rounds

    def __call__(
        self, context: RoundContext, slots: Tensor, filled: Tensor, count: int, scores: Tensor | None, needs_law: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Guesses (B, C) for the first ``count`` slots, and their log-law (B, C, V) where ``needs_law``.

        ``slots`` (B, L) hold ``filled`` (B,) known tokens after the root; guesses at filled slots are ignored.
        """
        if self.kind == "uniform":
            return self._uniform(context, count), self._uniform_law(filled, count) if needs_law else None
        if self.kind == "law":
            assert scores is not None
            guesses = (scores[:, None] + context.target_noise(count)).argmax(-1)
            return guesses, scores.log_softmax(-1)[:, None].expand(-1, count, -1) if needs_law else None
        copied = self._copy(context, slots, filled, count)
        if self.kind != "mix":
            return copied, self._one_hot_law(copied, 0.0) if needs_law else None
        guesses = torch.where(self._uses_copy(context, count), copied, self._uniform(context, count))
        return guesses, self._one_hot_law(copied, self.mix) if needs_law else None

    def _uses_copy(self, context: RoundContext, count: int) -> Tensor:
        """Whether ``mix`` copies at each of the first ``count`` slots (B, C)."""
        if self._copies is None or self._copies.shape[1] < context.highest + count:
            # keyed by the slot, not by the round: a guess stays the same however often it is made
            place = torch.arange(2 * (context.highest + count), device=context.root.device)[None]
            uniform = context.noise.uniform(Stream.AUXILIARY, place, torch.full_like(place, -1))
            self._copies = uniform >= self.mix
        if context.lowest == context.highest:
            return self._copies[:, context.lowest : context.lowest + count]
        place = context.generated[:, None] + torch.arange(count, device=context.root.device)
        return self._copies.gather(1, place)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows``."""
        if self._copies is not None:
            self._copies = self._copies[rows]

    def _copy(self, context: RoundContext, slots: Tensor, filled: Tensor, count: int) -> Tensor:
        """Token of the nearest known neighbour of each of the first ``count`` slots (B, C)."""
        place = context.generated[:, None] + torch.arange(count, device=slots.device)  # (B, C) order index
        known = (context.generated + filled)[:, None]  # first unknown order index
        source = (known - 1).expand_as(place)
        if self.row_length is not None:
            if self.kind == "copy-left":  # a row that begins beyond the known part starts with the token above
                anchor = place - place % self.row_length
                above = anchor - self.row_length * torch.div(
                    anchor - known + self.row_length, self.row_length, rounding_mode="floor"
                )
                source = torch.where(anchor >= known, above, source)
            else:
                up = place - self.row_length * torch.div(
                    place - known + self.row_length, self.row_length, rounding_mode="floor"
                )
                source = torch.where(up >= 0, up, source)
            source = torch.where(source >= 0, source, known - 1)
        committed = context.tokens.gather(1, source.clamp(0, context.tokens.shape[1] - 1))
        if slots.shape[1] == 0:
            return committed
        guessed = slots.gather(1, (source - context.generated[:, None]).clamp(0, slots.shape[1] - 1))
        return torch.where(source < context.generated[:, None], committed, guessed)

    @staticmethod
    def _uniform(context: RoundContext, count: int) -> Tensor:
        return context.target_noise(count).argmax(-1)

    def _uniform_law(self, filled: Tensor, count: int) -> Tensor:
        law = torch.full((1, 1, 1), -math.log(self.vocab_size), device=filled.device)
        return law.expand(len(filled), count, self.vocab_size)

    def _one_hot_law(self, tokens: Tensor, uniform_share: float) -> Tensor:
        law = torch.full((*tokens.shape, self.vocab_size), uniform_share / self.vocab_size, device=tokens.device)
        return law.scatter_add_(-1, tokens[..., None], torch.full_like(law[..., :1], 1 - uniform_share)).log()
