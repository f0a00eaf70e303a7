"""One 64-bit seed per row, from whatever the caller gives. Torch's global random state is never touched."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch

_LIMIT = 1 << 63


def row_seeds(
    num_rows: int, generator: torch.Generator | Sequence[torch.Generator] | None, seed: int | Sequence[int] | None
) -> list[int]:
    """Return the seeds of ``num_rows`` samples.

    Args:
        generator: One generator yields the seeds in row order; a list gives one each. Only one number is drawn per row.
        seed: An integer s gives s, s + 1, ...; a list gives one each. ``None`` with no generator: fresh random seeds.

    Raises:
        TypeError, ValueError: If both are given, or their number or type is wrong.
    """
    if generator is not None and seed is not None:
        raise ValueError("Both `generator` and `seed` are given; give one of them.")
    if generator is not None:
        return _from_generators(num_rows, generator)
    if seed is None:
        return [secrets.randbelow(_LIMIT) for _ in range(num_rows)]
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        if len(seed) != num_rows:
            raise ValueError(f"`seed` has {len(seed)} entries for {num_rows} samples; give one integer or {num_rows}.")
        return [_check(value) for value in seed]
    return [(_check(seed) + row) % _LIMIT for row in range(num_rows)]


def _check(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"`seed` must be an integer or a list of integers, got {seed!r}.")
    if not 0 <= seed < _LIMIT:
        raise ValueError(f"`seed` must lie in [0, 2**63), got {seed}.")
    return seed


def _from_generators(num_rows: int, generator: torch.Generator | Sequence[torch.Generator]) -> list[int]:
    generators = [generator] * num_rows if isinstance(generator, torch.Generator) else list(generator)
    if len(generators) != num_rows:
        raise ValueError(
            f"`generator` has {len(generators)} entries for {num_rows} samples; give one generator or {num_rows}."
        )
    if wrong := [g for g in generators if not isinstance(g, torch.Generator)]:
        raise TypeError(f"`generator` must hold torch.Generator objects, got {wrong[0]!r}.")
    return [int(torch.randint(_LIMIT - 1, (), generator=g, device=g.device)) for g in generators]


def stretch_seed(seed: int, number: int) -> int:
    """Seed of the ``number``-th stretch of a row that is decoded in several; the first one has the row's own."""
    return (seed + number * 0x9E3779B97F4A7C15) % _LIMIT
