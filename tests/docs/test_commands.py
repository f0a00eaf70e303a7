"""Every command line on a page is one that exists: programs, sub-commands, options, arguments, settings of methods, files and extras."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.cli.app import app
from mmspec.drafters import DRAFTERS
from mmspec.schedules import SCHEDULES
from tests.docs.reading import PAGES, ROOT, commands, name_of

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

README = ROOT / "README.md"
CARDS = sorted((ROOT / "mmspec" / "checkpoints").glob("*/README.md"))
WITH_COMMANDS = [page for page in (README, *CARDS, *PAGES) if commands(page.read_text())]
KINDS = {"drafter": DRAFTERS, "acceptance": ACCEPTANCE_RULES, "schedule": SCHEDULES}


def label(page: Path) -> str:
    return name_of(page) if page in PAGES else page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=label)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for line in commands(page.read_text()):
        try:
            check_line(line)
        except Exception as error:
            raise AssertionError(f"{label(page)}: {line}\n{error}") from error


def check_line(line: str) -> None:
    """Raise if a command line would not be understood."""
    for part in re.split(r"\s(?:\||&&)\s", line):  # pipes, and one command after the other
        words = shlex.split(part, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        program, rest = Path(words[0]).name, words[1:]
        if "-m" in rest and "mmspec" in rest[rest.index("-m") :]:  # torchrun, accelerate launch, python -m
            program, rest = "mmspec", rest[rest.index("mmspec") + 1 :]
        CHECKS[program](rest)


def check_mmspec(words: list[str]) -> None:
    parse(get_command(app), words)
    if words[:1] == ["train"]:
        return  # there --drafter is a folder, and --set speaks of the recipe
    named = {kind: option(words, f"--{kind}") for kind in KINDS}
    for assignment in [words[i + 1] for i, word in enumerate(words) if word == "--set"]:
        kind, _, setting = assignment.partition("=")[0].partition(".")
        if kind in KINDS and named[kind]:
            legal = inspect.signature(KINDS[kind].load(named[kind])).parameters
            assert setting in legal, f"{named[kind]} has no setting {setting!r}"
    for kind, name in named.items():
        if name:
            KINDS[kind].load(name)


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def parse(command: Any, words: list[str]) -> None:
    """Follow the sub-commands and let the last one read its options, without converting or running anything."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        while words and words[0].startswith("--"):
            words = words[1:]
        if not words:  # a group by itself shows its help
            return
        inner = command.get_command(context, words[0])
        assert inner is not None, f"there is no command {words[0]!r}"
        context = inner.make_context(words[0], [], parent=context, resilient_parsing=True)
        command, words = inner, words[1:]
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest, f"too many arguments: {rest}"
    if "--help" not in words:
        missing = [each.name for each in command.params if each.required and given.get(each.name) in (None, (), [])]
        assert not missing, f"missing: {missing}"


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:mmspec|\.)\[([\w,-]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys(), f"unknown extra in {extras}"


def check_python(words: list[str]) -> None:
    if words[:2] == ["-m", "pip"]:
        check_pip(words[2:])
    elif words[0] == "-m":
        assert words[1] in ("pytest", "venv"), f"unknown module {words[1]}"
    else:
        assert (ROOT / words[0]).is_file(), f"there is no {words[0]}"


def check_mkdocs(words: list[str]) -> None:
    assert words[0] in ("build", "serve")
    assert (ROOT / words[words.index("-f") + 1]).is_file()


def check_hub(words: list[str]) -> None:
    command, repository, *files = words
    assert command == "download"
    assert re.fullmatch(r"[\w-]+/[\w.-]+", repository), f"{repository} is no name of a repository"
    assert files[-2:-1] == ["--local-dir"]
    assert not any(file.startswith("-") for file in files[:-2])


CHECKS = {
    "aplay": lambda words: None, "hf": check_hub, "mkdocs": check_mkdocs, "mmspec": check_mmspec, "npm": lambda words: None,
    "pip": check_pip, "python": check_python, "python3": check_python,
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "mmspec imagine 'a cat'",
        "mmspec image 'a cat' --sed 3",
        "mmspec ask picture.png",
        "mmspec convert llamagen a.pt b.pt",
        "mmspec image x --drafter jacobi --set drafter.windows=3",
        "mmspec image x --drafter no-such-drafter",
        "pip install 'mmspec[no-such-extra]'",
        "python docs/no_such_file.py",
        "accelerate launch --num_processes 2 -m mmspec batch a.txt --no-such-option 1",
        "hf download",
        "no-such-program",
    ],
)
def test_wrong_commands_are_found(line: str) -> None:
    assert not understood(line)


def understood(line: str) -> bool:
    try:
        check_line(line)
    except Exception:  # which class typer's parser raises depends on its version
        return False
    return True


def test_commands_are_read_from_every_place() -> None:
    text = "```console\n$ mmspec ask a \\\n    b\n```\n\n    A=1 mmspec image x\n\n```python\nmmspec = 1\n```\nmmspec is a word\n"
    assert commands(text) == ["mmspec ask a b", "A=1 mmspec image x"]
