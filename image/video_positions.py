"""Positions of a latent clip: three-dimensional rotary angles with YaRN, and sinusoidal absolute embeddings.

NVIDIA, 2025, "Cosmos World Foundation Model Platform for Physical AI", section 5.2; Peng et al., 2023, "YaRN". A head of P
channels turns ``d_t / 2`` pairs with the latent frame and ``d_s / 2`` each with row and column, where
``d_s = 2 floor(P / 6)`` and ``d_t = P - 2 d_s``; channel c is paired with channel ``c + P / 2``.

Symbols: (T, H, W) latent frames, rows and columns; positions in raster order, time slowest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Yarn:
    """How rotary frequencies are stretched for clips longer or larger than those of the first training.

    Args:
        scale: Slow frequencies are divided by it, at least 1.
        beta_fast, beta_slow: Turns over the original axis above which a frequency is kept, and below which it is
            divided; in between both are mixed.
        original_shape: Latent frames, rows and columns of the first training. Both spatial axes use the rows.

    Raises:
        ValueError: If a number is out of range.
    """

    scale: float
    beta_fast: float
    beta_slow: float
    original_shape: Shape

    def __post_init__(self) -> None:
        if self.scale < 1 or not self.beta_fast > self.beta_slow > 0:
            raise ValueError(f"{self} needs a scale of at least 1 and beta_fast > beta_slow > 0.")
        if len(self.original_shape) != 3 or min(self.original_shape) < 1:
            raise ValueError(f"`original_shape` is {self.original_shape}; give latent frames, rows and columns.")

    def stretch(self, frequencies: Tensor, length: int) -> Tensor:
        """``frequencies`` of an axis that had ``length`` positions.

        Published YaRN also scales attention by a temperature; Cosmos computes that factor and drops it, so it is not
        here.
        """
        fast, slow = (2 * math.pi * beta / length for beta in (self.beta_fast, self.beta_slow))
        kept = ((frequencies - slow) / (fast - slow)).clamp(0, 1)
        return frequencies * ((1 - kept) / self.scale + kept)


def clip_coordinates(shape: Shape) -> Tensor:
    """Latent frame, row and column of every position (T * H * W, 3), float32."""
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float32) for size in shape), indexing="ij")
    return torch.stack([axis.flatten() for axis in axes], dim=-1)


def rotary_frequencies(head_dim: int, theta: float, yarn: Yarn | None = None) -> tuple[Tensor, Tensor]:
    """Frequencies of the temporal (d_t / 2,) and of either spatial axis (d_s / 2,).

    Raises:
        ValueError: If a head is too narrow for three axes.
    """
    spatial = 2 * (head_dim // 6)
    temporal = head_dim - 2 * spatial
    if spatial < 2 or head_dim % 2:
        raise ValueError(f"`head_dim` is {head_dim}; three axes need an even number of at least 6.")
    in_time, in_space = (
        theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size) for size in (temporal, spatial)
    )
    if yarn is not None:
        in_time = yarn.stretch(in_time, yarn.original_shape[0])
        in_space = yarn.stretch(in_space, yarn.original_shape[1])
    return in_time, in_space


def rotary_table(shape: Shape, head_dim: int, theta: float, yarn: Yarn | None = None, prefix: int = 0) -> Tensor:
    """Cosines and signed sines of every position, (prefix + T * H * W, 2, P).

    The ``prefix`` positions, a begin mark, are not turned. The sign is that of the half-split pairing: the rotated
    ``x`` is ``x * cosine + swap(x) * signed_sine`` with the halves of the head swapped.
    """
    in_time, in_space = rotary_frequencies(head_dim, theta, yarn)
    time, row, column = clip_coordinates(shape).unbind(-1)
    angles = torch.cat(
        [torch.outer(time, in_time), torch.outer(row, in_space), torch.outer(column, in_space)], dim=-1
    )  # (T * H * W, P / 2)
    angles = torch.cat([angles.new_zeros(prefix, angles.shape[1]), angles])
    cosine, sine = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)], dim=1)


def absolute_table(shape: Shape, hidden_size: int, prefix: int = 0) -> Tensor:
    """Sinusoids of latent frame, row and column side by side, (prefix + T * H * W, D); zero for the prefix."""
    spatial = 2 * (hidden_size // 6)
    parts = []
    for place, size in zip(
        clip_coordinates(shape).unbind(-1), (hidden_size - 2 * spatial, spatial, spatial), strict=True
    ):
        half = size // 2
        angles = torch.outer(place, 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half))
        parts += [angles.sin(), angles.cos()]
    table = torch.cat(parts, dim=-1)
    return torch.cat([table.new_zeros(prefix, table.shape[1]), table])


def rotate_halves(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn ``x`` (R, N, heads, P) by ``rotary``, cosines and signed sines (R, N, 1, P)."""
    cosine, signed_sine = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cosine, torch.cat([second, first], dim=-1), signed_sine)
