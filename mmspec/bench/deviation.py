"""How far the pictures of a relaxed method are from those of plain decoding, as sets.

Two samples of the same law are never equal picture by picture, so sets are compared, each with one picture per item,
and the same figures for two plain sets of different seeds say what is mere chance.

    colour distance   total variation of the two mean colour histograms, 4 levels a channel
    code distance     energy distance 2 E|x - y| - E|x - x'| - E|y - y'| (Székely and Rizzo, 2013) of whole pictures
                      in the space of codebook vectors, over E|x - x'|; 0 for equal laws

Symbols: B pictures, N tokens of a picture, E width of a code, h and w pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS = 4


def colour_distance(first: Tensor, second: Tensor) -> float:
    """Total variation in [0, 1] between the mean colour histograms of two sets of pictures (B, 3, h, w) in [0, 1]."""
    return float((_colours(first) - _colours(second)).abs().sum()) / 2


def _colours(pictures: Tensor) -> Tensor:
    """Share of the pixels of each of the 4 x 4 x 4 colours (64,)."""
    level = (pictures.clamp(0, 1) * _LEVELS).long().clamp_max(_LEVELS - 1)
    colour = (level[:, 0] * _LEVELS + level[:, 1]) * _LEVELS + level[:, 2]
    return torch.bincount(colour.flatten(), minlength=_LEVELS**3).double() / colour.numel()


def code_distance(first: Tensor, second: Tensor, codebook: Tensor) -> float:
    """Relative energy distance between two sets of token grids (B, N), read as vectors of ``codebook`` (V, E).

    The estimate is unbiased, hence may fall slightly below 0.

    Raises:
        ValueError: For sets of fewer than two pictures, which have no spread.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError(f"Sets of {len(first)} and {len(second)} pictures have no spread; at least 2 are needed.")
    a, b = (codebook[tokens.cpu()].flatten(1).double() for tokens in (first, second))
    within_a, within_b = _mean_within(a), _mean_within(b)
    return float((2 * torch.cdist(a, b).mean() - within_a - within_b) / within_a)


def _mean_within(vectors: Tensor) -> Tensor:
    """Mean distance between different members of ``vectors`` (B, N * E)."""
    return torch.pdist(vectors).mean()
