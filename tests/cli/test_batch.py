"""``mmspec batch`` on embedded models: outputs equal single calls, it resumes, fails by row, and rehearses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli.app import app
from mmspec.models.loading import local_folder


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["batch", *map(str, arguments)])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest with equal rows, a bad option and an own seed, generated once."""
    folder = tmp_path_factory.mktemp("batch")
    lines = [
        {"prompt": "red apple, noto style"}, {"prompt": "red apple, noto style", "id": "again", "seed": 0},
        {"prompt": "crab, twemoji style", "temperature": -1.0}, {"class_label": "1"},
    ]  # fmt: skip
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run(folder / "m.jsonl", "--out", folder / "out")
    assert result.exit_code == 1, result.output
    assert "line 3 (0003): ValueError: `temperature`" in result.output
    return folder


def test_pictures_are_those_of_single_calls(pictures: Path) -> None:
    from mmspec import LlamaGenPipeline

    pipe = LlamaGenPipeline.from_pretrained("mmspec/emoji-t2i")
    pipe.set_progress_bar_config(disable=True)
    alone = pipe("red apple, noto style", seed=0).images[0]
    out = pictures / "out"
    assert sorted(path.name for path in out.iterdir()) == ["0001.png", "0004.png", "again.png", "journal-0.jsonl"]
    for name in ("0001.png", "again.png"):
        picture = Image.open(out / name)
        assert np.array_equal(np.asarray(picture), np.asarray(alone))
        facts: dict[str, str] = picture.text  # type: ignore[attr-defined]
        assert (facts["seed"], facts["guarantee"], facts["prompt"]) == ("0", "SAME_TOKENS", "red apple, noto style")
        assert len(facts["weights"]) == 16


def test_done_and_failed_rows_are_left_alone(pictures: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (pictures / "out").iterdir()}
    result = run(pictures / "m.jsonl", "--out", pictures / "out")
    assert result.exit_code == 1
    assert "3 of 4 rows are done, 0 of them in this run" in result.output
    assert {path.name: path.stat().st_mtime_ns for path in (pictures / "out").iterdir()} == before


def test_rehearsal(pictures: Path, tmp_path: Path) -> None:
    result = run(pictures / "m.jsonl", "--out", tmp_path / "none", "--dry-run")
    assert result.exit_code == 1
    assert "4 rows, 4 to do, in 2 micro-batches" in result.output
    assert "GiB of weights" in result.output
    assert not (tmp_path / "none").exists()


def test_transcripts(tmp_path: Path) -> None:
    samples = local_folder("mmspec/tiny-asr")
    assert samples is not None
    (tmp_path / "m.csv").write_text(
        f"id,audio\none,{Path(samples) / 'samples/human-0.flac'}\ntwo,{tmp_path / 'none.wav'}\n"
    )
    result = run(tmp_path / "m.csv", "--out", tmp_path / "out", "--task", "transcribe")
    assert result.exit_code == 1, result.output
    assert "which is no file" in result.output
    told = json.loads((tmp_path / "out" / "one.json").read_text())
    assert told["text"]
    assert told["method"].endswith("coupled")


def test_wrong_calls(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("cat")
    assert "choose one of image" in run(tmp_path / "m.txt", "--out", tmp_path / "o", "--task", "sing").output
    assert "is a file" in run(tmp_path / "m.txt", "--out", tmp_path / "m.txt").output
    assert run(tmp_path / "none.txt", "--out", tmp_path / "o").exit_code == 2
