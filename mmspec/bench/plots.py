"""Figures of a bench report, as its JSON holds it: ratios and the limit, where the time goes, where drafts are accepted.

``limit`` is the wall ratio that a loop would have which costs nothing beside the forwards it makes (see :mod:`mmspec.bench.report`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORWARDS, WALL, LIMIT = "#b5c9dd", "#2f6690", "#c8553d"
PARTS = {"model": "#2f6690", "draft": "#e2a13b", "accept": "#6a994e", "commit": "#8d6b94", "other": "#b0b0b0"}
_GROUPS = {
    "accepted_by_row": "row of the picture",
    "accepted_by_frame": "frame",
    "accepted_by_codebook": "codebook",
}
_DPI = 110
_MOST_LINES = 8
_LONGEST = 32  # depths drawn; beyond, few rounds are left to tell anything

Report = Mapping[str, Any]


def check_installed() -> None:
    """Raise ImportError that says how to get matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(f"Figures need matplotlib: pip install 'mmspec[bench]' ({error}).") from error


def figures_of(report: Report) -> dict[str, Callable[[], Figure]]:
    """What can be drawn of ``report``, by name: ``ratios`` always, ``time`` and ``acceptance`` where it has the figures."""
    makers: dict[str, Callable[[], Figure]] = {"ratios": lambda: draw_ratios(report)}
    if time_shares(report):
        makers["time"] = lambda: draw_time(report)
    if acceptance_panels(report):
        makers["acceptance"] = lambda: draw_acceptance(report)
    return makers


def save(figure: Figure, path: Path, facts: Mapping[str, str] | None = None) -> Path:
    """Write ``figure`` as PNG with ``facts`` in its text chunks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata=dict(facts or {}))
    return path


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Draw all figures of ``report`` to ``folder``, named ``SUITE-FIGURE.png``; returns the files."""
    check_installed()
    return [save(make(), folder / f"{report['suite']}-{name}.png") for name, make in figures_of(report).items()]


def draw_ratios(report: Report) -> Figure:
    """Forwards and wall clock against plain decoding, the limit, and what share of it is reached where that was measured."""
    methods = [method for method in report["methods"] if method["name"] != "plain"]
    figure, (left, right) = _panels(report, len(methods), (3.0, 1.0))
    places = range(len(methods))
    forwards, walls, shares = ([m[key] for m in methods] for key in ("forwards_ratio", "wall_ratio", "limit_fraction"))
    measured = [place for place in places if shares[place] > 0]
    left.barh([p - 0.2 for p in places], forwards, 0.36, color=FORWARDS, label="forwards, times fewer")
    left.barh([p + 0.2 for p in places], walls, 0.36, color=WALL, label="wall clock, times faster (the number)")
    limits = [walls[place] / shares[place] for place in measured]
    heights = [place + 0.2 for place in measured]
    left.plot(limits, heights, "|", color=LIMIT, markersize=11, markeredgewidth=2, label="limit")
    left.axvline(1, color="#555555", linewidth=0.8)
    left.set_xlabel("plain decoding / method")
    right.barh(measured, [shares[place] for place in measured], 0.55, color=WALL)
    for place in measured:
        _note(right, f"{shares[place]:.0%}", max(shares[place], 1.0), place)
    right.axvline(1, color=LIMIT, linewidth=1.5)
    right.set_xlim(0, 1.25 * max(1.0, *shares))
    right.set_xlabel("share of the limit")
    _finish(figure, left, right, methods, [f"{m['name']}  {m['wall_ratio']:.2f}" for m in methods])
    return figure


def draw_time(report: Report) -> Figure:
    """Shares of the decoding loop's time, a bar a method."""
    shares = time_shares(report)
    methods = [method for method in report["methods"] if method["name"] in shares]
    figure, (axes,) = _panels(report, len(methods), (1.0,))
    begin = [0.0] * len(methods)
    for part, colour in PARTS.items():
        widths = [shares[method["name"]].get(part, 0.0) for method in methods]
        axes.barh(range(len(methods)), widths, 0.6, left=begin, color=colour, label=part)
        begin = [start + width for start, width in zip(begin, widths, strict=True)]
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the decoding loop's time")
    _finish(figure, axes, None, methods, [method["name"] for method in methods], legend_columns=len(PARTS))
    return figure


def draw_acceptance(report: Report) -> Figure:
    """Share of accepted drafts by place in the draft, and by row, frame or codebook."""
    from matplotlib.figure import Figure

    panels = acceptance_panels(report)
    figure = Figure(figsize=(5.2 * len(panels) + 0.8, 3.9), layout="constrained")
    several = figure.subplots(1, len(panels), squeeze=False)[0]
    names = _lines_of(report, panels)
    for axes, (label, series) in zip(several, panels.items(), strict=True):
        for name in names:
            if values := series.get(name, [])[:_LONGEST]:
                marker = "." if len(values) < 20 else ""
                axes.plot(range(1, len(values) + 1), values, marker=marker, linewidth=1.6, label=name)
        axes.set_xlabel(label)
        axes.set_ylabel("share accepted")
        axes.set_ylim(0, 1)
        axes.grid(color="#e5e5e5")
        _plain_frame(axes)
    handles, labels = several[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"{_title(report)}: accepted drafts", fontsize=10, x=0.01, ha="left")
    return figure


def time_shares(report: Report) -> dict[str, dict[str, float]]:
    """Share of every part of a round in the loop's time, by method, where the report has milliseconds by part."""
    settings = report["settings"]
    overhead = settings.get("overhead") or settings.get("overhead_ms") or {}
    shares = {}
    for method in report["methods"]:
        parts = {part: max(0.0, value) for part, value in overhead.get(method["name"], {}).items()}
        if total := sum(parts.values()):
            outside = 1 - method["model_share"]
            shares[method["name"]] = {
                "model": method["model_share"],
                **{part: outside * value / total for part, value in parts.items()},
            }
    return shares


def acceptance_panels(report: Report) -> dict[str, dict[str, list[float]]]:
    """Axis label to the shares of each method that drafts."""
    settings = report["settings"]
    panels = {"place in the draft": settings.get("acceptance_by_depth", {})}
    panels |= {label: settings.get(key, {}) for key, label in _GROUPS.items()}
    return {label: series for label, series in panels.items() if any(series.values())}


def _lines_of(report: Report, panels: Mapping[str, Mapping[str, list[float]]]) -> list[str]:
    """Methods to draw as lines: the default and those that come first in the report."""
    ranked = sorted(report["methods"], key=lambda method: not method["default"])
    names = [method["name"] for method in ranked if any(series.get(method["name"]) for series in panels.values())]
    return names[:_MOST_LINES]


def _panels(report: Report, bars: int, widths: Sequence[float]) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 1.5 + 0.36 * bars), layout="constrained")
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False, sharey=True)[0]
    figure.suptitle(_title(report), fontsize=10, x=0.01, ha="left")
    return figure, axes


def _finish(
    figure: Figure,
    first: Axes,
    second: Axes | None,
    methods: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    legend_columns: int = 3,
) -> None:
    """Labels of the methods, from the top, and the legend; the default's label is bold."""
    first.set_yticks(range(len(methods)), labels, fontsize=8)
    for label, method in zip(first.get_yticklabels(), methods, strict=True):
        label.set_fontweight("bold" if method["default"] else "normal")
    first.set_ylim(len(methods) - 0.4, -0.6)  # from the top; the axis is shared
    for axes in (first, second):
        if axes is not None:
            _plain_frame(axes)
    figure.legend(loc="outside lower center", ncols=legend_columns, frameon=False, fontsize=8)


def _note(axes: Axes, text: str, x: float, y: float) -> None:
    """Write ``text`` to the right of (x, y)."""
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)


def _plain_frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _title(report: Report) -> str:
    settings = report["settings"]
    parts = [report["suite"], str(settings.get("model", "")), f"{settings.get('items', '?')} items", report["device"]]
    return ", ".join(part for part in parts if part)
