"""The HTML of the demos: a lane of a race, coloured text, the verdict. Everything that a person wrote is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from PIL import Image

from demos.ui.heat import LEGEND, Colour, Place, data_url
from demos.ui.race import Lane, same_tokens

CSS = """
.lane { border: 1px solid #d5d9df; border-radius: 8px; padding: 10px 12px; background: white; color: #1d2733; }
.lane h4 { margin: 0 0 6px; font-size: 1rem; color: #1d2733; }
.lane .figures { font-variant-numeric: tabular-nums; color: #445; margin: 4px 0 8px; }
.lane progress { width: 100%; height: 10px; }
.lane img { display: inline-block; margin: 0 8px 8px 0; image-rendering: pixelated; vertical-align: top; max-width: 100%; }
.lane .words { line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.lane .words span { padding: 2px 0; border-radius: 2px; color: #10161d; }
.legend { color: #445; font-size: .85rem; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 4px 0 12px; }
.verdict table { border: 0 !important; border-collapse: collapse; font-variant-numeric: tabular-nums; }
.verdict th, .verdict td { padding: 3px 16px 3px 0 !important; text-align: left; border: 0 !important; }
.verdict tr { border-bottom: 1px solid #d5d9df !important; }
.verdict .yes { color: #1d7a45; font-weight: 600; }
.verdict .no { color: #b3263c; font-weight: 600; }
"""


def css_colour(colour: Colour) -> str:
    return f"rgb({colour[0]},{colour[1]},{colour[2]})"


def picture(image: Image.Image, what: str, width: int | None = None) -> str:
    """An image of ``width`` pixels on the screen, its own width by default; ``what`` describes it."""
    return f'<img src="{data_url(image)}" alt="{escape(what)}" title="{escape(what)}" width="{width or image.width}">'


def words(pieces: Sequence[str], cells: Sequence[Place]) -> str:
    """Text, each token coloured by what became of the drafts there.

    Args:
        pieces: What each token adds to the text.
        cells: The tokens, as many; those that add nothing are left out.
    """
    spans = []
    for piece, cell in zip(pieces, cells, strict=True):
        if piece:
            origin = "drafted" if cell.drafted else "drawn by the model"
            title = f"{origin}; {cell.rejected} drafts rejected here before"
            spans.append(
                f'<span class="{"drafted" if cell.drafted else "own"}" title="{title}" '
                f'style="background:rgba({",".join(map(str, cell.colour))},.45)">{escape(piece)}</span>'
            )
    return f'<div class="words">{"".join(spans)}</div>'


def legend() -> str:
    """What the colours mean."""
    items = "".join(f'<i style="background:{css_colour(colour)}"></i>{escape(text)}' for colour, text in LEGEND)
    return f'<div class="legend">{items}</div>'


def lane_card(lane: Lane, body: str, done: float | None) -> str:
    """A lane while it runs and afterwards.

    Args:
        lane: The lane.
        body: HTML of what it has made.
        done: Share of the work that is done, if that is known.
    """
    stats = lane.stats
    bar = f'<progress max="1" value="{1.0 if lane.finished else done:.3f}"></progress>' if done is not None else ""
    figures = f"{stats.tokens} tokens, {stats.forwards} forwards, {lane.seconds:.2f} s"
    if stats.forwards:
        figures += f", {stats.tokens_per_forward:.2f} tokens per forward"
    state = "done" if lane.finished else "decoding"
    return (
        f'<div class="lane" data-lane="{lane.name}" data-state="{state}"><h4>{lane.name}</h4>{bar}'
        f'<div class="figures">{figures}</div>{body}</div>'
    )


def note(text: str) -> str:
    """A line in place of a lane or a verdict."""
    return f'<div class="lane" data-state="note">{escape(text)}</div>'


def verdict(lanes: Sequence[Lane], seed: int, cancelled: bool) -> str:
    """The comparison, once all lanes are done; before that, what is going on."""
    if cancelled:
        return f'<div class="verdict" data-state="cancelled">Cancelled; what was decoded stays. Seed {seed}.</div>'
    if not all(lane.finished for lane in lanes):
        return f'<div class="verdict" data-state="decoding">Decoding with seed {seed}.</div>'
    rows = "".join(
        f"<tr><td>{escape(lane.stats.method)}</td><td>{lane.stats.forwards}</td><td>{lane.seconds:.2f}</td>"
        f"<td>{lane.stats.tokens_per_forward:.2f}</td><td>{lane.stats.guarantee.value}</td></tr>"
        for lane in lanes
    )
    head = "".join(f"<th>{name}</th>" for name in ("method", "forwards", "seconds", "tokens per forward", "promise"))
    return (
        f'<div class="verdict" data-state="done">{_comparison(lanes)} Seed {seed}.'
        f"<table><tr>{head}</tr>{rows}</table></div>"
    )


def _comparison(lanes: Sequence[Lane]) -> str:
    if len(lanes) < 2:
        return "Decoded speculatively only."
    plain, fast = lanes
    equal = same_tokens(plain.output, fast.output)
    fewer = plain.stats.forwards / fast.stats.forwards if fast.stats.forwards else float("inf")
    quicker = plain.seconds / fast.seconds if fast.seconds else float("inf")
    answer = '<span class="yes">Tokens equal: yes.</span>' if equal else '<span class="no">Tokens equal: no.</span>'
    return f"{answer} {fewer:.2f} times fewer forwards, {quicker:.2f} times faster."
