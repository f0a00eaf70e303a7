"""Corruption of the input codes, so that the decoder leans on prompt and position and mends errors in its context.

Jacobi-style decoding feeds the decoder its own unsettled guesses. A decoder trained on clean contexts alone follows
each wrong code further astray; one that saw wrong codes with right targets settles in few iterations, and one bad
sample early in an image does not spoil the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor


def corrupt(codes: Tensor, grid_width: int, num_codes: int, share: float, generator: torch.Generator) -> Tensor:
    """Corrupt the codes of about ``share`` of the rows.

    Half of those rows keep a clean prefix of random length and lose each later code with a probability drawn from
    [0.5, 1]; the other half lose each code with a probability drawn from [0, 0.5]. A lost code becomes, with equal
    chances, a random code, its left neighbour, the code above, or another row's code at the same position.

    Args:
        codes: Image codes (R, N) in raster order.
        grid_width: Codes per image row.
        num_codes: Size of the codebook.
        share: Expected share of corrupted rows, in [0, 1].
        generator: Source of all random numbers.

    Returns:
        New codes (R, N); ``codes`` is left alone.
    """
    rows, length = codes.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    kind, position = uniform(rows, 1), torch.arange(length)
    start = torch.randint(0, length + 1, (rows, 1), generator=generator)
    after_prefix = (position >= start) * (0.5 + 0.5 * uniform(rows, 1))  # (R, N)
    everywhere = (0.5 * uniform(rows, 1)).expand(rows, length)
    rate = torch.where(kind < share / 2, after_prefix, torch.where(kind < share, everywhere, torch.zeros(())))
    lost = uniform(rows, length) < rate

    noise = torch.randint(num_codes, (rows, length), generator=generator)
    left = torch.cat([noise[:, :1], codes[:, :-1]], dim=1)
    above = torch.cat([noise[:, :grid_width], codes[:, :-grid_width]], dim=1)
    other = codes[torch.randperm(rows, generator=generator)]
    sources = torch.stack([noise, left, above, other])  # (4, R, N)
    choice = torch.randint(4, (1, rows, length), generator=generator)
    return torch.where(lost, sources.gather(0, choice)[0], codes)
