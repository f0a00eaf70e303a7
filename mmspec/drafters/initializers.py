"""First guesses for slots that enter a Jacobi window. Every one is exact under its stated law; they differ in speed.

    uniform    any token, law 1 / V; drawn with the slot's own target noise, so it is coupled already
    copy-left  the last known token; at the start of a grid row, the one above
    copy-up    the nearest known token straight above
    mix        the token above with probability 1 - mix, else uniform; law (1 - mix) one-hot + mix / V
    law        a draw, with the slot's own noise, from the newest law before the slot

In clips, with an offset of one frame instead of one row; the first frame looks at the last one of the prompt:

    copy-frame the nearest known token at the same place of an earlier frame
    mix-frame  that token with probability 1 - mix, else uniform; law as of ``mix``
    law-frame  a draw, with the slot's own noise, from the newest law of the same place one frame before, see
               :mod:`mmspec.drafters.frame_laws`; where there is none yet, ``mix-frame``

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
from mmspec.drafters.frame_laws import FrameLaws

INITIALIZERS = ("copy-left", "copy-up", "law", "mix", "uniform")
FRAME_INITIALIZERS = ("copy-frame", "law-frame", "mix-frame")
"""Those that need a target whose output is a clip."""


class Initializer:
    """Guess the tokens of unfilled slots.

    Args:
        kind: One of :data:`INITIALIZERS` or :data:`FRAME_INITIALIZERS`.
        vocab_size: Number of tokens V.
        row_length: Tokens per grid row. A target without a grid is one endless row: there is nothing above.
        mix: Uniform share of ``mix``.
        row_start: Order index of the grid's first token.
        grammar: Tokens that each order index allows.
        frame_length: Tokens per frame of a clip, whose frames begin at multiples of it; ``None`` for other targets.
        prompt_ids: Tokens (B, P) right before the first new one, read where nothing new lies that far back.

    Raises:
        ValueError: If ``copy-up`` is asked of a target without a grid, or a frame initialiser of one without frames.
    """

    def __init__(
        self,
        kind: str,
        vocab_size: int,
        row_length: int | None,
        mix: float,
        row_start: int = 0,
        grammar: Grammar | None = None,
        frame_length: int | None = None,
        prompt_ids: Tensor | None = None,
    ) -> None:
        if kind in FRAME_INITIALIZERS and (frame_length is None or grammar is not None):
            raise ValueError(f"`initializer` {kind!r} needs a target that makes clips of codes alone.")
        if kind == "copy-up" and row_length is None:
            raise ValueError(
                "`initializer` 'copy-up' needs a target with a grid; use 'copy-left', 'uniform' or 'law'."
            )
        self.kind, self.vocab_size, self.row_length, self.mix = kind, vocab_size, row_length, mix
        self.row_start, self.grammar = row_start, grammar
        self.needs_scores = kind == "law"
        self.laws = FrameLaws(frame_length, vocab_size) if kind == "law-frame" and frame_length else None
        # how far back a copied token lies; a row of one token means that what is above is what came before
        self.distance = frame_length if kind in FRAME_INITIALIZERS and frame_length else row_length or 1
        # only in clips is what came before the first new token of the same kind: elsewhere it is text, and padded
        before = prompt_ids if kind in FRAME_INITIALIZERS else None
        enough = before is not None and before.shape[1] >= self.distance
        self.before = before[:, -self.distance :] if before is not None and enough else None
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
        mixes = self.kind in ("mix", "mix-frame", "law-frame")
        if not mixes and allowed is None:
            return copied, self._mixture(copied, 0.0) if needs_law else None
        uniform, share = self._uniform(context, count, allowed), 0.0
        guesses, legal = copied, None
        if mixes:
            share = self.mix
            guesses = torch.where(self._uses_copy(context, count), copied, uniform)
        if allowed is not None:
            legal = allowed.gather(-1, copied[..., None])  # (B, C, 1)
            guesses = torch.where(legal[..., 0], guesses, uniform)
        law = self._mixture(copied, share, allowed) if needs_law else None
        if law is not None and legal is not None:
            law = torch.where(legal, law, self._uniform_law(filled, count, allowed))
        if self.laws is None or self.laws.tokens is None:
            return guesses, law
        place = self._place(context, count)
        drawn, newer = self.laws.guess(context, place)
        kept = self.laws.covered(place)
        return torch.where(kept, drawn, guesses), None if law is None else torch.where(kept[..., None], newer, law)

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
        if self.before is not None:
            self.before = self.before[rows]
        if self.laws is not None:
            self.laws.select_rows(rows)

    def _copy(self, context: RoundContext, slots: Tensor, filled: Tensor, count: int) -> Tensor:
        """Token of the nearest known neighbour of each of the first ``count`` slots (B, C)."""
        length = self.distance
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
        if self.before is None and context.lowest < length + self.row_start:  # nothing is above the first row
            source = torch.where(source < (self.row_start - context.generated)[:, None], filled[:, None] - 1, source)
        history = torch.cat([self._newest(context, length), slots], dim=1)
        return history.gather(1, source + length)

    def _newest(self, context: RoundContext, count: int) -> Tensor:
        """The ``count`` last known tokens of each row (B, count), those of the prompt included.

        What lies before the first one is undefined.
        """
        if context.lowest == context.highest >= count:
            return context.tokens[:, context.lowest - count : context.lowest]
        place = context.generated[:, None] + torch.arange(-count, 0, device=context.tokens.device)
        if self.before is None:
            return context.tokens.gather(1, place.clamp_min_(0))
        return torch.cat([self.before, context.tokens], dim=1).gather(1, place + count)

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
