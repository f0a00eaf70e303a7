"""Classifier-free guidance on logits (Ho & Salimans, 2022). Lives in adapters; the decoding loop never sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Guidance:
    """How the conditional and the unconditional branch are merged.

    Args:
        scale: Merged logits are ``u + scale * (c - u)``; 1 is the condition alone and needs no second branch.
        last_index: Last token order index that is guided, ``None`` for all (LlamaGen's ``cfg_interval`` + 1). It is
            a property of the token's position, so a draft may straddle it.

    Raises:
        ValueError: If the scale is negative or not finite, or ``last_index`` is negative.
    """

    scale: float = 1.0
    last_index: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.scale < float("inf"):
            raise ValueError(f"`guidance_scale` must be at least 0 and finite, got {self.scale}.")
        if self.last_index is not None and self.last_index < 0:
            raise ValueError(f"The last guided index must be at least 0, got {self.last_index}.")

    @property
    def branches(self) -> int:
        """Model rows per sample: 2 with an unconditional branch, else 1."""
        return 1 if self.scale == 1 else 2

    def merge(self, logits: Tensor, order_index: Tensor) -> Tensor:
        """Merge branch-major ``logits`` (G * B, N, V) to (B, N, V); ``order_index`` (B, N) numbers the predicted tokens."""
        if self.branches == 1:
            return logits
        conditional, unconditional = logits.chunk(2)
        merged = torch.lerp(unconditional, conditional, self.scale)
        if self.last_index is None:
            return merged
        return torch.where((order_index <= self.last_index)[..., None], merged, conditional)
