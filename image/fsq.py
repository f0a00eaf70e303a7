"""Finite scalar quantisation: every channel is rounded to one of few levels; a code is the tuple of levels.

Mentzer et al., 2023, "Finite Scalar Quantization: VQ-VAE Made Simple", in the form of NVIDIA's Cosmos tokenizers. With
``l`` levels, ``half = l // 2``, ``a = 1.001 (l - 1) / 2`` and ``offset = 1/2`` for even ``l``, else 0::

    bounded = a tanh(z + atanh(offset / a)) - offset          digit = round(bounded) + half
    value   = (digit - half) / half                           index = sum of digit_c * product of levels before c

Symbols: C channels, ... any other axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FiniteScalarQuantizer(nn.Module):
    """Rounds vectors of C channels, last axis, to codes. It has no weights.

    Args:
        levels: Levels of each channel, at least 2 each.

    Raises:
        ValueError: If there is no channel, or one with fewer than 2 levels.
    """

    def __init__(self, levels: Sequence[int]) -> None:
        super().__init__()
        if not levels or min(levels) < 2:
            raise ValueError(f"`levels` is {tuple(levels)}; give at least one channel, with at least 2 levels each.")
        self.levels = tuple(levels)
        self.num_codes = math.prod(levels)
        # plain numbers, made into tensors where they are needed: a half-precision model must not round them
        self._half = [level // 2 for level in levels]
        self._scale = [1.001 * (level - 1) / 2 for level in levels]
        self._offset = [0.0 if level % 2 else 0.5 for level in levels]
        self._basis = [math.prod(levels[:channel]) for channel in range(len(levels))]

    def bound(self, latents: Tensor) -> Tensor:
        """Squash ``latents`` (..., C) to where rounding gives the levels of each channel; float32."""
        z = latents.float()
        scale, offset = z.new_tensor(self._scale), z.new_tensor(self._offset)
        return torch.tanh(z + torch.atanh(offset / scale)) * scale - offset

    def quantize(self, latents: Tensor) -> Tensor:
        """Values (..., C) in [-1, 1] of the nearest codes; gradients pass straight through the rounding."""
        bounded = self.bound(latents)
        rounded = bounded + (bounded.round() - bounded).detach()
        return rounded / rounded.new_tensor(self._half)

    def indices(self, latents: Tensor) -> Tensor:
        """Index (...) of the nearest code of ``latents`` (..., C)."""
        digits = self.bound(latents).round().long() + torch.tensor(self._half, device=latents.device)
        return (digits * torch.tensor(self._basis, device=latents.device)).sum(-1)

    def values(self, indices: Tensor) -> Tensor:
        """Values (..., C) in [-1, 1] of the codes ``indices`` (...), float32.

        Raises:
            ValueError: If an index is no code.
        """
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < self.num_codes:
            raise ValueError(
                f"`indices` reach from {int(indices.min())} to {int(indices.max())}; there are {self.num_codes} codes."
            )
        levels, half, basis = (
            torch.tensor(numbers, device=indices.device) for numbers in (self.levels, self._half, self._basis)
        )
        digits = torch.div(indices[..., None], basis, rounding_mode="floor") % levels
        return (digits - half).float() / half
