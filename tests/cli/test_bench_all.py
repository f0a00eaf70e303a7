"""``mmspec bench all``: one file and one folder of figures for several suites; a broken promise is an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from mmspec.cli import bench_all


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_suites(mmspec: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = (
        "--suite",
        "batch",
        "--suite",
        "video",
        "--items",
        "1",
        "--quick",
        "--json",
        "all.json",
        "--plot",
        "figures",
    )
    result = mmspec("bench", "all", *words)
    assert result.exit_code == 0, result.output
    whole = json.loads((tmp_path / "all.json").read_text())
    assert (whole["schema"], whole["suite"]) == (1, "all")
    assert {"versions", "cpu", "date", "device"} <= whole.keys()
    assert [report["suite"] for report in whole["suites"]] == ["batch", "video"]
    video = whole["suites"][1]
    assert all(0 <= share <= 1 for share in video["settings"]["accepted_by_frame"]["default"])
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"batch-ratios.png", "video-ratios.png", "video-time.png", "video-acceptance.png"} <= names


def test_a_broken_promise_is_told_after_the_other_suites(
    mmspec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(name: str, code: int) -> Any:
        def run(json_file: Path, **options: Any) -> None:
            json_file.write_text(json.dumps({"suite": name, "device": "cpu"}))
            if code:
                raise typer.Exit(code)

        return run

    for name, code in (("asr", 1), ("tts", 0)):
        monkeypatch.setitem(bench_all.SUITES, name, ("mmspec/tiny", fake(name, code)))
    result = mmspec("bench", "all", "--suite", "asr", "--suite", "tts", "--json", "all.json")
    assert result.exit_code == 1
    assert "not equal to plain decoding: asr" in result.output
    assert [report["suite"] for report in json.loads((tmp_path / "all.json").read_text())["suites"]] == ["asr", "tts"]


def test_wrong_calls(mmspec: Any, tmp_path: Path) -> None:
    result = mmspec("bench", "all", "--suite", "smell")
    assert result.exit_code == 2
    assert "choose from image, asr, tts, video, vlm, batch" in result.output
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    assert mmspec("bench", "all", "--plot", "file").exit_code == 2
