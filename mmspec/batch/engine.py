"""The engine of one worker: micro-batches of rows that go together, each row written and noted as soon as it is there.

Rows of a micro-batch have the same options; within a group they are ordered by length, so that little of a batch waits for its longest row.
Row = solo, whatever the micro-batch, so grouping, resuming and retrying change no output.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import TracebackType
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


class RowRunner:
    """Generates rows with one pipeline and notes them in one journal, which is closed at the end of a ``with`` block.

    Args:
        task: What the rows are.
        pipe: The pipeline.
        folder: Output folder, which exists.
        batch_size: Most rows that are generated together; becomes smaller when memory runs out.
        worker: Name of this worker, for its journal.
        on_progress: Called after every micro-batch.

    Raises:
        BlockingIOError: If another run is writing the journal.
    """

    def __init__(
        self,
        task: Task,
        pipe: Any,
        folder: Path,
        batch_size: int,
        worker: str = "0",
        on_progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        self.task, self.pipe, self.folder, self.worker = task, pipe, folder, worker
        self.limit, self.on_progress = batch_size, on_progress
        self.progress = Progress()
        self.journal = Journal(folder, worker)

    def __enter__(self) -> RowRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.journal.close()

    def run(self, rows: Sequence[Row]) -> Progress:
        """Generate ``rows``, which are pending; returns what was done so far by all calls."""
        sound = [row for row in rows if not self._refused(row)]
        queue = deque(micro_batches(sound, self.task, self.limit))
        while queue:
            batch = queue.popleft()
            if len(batch) > self.limit:  # memory ran out since it was put together
                queue.extendleft(reversed(parts_of(batch, self.limit)))
                continue
            try:
                made = self.task.run(self.pipe, batch)
            except Exception as error:
                queue.extendleft(reversed(self._smaller(batch, error)))
            else:
                self._settle(batch, made)
            if self.on_progress is not None:
                self.on_progress(self.progress)
        return self.progress

    def _refused(self, row: Row) -> bool:
        """Whether ``row`` is wrong in itself, which is noted before anything is generated."""
        if (problem := problem_of(row, self.task)) is not None:
            self._fail(row, problem)
        return problem is not None

    def _smaller(self, batch: Sequence[Row], error: Exception) -> list[list[Row]]:
        """What to try after ``batch`` met ``error``: the one row that is at fault must not fail the others."""
        if len(batch) == 1:
            self._fail(batch[0], _reason(error))
            return []
        if not out_of_memory(error):
            return parts_of(batch, 1)
        release(self.pipe)
        half = (len(batch) + 1) // 2
        self.limit = min(self.limit, half)
        self.progress.notes.append(f"{len(batch)} rows at once do not fit into memory; going on with {half}.")
        return parts_of(batch, half)

    def _fail(self, row: Row, reason: str) -> None:
        self.journal.note_failed(row, reason)
        self.progress.failed += 1

    def _settle(self, batch: Sequence[Row], made: Made) -> None:
        """Write the rows of a micro-batch, then note them."""
        files = {f"{row.id}{self.task.suffix}": row for row in batch}
        write_whole(self.folder, dict(zip(files, made.contents, strict=True)), self.worker)
        self.journal.note_done(files)
        self.progress.done += len(batch)
        self.progress.tokens += made.tokens
        self.progress.forwards += made.forwards


def run_rows(
    rows: Sequence[Row],
    task: Task,
    pipe: Any,
    folder: Path,
    batch_size: int,
    worker: str = "0",
    on_progress: Callable[[Progress], Any] | None = None,
) -> Progress:
    """Generate ``rows``, which are pending, into ``folder``; arguments and errors are those of :class:`RowRunner`.

    Returns:
        Figures and notes; failed rows are in the journal.
    """
    with RowRunner(task, pipe, folder, batch_size, worker, on_progress) as runner:
        return runner.run(rows)


def problem_of(row: Row, task: Task) -> str | None:
    """What is wrong with ``row`` in itself, or ``None``."""
    try:
        task.check(row)
    except (ValueError, TypeError, OSError) as error:
        return _reason(error)
    return None


def micro_batches(rows: Sequence[Row], task: Task, batch_size: int) -> Iterator[list[Row]]:
    """Rows with equal options, by length, at most ``batch_size`` together."""
    keyed = sorted(rows, key=lambda row: (repr(task.options(row)), task.length(row)))
    for _, group in groupby(keyed, key=lambda row: repr(task.options(row))):
        yield from parts_of(list(group), batch_size)


def parts_of(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """``rows`` cut into lists of at most ``size``."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


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
