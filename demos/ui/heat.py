"""Pictures of where drafts were accepted and rejected: over the grid of a picture or a clip, and along a waveform.

A place is coloured by the number of draft tokens that were rejected there until one stayed; a dot marks tokens that the
target drew itself.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mmspec.core.trace import Round, from_draft, rejections

Colour = tuple[int, int, int]

OWN: Colour = (168, 176, 186)
ACCEPTED: Colour = (46, 158, 91)
DOUBTED: Colour = (242, 193, 78)
REFUSED: Colour = (209, 73, 91)
OPEN: Colour = (238, 240, 243)
_MANY = 12  # rejections that are as red as it gets
LEGEND = (
    (ACCEPTED, "drafted, accepted at once"),
    (DOUBTED, "a few drafts rejected first"),
    (REFUSED, f"{_MANY} or more rejected"),
    (OWN, "drawn by the model, nothing drafted"),
)


@dataclass(frozen=True)
class Place:
    """One token: whether it was ``drafted``, and how many drafts were ``rejected`` there before it."""

    drafted: bool
    rejected: int

    @property
    def colour(self) -> Colour:
        if not self.drafted and not self.rejected:
            return OWN
        share = min(self.rejected / _MANY, 1.0)
        low, high = (ACCEPTED, DOUBTED) if share < 0.5 else (DOUBTED, REFUSED)
        part = 2 * share if share < 0.5 else 2 * share - 1
        mixed = [round(a + (b - a) * part) for a, b in zip(low, high, strict=True)]
        return mixed[0], mixed[1], mixed[2]


def places(trace: Sequence[Round]) -> list[Place]:
    """Every emitted token of a row, in order."""
    drafted = from_draft(trace)
    return [Place(*pair) for pair in zip(drafted, rejections(trace, len(drafted)), strict=True)]


def draw_grid(
    cells: Sequence[Place], rows: int, columns: int, side: int = 20, row_length: int | None = None, first: int = 0
) -> Image.Image:
    """The grid of a picture; cells that are not decoded yet are pale.

    Args:
        cells: Tokens of the picture in raster order.
        rows, columns: Of the grid.
        side: Pixels of a cell.
        row_length: Tokens a row, if structural ones follow its codes.
        first: Tokens before the first code.
    """
    picture = Image.new("RGB", (columns * side + 1, rows * side + 1), "white")
    draw = ImageDraw.Draw(picture)
    for row in range(rows):
        for column in range(columns):
            number = first + row * (row_length or columns) + column
            cell = cells[number] if number < len(cells) else None
            _draw_cell(draw, column * side, row * side, side, cell)
    return picture


def _draw_cell(draw: ImageDraw.ImageDraw, left: int, top: int, side: int, cell: Place | None) -> None:
    draw.rectangle((left, top, left + side, top + side), fill=cell.colour if cell else OPEN, outline="white")
    if cell is not None and not cell.drafted and cell.rejected:
        middle, radius = side / 2, max(1, side // 8)
        box = (left + middle - radius, top + middle - radius, left + middle + radius, top + middle + radius)
        draw.ellipse(box, fill="white")


def draw_frames(cells: Sequence[Place], frames: int, rows: int, columns: int, side: int = 8) -> Image.Image:
    """The grids of the latent frames of a clip, side by side."""
    size, gap = rows * columns, 6
    grids = [draw_grid(cells[n * size : (n + 1) * size], rows, columns, side) for n in range(frames)]
    width = grids[0].width
    picture = Image.new("RGB", (frames * (width + gap) - gap, grids[0].height), "white")
    for number, grid in enumerate(grids):
        picture.paste(grid, (number * (width + gap), 0))
    return picture


def draw_codes(cells: Sequence[Place], books: int, width: int, side: int = 9) -> Image.Image:
    """Codes of speech: a column for each frame, a row for each of its ``books``; ``width`` pixels in all."""
    frames = -(-len(cells) // books)
    picture = Image.new("RGB", (width, books * side + 1), "white")
    draw = ImageDraw.Draw(picture)
    for number, cell in enumerate(cells):
        frame, book = divmod(number, books)
        left, right = frame * width // max(frames, 1), (frame + 1) * width // max(frames, 1)
        draw.rectangle((left, book * side, right - 1, (book + 1) * side - 1), fill=cell.colour)
    return picture


def draw_wave(
    samples: NDArray[np.floating], spans: Sequence[tuple[float, float, Colour]], width: int = 640, height: int = 96
) -> Image.Image:
    """A waveform, coloured.

    Args:
        samples: Sound (n,) in [-1, 1].
        spans: Begin and end, as shares of the whole in [0, 1], and the colour there; elsewhere it is grey.
        width, height: Pixels.
    """
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    loudest = float(np.abs(samples).max()) if len(samples) else 0.0
    edges = np.linspace(0, len(samples), width + 1).astype(int)
    for column in range(width):
        piece = samples[edges[column] : max(edges[column + 1], edges[column] + 1)]
        peak = float(np.abs(piece).max()) / loudest if len(piece) and loudest else 0.0
        colour = next((c for begin, end, c in spans if begin <= column / width < end), OWN)
        half = max(1, round(peak * (height / 2 - 2)))
        draw.line((column, height // 2 - half, column, height // 2 + half), fill=colour)
    return picture


def mean_colour(cells: Sequence[Place]) -> Colour:
    """The colour of several tokens together; grey for none."""
    if not cells:
        return OWN
    red, green, blue = np.mean([cell.colour for cell in cells], axis=0).round().astype(int).tolist()
    return red, green, blue


def data_url(picture: Image.Image) -> str:
    """``picture`` as PNG inside a URL."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
