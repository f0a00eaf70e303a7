"""Corruption of the input codes, so that the decoder leans on prompt and position and mends errors in its context.

Jacobi-style decoding feeds the decoder its own unsettled guesses. A decoder trained on clean contexts alone follows
each wrong code further astray; one that saw wrong codes with right targets settles in few iterations, and one bad
sample early in an image does not spoil the rest.

On a small data set there is a second reason: a few clean codes identify the picture, so a decoder that always sees some
learns to continue what it recognises and to ignore the prompt. Rows whose context is *lost* leave it the prompt alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Corruption:
    """Expected shares of corrupted rows, by kind; the rest stays clean.

    Args:
        lost: Every code is replaced with a probability drawn from [0.8, 1], in half of these rows by those of one other
            picture: nothing but the prompt tells what the targets are.
        suffix: A prefix of random length stays clean, each later code is replaced with a probability from [0.5, 1].
        scattered: Each code is replaced with a probability from [0, 0.5].

    Raises:
        ValueError: If a share is negative or they exceed 1 together.
    """

    lost: float = 0.0
    suffix: float = 0.3
    scattered: float = 0.3

    def __post_init__(self) -> None:
        if min(self.lost, self.suffix, self.scattered) < 0 or self.lost + self.suffix + self.scattered > 1:
            raise ValueError(f"The shares of {self} must be at least 0 and together at most 1.")


def corrupt(
    codes: Tensor,
    grid_width: int,
    num_codes: int,
    shares: Corruption,
    generator: torch.Generator,
    frame_length: int | None = None,
) -> Tensor:
    """Corrupt ``codes`` by the expected ``shares``.

    A replaced code becomes, with equal chances, a random code, its left neighbour, the code above, or another row's
    code at the same position; in a clip also the code at its place one frame before.

    Args:
        codes: Image or video codes (R, N) in raster order.
        grid_width: Codes per image row.
        num_codes: Size of the codebook.
        shares: How many rows are corrupted, and how.
        generator: Source of all random numbers.
        frame_length: Codes per frame of a clip; its first frame is given, so it is never corrupted.

    Returns:
        New codes (R, N); ``codes`` is left alone.
    """
    rows, length = codes.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    kind, position = uniform(rows, 1), torch.arange(length)
    is_lost = kind < shares.lost
    is_suffix = ~is_lost & (kind < shares.lost + shares.suffix)
    is_scattered = ~is_lost & ~is_suffix & (kind < shares.lost + shares.suffix + shares.scattered)
    start = torch.randint(0, length + 1, (rows, 1), generator=generator)
    rate = is_lost * (0.8 + 0.2 * uniform(rows, 1)) + is_scattered * (0.5 * uniform(rows, 1))
    rate = rate + is_suffix * (position >= start) * (0.5 + 0.5 * uniform(rows, 1))  # (R, N)
    replaced = uniform(rows, length) < rate

    noise = torch.randint(num_codes, (rows, length), generator=generator)
    left = torch.cat([noise[:, :1], codes[:, :-1]], dim=1)
    above = torch.cat([noise[:, :grid_width], codes[:, :-grid_width]], dim=1)
    other = codes[torch.randperm(rows, generator=generator)]
    # neighbours of a lost context would give the picture away
    left, above = (torch.where(is_lost, noise, source) for source in (left, above))
    sources = [noise, left, above, other]  # each (R, N)
    if frame_length is not None:
        replaced = replaced & (position >= frame_length)
        sources.append(torch.cat([noise[:, :frame_length], codes[:, :-frame_length]], dim=1))
    choice = torch.randint(len(sources), (rows, length), generator=generator)
    choice = torch.where(is_lost & (uniform(rows, 1) < 0.5), 3, choice)
    return torch.where(replaced, torch.stack(sources).gather(0, choice[None])[0], codes)
