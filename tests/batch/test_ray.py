"""The Ray engine: what its workers write is what one process writes, also when a worker is killed in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmspec.batch.engine import run_rows
from mmspec.batch.journal import failures, pending
from mmspec.batch.manifest import Row
from mmspec.batch.ray_engine import RayPool, rows_as_text, rows_from, run_on_ray
from mmspec.batch.tasks import TASKS
from tests.oracles.echo import PIPE, EchoTask, made, rows_of


def open_echo(pids: Path) -> tuple[EchoTask, Any]:
    return made(pause=0.2, pids=pids), PIPE


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".txt"}


def kill_one(pids: Path) -> None:
    """Kill -9 the first worker that was seen once there are two."""
    while len(list(pids.iterdir())) < 2:
        time.sleep(0.05)
    os.kill(int(min(pids.iterdir(), key=lambda path: path.stat().st_ctime_ns).name), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_loses_and_doubles_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    pids, out, alone = (tmp_path / name for name in ("pids", "out", "alone"))
    for folder in (pids, out, alone):
        folder.mkdir()
    rows = rows_of(["a"] * 50 + ["bad", "wrong"] + ["b"] * 48)
    killer = threading.Thread(target=kill_one, args=(pids,), daemon=True)
    killer.start()
    progress = run_on_ray(rows, made(), partial(open_echo, pids), out, 4, RayPool(2))
    killer.join(timeout=1)
    assert not killer.is_alive()
    run_rows(rows, made(), PIPE, alone, 4)
    assert outputs(out) == outputs(alone)
    assert len(outputs(out)) == 98
    assert (progress.done, progress.failed) == (98, 2)
    assert [(row.id, why) for row, why in failures(rows, out)] == [(row.id, why) for row, why in failures(rows, alone)]
    assert pending(rows, out) == []
    assert not list(out.glob(".partial-*"))
    assert len(list(out.glob("journal-ray-*.jsonl"))) == 3  # two workers, and the one that took a place


def test_nothing_to_do_starts_no_cluster(tmp_path: Path) -> None:
    assert run_on_ray([], made(), partial(open_echo, tmp_path), tmp_path, 4, RayPool(2)).done == 0


def test_rows_travel_as_text_with_full_names_and_their_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        Row(
            "a", 1, 2**62 + 1, {"audio": "x/a.wav", "segment_seconds": 0.1}, {"audio": "a.wav", "segment_seconds": 0.1}
        )
    ]
    [back] = rows_from(rows_as_text(rows, TASKS["transcribe"]({}, {})))
    assert back.values["audio"] == str(tmp_path / "x" / "a.wav")
    assert (back.fingerprint, back.seed, back.given["audio"]) == (rows[0].fingerprint, 2**62 + 1, "a.wav")


@pytest.mark.parametrize(("pool", "resources", "said"), [
    (RayPool(4), {"CPU": 3.0}, "4 workers need 4 CPUs, the Ray cluster has 3"),
    (RayPool(2, gpus=1), {"CPU": 3.0}, "2 workers need 2 GPUs, the Ray cluster has 0"),
])  # fmt: skip
def test_a_pool_that_does_not_fit_is_refused(pool: RayPool, resources: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pool.check(resources)


def test_a_pool_has_workers() -> None:
    with pytest.raises(ValueError, match="`workers` is 0"):
        RayPool(0)
