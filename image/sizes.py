"""Sizes of pictures: what a model makes, and how an aspect ratio is read. Pixels outside, rows and columns inside."""

from __future__ import annotations

import re

from mmspec.image.grid import Grid

SIDES = "`height` x `width`"


def parse_ratio(text: str) -> tuple[int, int]:
    """Width and height of an aspect ratio such as ``16:9``.

    Raises:
        ValueError: If ``text`` is not of that form.
    """
    found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"`aspect_ratio` must be width:height in whole numbers, such as 16:9, got {text!r}.")
    return int(found[1]), int(found[2])


def check_only_size(grid: Grid, factor: int, height: int | None, width: int | None, aspect_ratio: str | None) -> None:
    """Raise ValueError unless the size that a call asks for is that of ``grid`` at ``factor`` pixels per code."""
    own = grid.rows * factor, grid.columns * factor
    if (height or own[0], width or own[1]) != own:
        raise ValueError(f"{SIDES} must be {own[0]} x {own[1]} for this model, got {height} x {width}.")
    if aspect_ratio is not None:
        columns, rows = parse_ratio(aspect_ratio)
        if columns * grid.rows != rows * grid.columns:
            raise ValueError(f"This model makes pictures of {own[0]} x {own[1]} pixels only, got {aspect_ratio!r}.")
