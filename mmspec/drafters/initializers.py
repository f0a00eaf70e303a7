"""First guesses for slots that enter a Jacobi window. Every one is exact under its stated law; they differ in speed.

    uniform    any token, law 1 / V; drawn with the slot's own target noise, so it is coupled already
    copy-left  the last known token; at the start of a grid row, the one above
    copy-up    the nearest known token straight above
    mix        the token above with probability 1 - mix, else uniform; law (1 - mix) one-hot + mix / V
    law        a draw, with the slot's own noise, from the newest law before the slot

With a grammar, guesses keep to what their slot allows: a draw is a draw among the allowed tokens, and a copied token
that its slot does not allow is replaced by a uniform one.

Symbols: B rows, L slots of the window, C slots to fill, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.grammar import Grammar
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
        row_start: Order index of the grid's first token.
        grammar: Tokens that each order index allows.

    Raises:
        ValueError: If ``copy-up`` is asked of a target without a grid.
    """

    def __init__(
        self,
        kind: str,
        vocab_size: int,
        row_length: int | None,
        mix: float,
        row_start: int = 0,
        grammar: Grammar | None = None,
    ) -> None:
        if kind == "copy-up" and row_length is None:
            raise ValueError(
                "`initializer` 'copy-up' needs a target with a grid; use 'copy-left', 'uniform' or 'law'."
            )
        self.kind, self.vocab_size, self.row_length, self.mix = kind, vocab_size, row_length, mix
        self.row_start, self.grammar = row_start, grammar
        self.needs_scores = kind == "law"
        self._copies: Tensor | None = None  # (B, order indices), hashed once for many rounds

    def __call__(
        self, context: RoundContext, slots: Tensor, filled: Tensor, count: int, scores: Tensor | None, needs_law: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Guesses (B, C) for the first ``count`` slots, and their log-law (B, C, V) where ``needs_law``.

        ``slots`` (B, L) hold ``filled`` (B,) known tokens after the root; guesses at filled slots are ignored.
        """
        allowed = None if self.grammar is None else self.grammar.allowed_at(self._place(context, count))
        if self.kind == "uniform":
            return self._uniform(context, count, allowed), self._uniform_law(
                filled, count, allowed
            ) if needs_law else None
        if self.kind == "law":
            assert scores is not None
            return self._newest_law(context, scores, count, allowed, needs_law)
        copied = self._copy(context, slots, filled, count)
        if self.kind != "mix" and allowed is None:
            return copied, self._mixture(copied, 0.0) if needs_law else None
        uniform, share = self._uniform(context, count, allowed), 0.0
        guesses, legal = copied, None
        if self.kind == "mix":
            share = self.mix
            guesses = torch.where(self._uses_copy(context, count), copied, uniform)
        if allowed is not None:
            legal = allowed.gather(-1, copied[..., None])  # (B, C, 1)
            guesses = torch.where(legal[..., 0], guesses, uniform)
        if not needs_law:
            return guesses, None
        law = self._mixture(copied, share, allowed)
        return guesses, law if legal is None else torch.where(legal, law, self._uniform_law(filled, count, allowed))

    @staticmethod
    def _place(context: RoundContext, count: int) -> Tensor:
        """Order indices of the first ``count`` slots (B, C)."""
        return context.generated[:, None] + torch.arange(count, device=context.generated.device)

    def _newest_law(
        self, context: RoundContext, scores: Tensor, count: int, allowed: Tensor | None, needs_law: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Draws (B, C) from ``scores`` (B, V), or uniform ones where these allow nothing that the slot does."""
        spread = scores[:, None].expand(-1, count, -1)
        if allowed is not None:
            spread = spread.masked_fill(~allowed, -torch.inf)
            nothing = (spread == -torch.inf).all(-1, keepdim=True)
            spread = torch.where(nothing & allowed, 0.0, spread)
        guesses = (spread + context.target_noise(count)).argmax(-1)
        return guesses, spread.log_softmax(-1) if needs_law else None

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
        length = self.row_length or 1  # rows of one token: what is above is what came before
        slot = torch.arange(count, device=slots.device)
        ahead = (slot - filled[:, None]).clamp_min_(0)  # (B, C) places behind the first unknown one
        if self.kind == "copy-left" and self.row_length is not None:
            # a row that begins beyond the known part starts with the token above, all else repeats the last token
            column = (context.generated[:, None] + slot - self.row_start) % length
            anchor = ahead - column
            above = slot - column - length * (torch.div(anchor, length, rounding_mode="floor") + 1)
            source = torch.where(anchor >= 0, above, filled[:, None] - 1)
        else:
            source = slot - length * (torch.div(ahead, length, rounding_mode="floor") + 1)
        if context.lowest < length + self.row_start:  # nothing is above the first row
            source = torch.where(source < (self.row_start - context.generated)[:, None], filled[:, None] - 1, source)
        history = torch.cat([self._newest(context, length), slots], dim=1)
        return history.gather(1, source + length)

    @staticmethod
    def _newest(context: RoundContext, count: int) -> Tensor:
        """The ``count`` last committed tokens of each row (B, count); what lies before the first one is undefined."""
        if context.lowest == context.highest >= count:
            return context.tokens[:, context.lowest - count : context.lowest]
        place = context.generated[:, None] + torch.arange(-count, 0, device=context.tokens.device)
        return context.tokens.gather(1, place.clamp_min_(0))

    @staticmethod
    def _uniform(context: RoundContext, count: int, allowed: Tensor | None) -> Tensor:
        noise = context.target_noise(count)
        return (noise if allowed is None else noise.masked_fill(~allowed, -torch.inf)).argmax(-1)

    def _uniform_law(self, filled: Tensor, count: int, allowed: Tensor | None) -> Tensor:
        law = torch.zeros((1, 1, self.vocab_size), device=filled.device)
        if allowed is not None:
            law = law.masked_fill(~allowed, -torch.inf)
        return law.log_softmax(-1).expand(len(filled), count, self.vocab_size)

    def _mixture(self, tokens: Tensor, uniform_share: float, allowed: Tensor | None = None) -> Tensor:
        """Log-law (B, C, V) with ``1 - uniform_share`` on ``tokens`` (B, C), the rest on all allowed ones."""
        law = torch.full((*tokens.shape, self.vocab_size), uniform_share / self.vocab_size, device=tokens.device)
        if allowed is not None:
            law = allowed * (uniform_share / allowed.sum(-1, keepdim=True))
        return law.scatter_add(-1, tokens[..., None], torch.full_like(law[..., :1], 1 - uniform_share)).log()
