"""The help of every command: an example, and lines that fit a terminal of 80 or 100 columns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from mmspec.cli.app import app

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent


def commands(group: typer.core.TyperGroup, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something, by its words."""
    for name, command in group.commands.items():
        words = (*before, name)
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, words)
        else:
            yield words


COMMANDS = sorted(commands(typer.main.get_command(app)))  # type: ignore[arg-type]


def help_of(words: tuple[str, ...], columns: int) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_list_is_whole() -> None:
    assert {("batch",), ("bench", "all"), ("bench", "batch"), ("doctor",), ("train", "emoji-t2i")} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_it_has_an_example_of_itself_with_options_that_exist(words: tuple[str, ...]) -> None:
    text = " ".join(help_of(words, 200).split())
    example = re.search(rf"Example: (mmspec {' '.join(words)}\b.*?)(?: │| ╭|$)", text)
    assert example is not None, text
    for word in example[1].split():
        if word.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text[example.end() :]), word


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_it_fits(words: tuple[str, ...], columns: int) -> None:
    wide = [line for line in help_of(words, columns).splitlines() if cell_len(line.rstrip()) > columns]
    assert not wide
    assert "…" not in help_of(words, columns)  # nothing is cut off


def test_extras_that_are_named_exist() -> None:
    """In help, hints and pages: ``pip install mmspec[NAME]`` works for every NAME."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    folders = [ROOT / name for name in ("mmspec", "image", "speech", "vlm", "pipelines", "docs", "demos")]
    files = [ROOT / "README.md", *(p for folder in folders for kind in ("*.py", "*.md") for p in folder.rglob(kind))]
    named = {
        extra
        for file in files
        for names in re.findall(r"mmspec\[([a-z, ]+)\]", file.read_text())
        for extra in shlex.split(names.replace(",", " "))
    }
    assert named
    assert named <= extras
