"""The newest law of every place of a frame, as a first guess for the same place one frame later.

A law over V = 64,000 codes for each of 2,560 places would be 650 MB a row, so the 64 most likely tokens are kept and the
rest of the mass is spread evenly over all others: ``q(v) = p(v)`` for the kept ones, ``(1 - sum of them) / (V - kept)``
else. It is a law whatever the target's, so that the guess is exact under every rule.

Symbols: B rows, C slots to fill, N nodes, F tokens per frame, K kept tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.verify import RoundContext


class FrameLaws:
    """Laws of the last F slots of each row, by place in the frame.

    Args:
        frame_length: Tokens per frame F.
        vocab_size: Number of tokens V.
        kept: Most likely tokens K that are kept of each law.
    """

    def __init__(self, frame_length: int, vocab_size: int, kept: int = 64) -> None:
        self.frame_length, self.vocab_size = frame_length, vocab_size
        self.kept = min(kept, vocab_size)
        self.tokens: Tensor | None = None  # (B, F, K)
        self.log_p = torch.empty(0)  # (B, F, K)
        self.reach = torch.empty(0)  # (B,) order index behind the last slot whose law is kept

    def store(self, first: Tensor, log_p: Tensor, valid: Tensor | None = None) -> None:
        """Keep the laws ``log_p`` (B, N, V) of the slots from order index ``first`` (B,) on, where ``valid`` (B, N)."""
        log_p = log_p[:, : self.frame_length]
        values, tokens = log_p.topk(self.kept, dim=-1)
        if self.tokens is None:
            shape = (len(log_p), self.frame_length, self.kept)
            self.tokens, self.log_p = tokens.new_zeros(shape), values.new_zeros(shape)
        count = log_p.shape[1]
        place = first[:, None] + torch.arange(count, device=log_p.device)
        index = (place % self.frame_length)[..., None].expand_as(tokens)
        self.reach = first + count
        if valid is not None:
            there = valid[:, :count, None]
            tokens = torch.where(there, tokens, self.tokens.gather(1, index))
            values = torch.where(there, values, self.log_p.gather(1, index))
            self.reach = first + valid[:, :count].sum(-1)
        self.tokens = self.tokens.scatter(1, index, tokens)
        self.log_p = self.log_p.scatter(1, index, values)

    def covered(self, place: Tensor) -> Tensor:
        """Whether the law one frame before the order indices ``place`` (B, C) is kept."""
        before = place - self.frame_length
        return (before >= 0) & (before < self.reach[:, None]) & (place >= self.reach[:, None])

    def guess(self, context: RoundContext, place: Tensor) -> tuple[Tensor, Tensor]:
        """Draws (B, C) with the slots' own noise at ``place`` (B, C), the next ones, and their log-laws (B, C, V)."""
        assert self.tokens is not None
        index = (place % self.frame_length)[..., None].expand(-1, -1, self.kept)
        tokens, log_p = self.tokens.gather(1, index), self.log_p.gather(1, index)
        rest = (1 - log_p.exp().sum(-1)).clamp_min(0) / max(self.vocab_size - self.kept, 1)
        law = rest.log()[..., None].expand(-1, -1, self.vocab_size).scatter(-1, tokens, log_p)
        return (law + context.target_noise(place.shape[1])).argmax(-1), law.log_softmax(-1)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows``."""
        if self.tokens is not None:
            self.tokens, self.log_p, self.reach = self.tokens[rows], self.log_p[rows], self.reach[rows]
