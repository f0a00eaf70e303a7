"""Sheets and bar charts, drawn with PIL alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

_MARGIN = 8
_LINE = 16
_COLOURS = ("#4878a8", "#e49444")


def sheet(rows: Mapping[str, Sequence[Image.Image]], captions: Sequence[str], scale: int = 4) -> Image.Image:
    """Rows of pictures above one another, enlarged ``scale`` times without smoothing, with labels and captions.

    Small pictures are enlarged; those of 256 pixels and more are not.
    """
    pictures = [picture for row in rows.values() for picture in row]
    factor = scale if max(pictures[0].size) < 256 else 1
    width, height = (side * factor for side in pictures[0].size)
    font = ImageFont.load_default(12)
    label_width = max(int(font.getlength(name)) for name in rows) + 2 * _MARGIN
    texts = [_wrapped(caption, font, width) for caption in captions]
    header = _MARGIN + _LINE * max(len(lines) for lines in texts)
    size = (label_width + len(captions) * (width + _MARGIN), header + len(rows) * (height + _MARGIN) + _MARGIN)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for column, lines in enumerate(texts):
        for number, line in enumerate(lines):
            draw.text((label_width + column * (width + _MARGIN), number * _LINE + 4), line, fill="black", font=font)
    for number, (name, row) in enumerate(rows.items()):
        top = header + _MARGIN + number * (height + _MARGIN)
        draw.text((_MARGIN, top + height // 2 - _LINE // 2), name, fill="black", font=font)
        for column, picture in enumerate(row):
            enlarged = picture.resize((width, height), Image.Resampling.NEAREST)
            canvas.paste(enlarged, (label_width + column * (width + _MARGIN), top))
    return canvas


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def bar_chart(
    title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], width: int = 900
) -> Image.Image:
    """Horizontal bars: for each name one bar a series, with its value; a line marks 1."""
    font = ImageFont.load_default(14)
    bar, gap = 14, 10
    left = max(int(font.getlength(name)) for name in names) + 2 * _MARGIN
    block = bar * len(series) + gap
    head = 3 * _LINE + _MARGIN
    canvas = Image.new("RGB", (width, head + block * len(names) + _MARGIN), "white")
    draw = ImageDraw.Draw(canvas)
    draw.text((_MARGIN, 4), title, fill="black", font=font)
    place = _MARGIN
    for colour, name in zip(_COLOURS[: len(series)], series, strict=True):
        draw.rectangle((place, _LINE + 10, place + 10, _LINE + 20), fill=colour)
        draw.text((place + 16, _LINE + 6), name, fill="black", font=font)
        place += 16 + int(font.getlength(name)) + 3 * _MARGIN
    unit = (width - left - 60) / max(1e-9, *(value for values in series.values() for value in values))
    for row, name in enumerate(names):
        top = head + row * block
        draw.text((_MARGIN, top + (block - gap - _LINE) // 2), name, fill="black", font=font)
        for number, (colour, values) in enumerate(zip(_COLOURS[: len(series)], series.values(), strict=True)):
            y = top + number * bar
            draw.rectangle((left, y, left + values[row] * unit, y + bar - 2), fill=colour)
            draw.text((left + values[row] * unit + 4, y - 2), f"{values[row]:.2f}", fill="black", font=font)
    draw.line((left + unit, head - 4, left + unit, canvas.height - _MARGIN), fill="#999999")
    return canvas
