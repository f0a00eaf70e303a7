"""The pages keep their promises: their Python runs, block after block, and so do the commands in ``bash`` blocks.

Blocks that need a released checkpoint are not run; their names and arguments are checked against the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mmspec
from mmspec.cli.app import app
from mmspec.models.loading import embedded_checkpoints
from tests.docs.reading import PAGES, ROOT, Block, blocks, name_of

CHECKPOINTS = ROOT / "mmspec" / "checkpoints"

#: pages whose Python needs released weights, or a machine that a test has not
UNRUN = ("benchmarks.md", "checkpoints.md", "cluster.md", "demos.md", "families/")
#: single blocks, by page and line of their text, that need what no embedded checkpoint has
NEEDS = {
    ("text-to-speech.md", 'depth="maskgit"'): "a network that mmspec/tiny-tts has not",
    ("text-to-speech.md", "sesame/csm-1b"): "released weights",
}


def python(page: Path) -> list[Block]:
    """The Python blocks of a page but for shown files, which have tests of their own."""
    return [block for block in blocks(page.read_text()) if block.language == "python" and block.included is None]


WITH_PYTHON = [page for page in PAGES if python(page)]
RUN = [page for page in WITH_PYTHON if not name_of(page).startswith(UNRUN)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the files that pages speak of."""
    shutil.copy(CHECKPOINTS / "tiny-asr" / "samples" / "sequence-1.flac", tmp_path / "talk.wav")
    for name in ("ball.png", "emoji.png", "line.png"):
        shutil.copy(CHECKPOINTS / "tiny-video" / "samples" / "00.png", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_runs(page: Path, place: Path) -> None:
    text = page.read_text()
    if "mmspec/tiny-vlm" in text and "mmspec/tiny-vlm" not in embedded_checkpoints():
        pytest.skip("the embedded mmspec/tiny-vlm is not there yet")
    # what a reader brings along: somewhere to play sound
    names: dict[str, Any] = {"play": lambda samples, rate: None}
    for block in blocks(text):
        if block.language == "bash":
            run_commands(block)
        elif block in python(page) and reason_to_skip(page, block) is None:
            # as many lines before it as in the page, so that a traceback shows the line of the page
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)


def reason_to_skip(page: Path, block: Block) -> str | None:
    return next((why for (name, words), why in NEEDS.items() if name == name_of(page) and words in block.code), None)


def run_commands(block: Block) -> None:
    for line in block.code.splitlines():
        words = shlex.split(line)
        assert words[0] == "mmspec", f"a bash block is run in this process: {line}"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (line, done.output)


def test_what_is_not_run_says_why() -> None:
    for name, words in NEEDS:
        page = next(page for page in PAGES if name_of(page) == name)
        assert any(words in block.code for block in blocks(page.read_text())), f"{words} is not on {name} any more"


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_of_a_page_names_what_there_is(page: Path) -> None:
    for block in python(page):
        try:
            check_names(ast.parse(block.code))
        except Exception as error:
            raise AssertionError(f"{name_of(page)}, line {block.line}: {error}") from error


def check_names(tree: ast.Module) -> None:
    """Raise if a name of mmspec does not exist, or a call has an argument that what it calls does not take."""
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "mmspec":
            module = importlib.import_module(node.module)
            known |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = {word.arg for word in node.keywords if word.arg}
            if isinstance(node.func, ast.Name) and node.func.id == "pipe":
                assert given <= call_arguments(), f"no pipeline takes {sorted(given - call_arguments())}"
            elif isinstance(node.func, ast.Name) and node.func.id in known:
                taken = inspect.signature(known[node.func.id]).parameters
                if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
                    assert given <= taken.keys(), f"{node.func.id} does not take {sorted(given - taken.keys())}"


def call_arguments() -> set[str]:
    """The arguments of all pipelines."""
    pipelines = [getattr(mmspec, name) for name in mmspec.__all__ if name.endswith("Pipeline")]
    taken = [
        inspect.signature(pipeline.__call__).parameters for pipeline in pipelines if "Auto" not in pipeline.__name__
    ]
    return {name for parameters in taken for name in parameters}


def test_wrong_names_and_arguments_are_found() -> None:
    """The check above can fail."""
    for wrong in (
        "from mmspec import NoSuchDrafter",
        "from mmspec import JacobiDrafter\nJacobiDrafter(windows=3)",
        "pipe('a cat', sed=3)",
    ):
        with pytest.raises((AssertionError, AttributeError)):
            check_names(ast.parse(wrong))
    check_names(ast.parse("from mmspec import JacobiDrafter\nJacobiDrafter(window=3)\npipe('a cat', seed=3)"))
