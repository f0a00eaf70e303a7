"""How far the pictures of a relaxed method are from those of plain decoding, as sets.

Two samples of the same law are never equal picture by picture, so sets are compared, each with one picture per item,
and the same figures for two plain sets of different seeds say what is mere chance.

    colour distance   total variation of the two mean colour histograms, 4 levels a channel
    code distance     energy distance 2 E|x - y| - E|x - x'| - E|y - y'| (Székely and Rizzo, 2013) of whole pictures
                      of different prompts in the space of codebook vectors, over E|x - x'|; 0 for equal laws

Symbols: B pictures, N tokens of a picture, E width of a code, h and w pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def code_distance(first: Tensor, second: Tensor, prompts: Sequence[str], codebook: Tensor) -> float:
    """Relative energy distance between two sets of token grids (B, N), read as vectors of ``codebook`` (V, E).

    Both sets have the same ``prompts`` in the same order. Pictures of one prompt are more alike than others, in one set or
    across both, and only sets across hold such pairs in plenty, so all three means are of pairs of different prompts. The
    estimate is then unbiased, and for equal laws it falls as often below 0 as above.

    Raises:
        ValueError: For sets that differ in size, or with fewer than two different prompts, which have no spread.
    """
    if not len(first) == len(second) == len(prompts):
        raise ValueError(f"Got {len(first)} and {len(second)} pictures of {len(prompts)} prompts; give one each.")
    if len(set(prompts)) < 2:
        raise ValueError(f"Pictures of {len(set(prompts))} prompt have no spread; at least 2 are needed.")
    number = {prompt: index for index, prompt in enumerate(prompts)}
    group = torch.tensor([number[prompt] for prompt in prompts])
    pairs = group[:, None] != group  # (B, B)
    a, b = (codebook[tokens.cpu()].flatten(1).double() for tokens in (first, second))
    across, within_a, within_b = (torch.cdist(x, y)[pairs].mean() for x, y in ((a, b), (a, a), (b, b)))
    return float((2 * across - within_a - within_b) / within_a)
