"""The engine: no interruption loses, doubles or halves a row; one bad row fails alone; memory that runs out halves the batch."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from mmspec.batch.engine import micro_batches, run_rows
from mmspec.batch.journal import Journal, failures, pending, read_journals
from mmspec.batch.manifest import Row
from mmspec.batch.outputs import clear_partial, write_whole
from tests.oracles.echo import PIPE, content_of, made, rows_of


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    """Kill -9 at 20 random moments; afterwards the folder is that of a run without interruption."""
    rows, rng = rows_of(["same"] * 60), random.Random(0)
    kills = 0
    while kills < 20:
        child = os.fork()
        if child == 0:
            try:
                run_rows(pending(rows, tmp_path), made(pause=0.004), PIPE, tmp_path, 4)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.001, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    assert 0 < len(read_journals(tmp_path)) <= 60
    clear_partial(tmp_path)
    run_rows(pending(rows, tmp_path), made(), PIPE, tmp_path, 4)
    outputs = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix == ".txt"}
    assert outputs == {f"{row.id}.txt": content_of(row) for row in rows}
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".jsonl"}
    assert pending(rows, tmp_path) == []


def test_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    rows = rows_of(["a", "b"])
    run_rows(rows, made(), PIPE, tmp_path, 1)
    path = tmp_path / "journal-0.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [row.id for row in pending(rows, tmp_path)] == ["001"]
    run_rows(pending(rows, tmp_path), made(), PIPE, tmp_path, 1)
    assert [entry.id for entry in read_journals(tmp_path).values()] == ["000", "001"]


def test_one_bad_row_fails_alone(tmp_path: Path) -> None:
    rows = rows_of(["a", "bad", "c", "wrong"])
    progress = run_rows(rows, made(), PIPE, tmp_path, 4)
    assert (progress.done, progress.failed) == (2, 2)
    assert [(row.id, reason) for row, reason in failures(rows, tmp_path)] == [
        ("001", "RuntimeError: bad row"), ("003", "ValueError: this row is wrong"),
    ]  # fmt: skip
    assert pending(rows, tmp_path) == []  # failed rows are not paid for again
    assert [row.id for row in pending(rows, tmp_path, retry_failed=True)] == ["001", "003"]
    mended = [*rows[:1], Row("001", 2, 1, {"text": "good"}), *rows[2:]]
    assert [row.id for row in pending(mended, tmp_path)] == ["001"]  # a corrected row is tried again
    run_rows(pending(mended, tmp_path), made(), PIPE, tmp_path, 4)
    assert [row.id for row, _ in failures(mended, tmp_path)] == ["003"]


def test_memory_that_runs_out_halves_the_batch(tmp_path: Path) -> None:
    rows = rows_of(list("abcdefghij"))
    progress = run_rows(rows, made(most=3), PIPE, tmp_path, 8)
    assert progress.done == 10
    assert "8 rows at once do not fit into memory; going on with 4." in progress.notes
    assert len(progress.notes) == 2  # 8 -> 4 -> 2, and never tried wider again
    progress = run_rows(rows_of(["z"]), made(most=0), PIPE, tmp_path, 8)
    assert progress.failed == 1


def test_rows_with_equal_options_go_together_by_length() -> None:
    rows = [Row(str(n), n, n, {"text": text, "kind": kind}) for n, (text, kind) in enumerate(
        [("long text", "x"), ("a", "y"), ("b", "x"), ("cc", "x")])]  # fmt: skip
    batches = [[row.id for row in batch] for batch in micro_batches(rows, made(), 2)]
    assert batches == [["2", "3"], ["0"], ["1"]]


def test_changed_and_removed_outputs_are_noticed(tmp_path: Path) -> None:
    rows = rows_of(["a", "b"])
    run_rows(rows, made(), PIPE, tmp_path, 2)
    (tmp_path / "001.txt").unlink()
    assert [row.id for row in pending(rows, tmp_path)] == ["001"]
    with pytest.raises(ValueError, match=r"'000' \(line 1\) was done with other contents"):
        pending([Row("000", 1, 5, {"text": "a"})], tmp_path)


def test_two_runs_do_not_share_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(BlockingIOError, match="Another run"):
        Journal(tmp_path)
    with Journal(tmp_path, "1"):
        pass


def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "000.txt").symlink_to(outside)
    run_rows(rows_of(["a"]), made(), PIPE, folder, 1)
    assert outside.read_text() == "precious"
    assert not (folder / "000.txt").is_symlink()
    write_whole(folder, {"x": b"1"})
    assert [path.name for path in folder.glob(".*")] == []


def test_many_rows_need_no_more_memory(tmp_path: Path) -> None:
    """A long run in miniature: a thousand rows."""
    import resource

    rows = rows_of(["a"] * 1000)
    run_rows(rows[:100], made(), PIPE, tmp_path, 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_rows(rows[100:], made(), PIPE, tmp_path, 8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
