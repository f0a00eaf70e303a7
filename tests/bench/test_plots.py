"""Figures of reports: what is drawn, and that it is what the report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmspec.bench.plots import acceptance_panels, draw_ratios, figures_of, save, time_shares, write_figures

pytest.importorskip("matplotlib")


def method(name: str, **values: Any) -> dict[str, Any]:
    usual = {
        "default": name == "default",
        "forwards_ratio": 4.0,
        "wall_ratio": 2.0,
        "limit_fraction": 0.5,
        "model_share": 0.75,
    }
    return {"name": name, **usual, **values}  # fmt: skip


@pytest.fixture
def report() -> dict[str, Any]:
    parts = {"draft": 1.0, "accept": 0.5, "commit": 0.5, "other": -0.1}
    return {
        "schema": 1, "suite": "image", "device": "cpu",
        "settings": {
            "model": "tiny", "items": 3, "overhead": {"plain": parts, "default": parts},
            "acceptance_by_depth": {"plain": [], "default": [0.9, 0.5]}, "accepted_by_row": {"default": [0.1, 0.2, 0.3]},
        },
        "methods": [method("plain", forwards_ratio=1.0, wall_ratio=1.0), method("default"), method("pair", limit_fraction=0.0)],
    }  # fmt: skip


def test_shares_of_the_time_add_up(report: dict[str, Any]) -> None:
    shares = time_shares(report)
    assert shares.keys() == {"plain", "default"}
    assert sum(shares["default"].values()) == pytest.approx(1.0)
    assert shares["default"] == pytest.approx(
        {"model": 0.75, "draft": 0.125, "accept": 0.0625, "commit": 0.0625, "other": 0.0}
    )


def test_bars_and_marks_are_the_figures(report: dict[str, Any]) -> None:
    left, right = draw_ratios(report).axes
    widths = sorted(round(bar.get_width(), 6) for bar in left.patches)
    assert widths == [2.0, 2.0, 4.0, 4.0]  # plain decoding is the line at 1
    assert [bar.get_width() for bar in right.patches] == [0.5]  # that of the pair was not measured
    [limits] = [line.get_xdata() for line in left.lines if line.get_label() == "limit"]
    assert list(limits) == [4.0]
    assert [label.get_text() for label in left.get_yticklabels()] == ["default  2.00", "pair  2.00"]


def test_what_is_not_there_is_not_drawn(report: dict[str, Any]) -> None:
    assert list(figures_of(report)) == ["ratios", "time", "acceptance"]
    assert list(acceptance_panels(report)) == ["place in the draft", "row of the picture"]
    report["settings"] = {}
    assert list(figures_of(report)) == ["ratios"]


def test_files(report: dict[str, Any], tmp_path: Path) -> None:
    paths = write_figures(report, tmp_path / "new")
    assert [path.name for path in paths] == ["image-ratios.png", "image-time.png", "image-acceptance.png"]
    assert all(path.stat().st_size < 200_000 for path in paths)
    save(draw_ratios(report), tmp_path / "a.png", {"Source": "abc"})
    assert Image.open(tmp_path / "a.png").info["Source"] == "abc"
    assert json.dumps(report)  # drawing changes nothing
