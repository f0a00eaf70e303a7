"""The engine of one worker: micro-batches of rows that go together, each row written and noted as soon as it is there.

Rows of a micro-batch have the same options; within a group they are ordered by length, so that little of a batch waits for its longest row.
Row = solo, whatever the micro-batch, so grouping, resuming and retrying change no output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from mmspec.batch.journal import Journal
from mmspec.batch.manifest import Row
from mmspec.batch.outputs import write_whole
from mmspec.batch.tasks import Made, Task

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """What a worker has done so far: rows done and failed; tokens of a mean row of each micro-batch, and forwards."""

    done: int = 0
    failed: int = 0
    tokens: float = 0.0
    forwards: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        """Mean tokens of a row per forward of its micro-batch, 0 before the first one."""
        return self.tokens / self.forwards if self.forwards else 0.0


def run_rows(
    rows: Sequence[Row],
    task: Task,
    pipe: Any,
    folder: Path,
    batch_size: int,
    worker: str = "0",
    on_progress: Callable[[Progress], Any] | None = None,
) -> Progress:
    """Generate ``rows`` into ``folder``.

    Args:
        rows: Rows that are pending.
        task: What they are.
        pipe: The pipeline.
        folder: Output folder, which exists.
        batch_size: Most rows that are generated together.
        worker: Name of this worker, for its journal.
        on_progress: Called after every micro-batch.

    Returns:
        Figures and notes; failed rows are in the journal.

    Raises:
        BlockingIOError: If another run is writing the journal.
    """
    progress = Progress()
    with Journal(folder, worker) as journal:
        sound = [row for row in rows if not _refused(row, task, journal, progress)]
        queue = [(batch, batch_size) for batch in micro_batches(sound, task, batch_size)]
        while queue:
            batch, size = queue.pop(0)
            if len(batch) > size:
                queue = [*((batch[at : at + size], size) for at in range(0, len(batch), size)), *queue]
                continue
            try:
                made = task.run(pipe, batch)
            except Exception as error:
                if len(batch) == 1:
                    journal.note_failed(batch[0], _reason(error))
                    progress.failed += 1
                else:  # smaller parts: the one row that is at fault must not fail the others
                    half = (len(batch) + 1) // 2 if out_of_memory(error) else 1
                    if out_of_memory(error):
                        release(pipe)
                        progress.notes.append(
                            f"{len(batch)} rows at once do not fit into memory; going on with {half}."
                        )
                        queue = [(later, min(half, limit)) for later, limit in queue]
                    queue.insert(0, (batch, half))
                    continue
            else:
                _settle(batch, made, task, folder, worker, journal, progress)
            if on_progress is not None:
                on_progress(progress)
    return progress


def problem_of(row: Row, task: Task) -> str | None:
    """What is wrong with ``row`` in itself, or ``None``."""
    try:
        task.check(row)
    except (ValueError, TypeError, OSError) as error:
        return _reason(error)
    return None


def _refused(row: Row, task: Task, journal: Journal, progress: Progress) -> bool:
    """Whether ``row`` is wrong in itself, which is noted before anything is generated."""
    if (problem := problem_of(row, task)) is not None:
        journal.note_failed(row, problem)
        progress.failed += 1
    return problem is not None


def micro_batches(rows: Sequence[Row], task: Task, batch_size: int) -> Iterator[list[Row]]:
    """Rows with equal options, by length, at most ``batch_size`` together."""
    keyed = sorted(rows, key=lambda row: (repr(task.options(row)), task.length(row)))
    for _, group in groupby(keyed, key=lambda row: repr(task.options(row))):
        members = list(group)
        for start in range(0, len(members), batch_size):
            yield members[start : start + batch_size]


def _settle(
    batch: Sequence[Row], made: Made, task: Task, folder: Path, worker: str, journal: Journal, progress: Progress
) -> None:
    """Write the rows of a micro-batch, then note them."""
    files = {f"{row.id}{task.suffix}": row for row in batch}
    write_whole(folder, dict(zip(files, made.contents, strict=True)), worker)
    journal.note_done(files)
    progress.done += len(batch)
    progress.tokens += made.tokens
    progress.forwards += made.forwards


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that the device or the host had no memory left."""
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release(pipe: Any) -> None:
    """Give freed blocks back to the device before the next try."""
    import torch

    if pipe.device.type == "cuda":
        torch.cuda.empty_cache()


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
