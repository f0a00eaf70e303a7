"""Several processes on one manifest, as torchrun and ``accelerate launch`` start them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from mmspec.batch.workers import Worker, this_worker, wait_for_others
from mmspec.cli.app import app
from tests.oracles.saved import save_tiny_checkpoint

ROWS = 60


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a manifest with a wrong row, and what one process makes of it."""
    folder = tmp_path_factory.mktemp("job")
    save_tiny_checkpoint(folder / "tiny")
    rows = [
        {"prompt": ("a red apple", "a blue dog")[n % 2], "temperature": -1.0 if n == 0 else 0.9} for n in range(ROWS)
    ]
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = CliRunner().invoke(app, ["batch", *arguments(folder, folder / "alone")])
    assert result.exit_code == 1, result.output
    assert len(pictures(folder / "alone")) == ROWS - 1
    return folder


def arguments(job: Path, out: Path) -> list[str]:
    return [str(job / "m.jsonl"), "--out", str(out), "--model", str(job / "tiny"), "--batch-size", "1"]


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


def noted(folder: Path) -> Counter[str]:
    """How often the journals say of each row that it is done."""
    lines = [line for path in folder.glob("journal-*.jsonl") for line in path.read_text().splitlines()]
    return Counter(entry["id"] for entry in map(json.loads, lines) if entry["file"])


def torchrun(job: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        *options,
        "-m",
        "mmspec",
        "batch",
    ]
    return subprocess.Popen([*command, *arguments(job, out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("restarts", [0, 1], ids=["resumed", "restarted"])
def test_a_killed_worker_loses_and_doubles_nothing(job: Path, tmp_path: Path, restarts: int) -> None:
    launcher = torchrun(job, tmp_path, "--max-restarts", str(restarts))
    journal = tmp_path / "journal-1.jsonl"
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
        assert launcher.poll() is None
        time.sleep(0.02)
    [victim] = [
        child for child in psutil.Process(launcher.pid).children() if child.environ().get("RANK") == "1"
    ]  # fmt: skip
    victim.kill()
    assert launcher.wait() != 0  # a worker was killed, or in the end a row has failed
    if not restarts:
        assert 0 < len(pictures(tmp_path)) < ROWS - 1
        launcher = torchrun(job, tmp_path)
        assert launcher.wait() != 0  # for the row that is wrong, and only after the other worker has done its share
    assert pictures(tmp_path) == pictures(job / "alone")
    assert noted(tmp_path) == dict.fromkeys((name.removesuffix(".png") for name in pictures(tmp_path)), 1)
    again = CliRunner().invoke(app, ["batch", *arguments(job, tmp_path)])  # one process reads all journals
    assert f"{ROWS - 1} of {ROWS} rows are done, 0 of them in this run" in again.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_makes_what_one_process_makes(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    command = [sys.executable, "-m", "mmspec", "batch", *arguments(job, tmp_path), "--engine", "ray", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr  # for the row that is wrong
    assert "line 1 (0001): ValueError: `temperature`" in done.stderr
    assert pictures(tmp_path) == pictures(job / "alone")
    assert noted(tmp_path) == dict.fromkeys((name.removesuffix(".png") for name in pictures(tmp_path)), 1)
    again = CliRunner().invoke(app, ["batch", *arguments(job, tmp_path)])  # and one process reads Ray's journals
    assert f"{ROWS - 1} of {ROWS} rows are done, 0 of them in this run" in again.output


def test_ranks_share_all_rows_once() -> None:
    shares = [Worker(rank, 3).share(range(10)) for rank in range(3)]
    assert sorted(row for share in shares for row in share) == list(range(10))


def test_a_contradictory_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK is 2 and WORLD_SIZE 2"):
        this_worker()


WAITING = """
import sys, time
from datetime import timedelta
from mmspec.batch.workers import this_worker, wait_for_others
worker = this_worker()
time.sleep(3.0 * worker.rank)
wait_for_others(worker, timedelta(seconds=120))
sys.stdout.write(f"{time.time()}\\n")
"""


@pytest.mark.slow
def test_workers_wait_for_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "waiting.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert abs(float(told[0]) - float(told[1])) < 2.5  # they set out 3 s apart


def test_without_a_launcher_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    wait_for_others(Worker(0, 2), timedelta(0))


@pytest.mark.parametrize(("options", "said"), [
    (["--engine", "spark"], "choose one of local, ray"),
    (["--workers", "3"], "--workers goes with --engine ray"),
])  # fmt: skip
def test_wrong_calls(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "m.txt").write_text("cat")
    result = CliRunner().invoke(app, ["batch", str(tmp_path / "m.txt"), "--out", str(tmp_path / "o"), *options])
    assert result.exit_code == 2
    assert said in result.output


def test_ray_under_a_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "m.txt").write_text("cat")
    result = CliRunner().invoke(
        app, ["batch", str(tmp_path / "m.txt"), "--out", str(tmp_path / "o"), "--engine", "ray"]
    )
    assert "but a launcher started 2" in result.output
