"""The README keeps its promises: its Python runs against this code, its table is that of the committed bench."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmspec

ROOT = Path(__file__).resolve().parent.parent
SHEET = ROOT / "demos" / "contact_sheet.png"
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "demos" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert (tmp_path / "apple.png").exists()


def test_the_speech_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = [block for block in blocks("python") if "AutoSpeechRecognitionPipeline" in block]
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["out"].texts[0]


def test_the_voice_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks("python") if "TextToSpeechPipeline" in block]
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "password.wav").stat().st_size > 20_000


def test_the_video_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks("python") if "VideoPipeline" in block]
    exec(compile(example.replace('"mmspec/checkpoints', f'"{ROOT}/mmspec/checkpoints'), "README.md", "exec"), {})
    assert (tmp_path / "moving.gif").stat().st_size > 0


def test_examples_that_need_a_hub_name_things_that_exist() -> None:
    for block in blocks("python"):
        for names in re.findall(r"^from mmspec import (.+)$", block, flags=re.MULTILINE):
            for name in names.split(", "):
                assert inspect.isclass(getattr(mmspec, name))


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script("quickstart")
    assert (tmp_path / "apple.png").exists()


def test_the_contact_sheet_can_be_drawn_again(tmp_path: Path) -> None:
    script("contact_sheet").main(tmp_path / "sheet.png")
    drawn, committed = (np.asarray(Image.open(f), dtype=float) for f in (tmp_path / "sheet.png", SHEET))
    assert drawn.shape == committed.shape
    assert np.abs(drawn - committed).mean() < 2  # of 255: other processors round differently


def test_the_tables_are_those_of_the_committed_benches() -> None:
    for path, text in script("readme_table").pages().items():
        assert path.read_text() == text, f"{path} is stale: run python demos/readme_table.py"


def test_the_figures_are_those_of_the_committed_benches() -> None:
    figures = script("figures")
    assert figures.stale() == [], "run python demos/figures.py"
    assert figures.page() == figures.PAGE.read_text(), "run python demos/figures.py"
    assert all(path.stat().st_size < 200_000 for path in figures.FIGURES.iterdir())


def test_a_stale_figure_is_noticed(tmp_path: Path) -> None:
    figures = script("figures")
    shown, (_, result) = next(iter(figures.wanted().items()))
    assert figures.digest_in(shown) == figures.digest(result)
    changed = tmp_path / result.name
    changed.write_text(result.read_text().replace("0", "1", 1))
    assert figures.digest_in(shown) != figures.digest(changed)


def test_shell_commands_outside_ci_are_those_of_the_command_line() -> None:
    from typer.testing import CliRunner

    from mmspec.cli.app import app

    for block in blocks("console"):
        for line in block.splitlines():
            words = line.removeprefix("$ ").split()
            assert words[0] == "mmspec"
            options = [word for word in words if word.startswith("--")]
            command = words[1:3] if words[1] in ("convert", "train", "bench") else words[1:2]
            shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
            assert all(option in shown for option in options), (line, shown)
