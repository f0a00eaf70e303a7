"""What may go wrong around a model: damaged files, names that lead elsewhere, no network, long runs."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmspec.batch.engine import RowRunner, run_rows
from mmspec.batch.journal import Journal
from mmspec.batch.manifest import read_manifest
from mmspec.batch.tasks import ImageTask
from mmspec.cli.app import app
from mmspec.cli.batch import LOADERS
from mmspec.models.loading import EMBEDDED, embedded_checkpoints
from tests.oracles.echo import PIPE, content_of, made, rows_of
from tests.oracles.saved import save_tiny_checkpoint
from tests.oracles.tiny import tiny_pipeline

ROOT = Path(__file__).resolve().parent.parent
CODE = [
    path for name in ("mmspec", "image", "speech", "vlm", "pipelines", "demos") for path in (ROOT / name).rglob("*.py")
]
TASKS = [task for task, (name, _) in LOADERS.items() if name in embedded_checkpoints()]


# -- damaged checkpoints -----------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The embedded checkpoint of a task, to be damaged."""
    name, _ = LOADERS[request.param]
    folder = tmp_path / request.param
    shutil.copytree(EMBEDDED / name.removeprefix("mmspec/"), folder, ignore=shutil.ignore_patterns("samples"))
    return folder


def parts(folder: Path, pattern: str) -> list[Path]:
    """Files of the components that ``model_index.json`` names."""
    names = json.loads((folder / "model_index.json").read_text())
    return sorted(path for name in names if (folder / name).is_dir() for path in (folder / name).glob(pattern))


def refused(folder: Path) -> str:
    """What loading says; it must be an error for users."""
    _, load = LOADERS[folder.name]
    with pytest.raises((ValueError, OSError)) as caught:
        load(str(folder), "cpu", "auto")
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("copy", TASKS, indirect=True)
def test_weights_cut_short_are_refused_by_file(copy: Path) -> None:
    for path in parts(copy, "*.safetensors"):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert str(path) in refused(copy)
        path.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("copy", TASKS, indirect=True)
def test_pickled_weights_are_refused(copy: Path) -> None:
    path = parts(copy, "*.safetensors")[0]
    torch.save(load_file(path), path.with_suffix(".bin"))
    path.unlink()
    assert "pickle" in refused(copy)


@pytest.mark.slow
@pytest.mark.parametrize("copy", TASKS, indirect=True)
def test_damaged_configurations_are_refused_by_file(copy: Path) -> None:
    for path in [copy / "model_index.json", *parts(copy, "config.json")]:
        whole = path.read_text()
        path.write_text(whole[: len(whole) // 2])
        assert str(path) in refused(copy)
        path.write_text(whole)


UNSAFE = {
    "pickle": ("load", "loads", "Unpickler"),
    "dill": ("load", "loads"),
    "joblib": ("load",),
    "marshal": ("load", "loads"),
}


def unsafe_calls(source: str) -> Iterator[str]:
    """Calls that may run code of the file they read."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in UNSAFE.get(owner, ()):
            yield f"{owner}.{name}"
        if (owner, name) == ("torch", "load") and options.get("weights_only") != "True":
            yield "torch.load"
        if owner in ("np", "numpy") and name == "load" and options.get("allow_pickle", "False") != "False":
            yield "numpy.load"


def test_no_pickle_is_ever_run() -> None:
    assert CODE
    for path in CODE:
        assert list(unsafe_calls(path.read_text())) == [], path


@pytest.mark.parametrize("source", [
    "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f, allow_pickle=True)", "pickle.loads(b)",
])  # fmt: skip
def test_a_pickle_would_be_noticed(source: str) -> None:
    assert list(unsafe_calls(source))


# -- names that lead elsewhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "../x", "..", ".", "/etc/x", "a/../../x", "a\\..\\x", "C:x", "~", "~root", "-rf", ".partial-0-x", "x\u2215y", "x\x00", "x\n", "",
    " ", "x ", "x.", "con", "a" * 129,
])  # fmt: skip
def test_ids_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"id": name, "prompt": "cat"}))
    with pytest.raises(ValueError, match="it names a file"):
        read_manifest(path, ImageTask.columns, "prompt")


def test_a_journal_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    (folder / "journal-0.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="is a link"):
        Journal(folder)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("there", [True, False], ids=["link", "dangling"])
def test_links_in_an_output_folder_are_not_followed(tmp_path: Path, there: bool) -> None:
    model, out, outside = save_tiny_checkpoint(tmp_path / "tiny"), tmp_path / "out", tmp_path / "outside.png"
    out.mkdir()
    if there:
        outside.write_text("precious")
    (out / "a-red-apple-0001.png").symlink_to(outside)
    words = ["image", "a red apple", "--model", str(model), "--out", str(out), "--overwrite"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert not (out / "a-red-apple-0001.png").is_symlink()
    assert outside.exists() == there
    if there:
        assert outside.read_text() == "precious"


# -- no network --------------------------------------------------------------------------------------------------------

OFFLINE = """
import json, socket, sys

touched = []
def refuse(*arguments, **options):
    touched.append(repr(arguments[-1]))
    raise OSError("the network is blocked")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse

from typer.testing import CliRunner
from mmspec.cli.app import app
from mmspec.models.loading import EMBEDDED
codes = {}
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, words)
    codes[" ".join(words[:2])] = (result.exit_code, result.output[-500:])
sys.stdout.write("RESULT" + json.dumps([codes, touched]))
"""


def blocked(tmp_path: Path, *commands: list[str]) -> tuple[dict[str, tuple[int, str]], list[str]]:
    """Run commands in a process that cannot open a connection: exit codes, and the attempts."""
    hub = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    environment = hub | {"HF_HOME": str(tmp_path / "hub"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, json.dumps(commands)], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    codes, touched = json.loads(done.stdout.split("RESULT")[1])
    return codes, touched


@pytest.mark.slow
def test_nothing_but_a_hub_id_touches_the_network(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("red apple, noto style\n")
    commands = [
        ["doctor"],
        ["models"],
        ["image", "red apple, noto style", "--out", "a.png"],
        ["batch", "m.txt", "--out", "batch"],
    ]
    if "mmspec/tiny-asr" in embedded_checkpoints():
        commands.append(["transcribe", str(EMBEDDED / "tiny-asr" / "samples" / "human-0.flac")])
    if "mmspec/tiny-tts" in embedded_checkpoints():
        commands.append(["speak", "the conference is now unmuted.", "--out", "a.wav"])
    if "mmspec/tiny-video" in embedded_checkpoints():
        commands.append(["video", str(EMBEDDED / "tiny-video" / "samples" / "00.png"), "--out", "clip.gif"])
    codes, touched = blocked(tmp_path, *commands)
    assert {name: code for name, code in codes.items() if code[0]} == {}
    assert touched == []


@pytest.mark.slow
def test_a_hub_id_does(tmp_path: Path) -> None:
    codes, touched = blocked(tmp_path, ["image", "cat", "--model", "owner/name", "--out", "a.png"])
    assert touched
    assert codes["image cat"][0] == 2


# -- long runs ---------------------------------------------------------------------------------------------------------


def test_a_smaller_micro_batch_is_kept_for_later_rows(tmp_path: Path) -> None:
    """Workers that get rows bit by bit do not run out of memory again and again."""
    rows = rows_of(list("abcdefgh"))
    with RowRunner(made(most=2), PIPE, tmp_path, 4) as runner:
        runner.run(rows[:4])
        assert runner.progress.notes == ["4 rows at once do not fit into memory; going on with 2."]
        runner.run(rows[4:])
    assert len(runner.progress.notes) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.txt")} == {
        f"{row.id}.txt": content_of(row) for row in rows
    }


@pytest.mark.slow
def test_a_thousand_pictures_need_no_more_memory_than_two_hundred(tmp_path: Path) -> None:
    import psutil

    manifest = tmp_path / "m.txt"
    manifest.write_text("\n".join(f"a red apple {n % 7}" for n in range(1000)))
    rows = read_manifest(manifest, ImageTask.columns, "prompt")
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    task, resident = ImageTask({}, {}), psutil.Process().memory_info
    run_rows(rows[:200], task, pipe, tmp_path, 32)
    before = resident().rss
    run_rows(rows[200:], task, pipe, tmp_path, 32)
    assert len(list(tmp_path.glob("*.png"))) == 1000
    assert resident().rss - before < 48 << 20
