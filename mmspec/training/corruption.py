"""Corruption of the input codes, so that the decoder leans on prompt and position and mends errors in its context.

Jacobi-style decoding feeds the decoder its own unsettled guesses. A decoder trained on clean contexts alone follows
each wrong code further astray; one that saw wrong codes with right targets settles in few iterations, and one bad
sample early in an image does not spoil the rest.

On a small data set there is a second reason: a few clean codes identify the picture, so a decoder that always sees some
learns to continue what it recognises and to ignore the prompt. Rows whose context is *lost* leave it the prompt alone.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

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
        stale: Of clips: as ``suffix``, but each replaced code becomes the one at its place one frame before, which is what
            a Jacobi window holds whose slots start as copies of the last frame.

    Raises:
        ValueError: If a share is negative or they exceed 1 together.
    """

    lost: float = 0.0
    suffix: float = 0.3
    scattered: float = 0.3
    stale: float = 0.0

    def __post_init__(self) -> None:
        shares = astuple(self)
        if min(shares) < 0 or sum(shares) > 1:
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

    A replaced code becomes, with equal chances, its left neighbour, the code above, another row's code at the same
    position, or, in a picture, a random code; in a clip the code at its place one frame before.

    Args:
        codes: Image or video codes (R, N) in raster order.
        grid_width: Codes per image row.
        num_codes: Size of the codebook.
        shares: How many rows are corrupted, and how.
        generator: Source of all random numbers.
        frame_length: Codes per frame of a clip; its first frame is given, so it is never corrupted.

    Returns:
        New codes (R, N); ``codes`` is left alone.

    Raises:
        ValueError: If ``shares`` has stale rows, but there are no frames.
    """
    if shares.stale and frame_length is None:
        raise ValueError(f"`stale` is {shares.stale}, but pictures have no frame before; it must be 0.")
    rows, length = codes.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    kind, position = uniform(rows, 1), torch.arange(length)
    is_lost = kind < shares.lost
    is_suffix = ~is_lost & (kind < shares.lost + shares.suffix)
    is_scattered = ~is_lost & ~is_suffix & (kind < shares.lost + shares.suffix + shares.scattered)
    is_stale = (kind >= 1 - shares.stale) & ~(is_lost | is_suffix | is_scattered)
    start = torch.randint(0, length + 1, (rows, 1), generator=generator)
    rate = is_lost * (0.8 + 0.2 * uniform(rows, 1)) + is_scattered * (0.5 * uniform(rows, 1))
    rate = rate + (is_suffix | is_stale) * (position >= start) * (0.5 + 0.5 * uniform(rows, 1))  # (R, N)
    replaced = uniform(rows, length) < rate

    noise = torch.randint(num_codes, (rows, length), generator=generator)
    left = torch.cat([noise[:, :1], codes[:, :-1]], dim=1)
    above = torch.cat([noise[:, :grid_width], codes[:, :-grid_width]], dim=1)
    other = codes[torch.randperm(rows, generator=generator)]
    # neighbours of a lost context would give the picture away
    left, above = (torch.where(is_lost, noise, source) for source in (left, above))
    odd = noise
    if frame_length is not None:
        replaced = replaced & (position >= frame_length)
        odd = torch.cat([codes[:, :frame_length], codes[:, :-frame_length]], dim=1)
        odd = torch.where(is_lost, noise, odd)
    sources = torch.stack([odd, left, above, other])  # each (R, N)
    choice = torch.randint(len(sources), (rows, length), generator=generator)
    choice = torch.where(is_lost & (uniform(rows, 1) < 0.5), 3, choice).masked_fill(is_stale, 0)
    return torch.where(replaced, sources.gather(0, choice[None])[0], codes)
