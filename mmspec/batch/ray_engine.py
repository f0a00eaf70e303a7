"""A batch on Ray Data: a pool of actors, each with a pipeline and a journal of its own, to which micro-batches of rows go as text.

Outputs are files that the actors write, so the object store holds a few hundred bytes a row. When an actor dies, Ray starts another one
and gives it the same micro-batches; what the dead one had noted in its journal is not made again, what it had not is.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmspec.batch.engine import Progress, RowRunner, micro_batches
from mmspec.batch.journal import pending
from mmspec.batch.manifest import Row
from mmspec.batch.outputs import clear_partial
from mmspec.batch.tasks import Task

_PREFIX = "ray"
_MOST_BLOCKS = 1000
_OBJECT_STORE = 200 << 20  # bytes; rows are small


@dataclass(frozen=True)
class RayPool:
    """How many actors, and what each of them needs.

    Args:
        workers: Actors, at least 1.
        gpus: GPUs of each actor; 0 runs on processors.

    Raises:
        ValueError: For fewer than 1 actors.
    """

    workers: int
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"`workers` is {self.workers}; it must be at least 1.")

    def check(self, resources: Mapping[str, float]) -> None:
        """Raise ValueError if a cluster with ``resources`` has no room for all actors at once."""
        for kind, each in (("CPU", 1.0), ("GPU", self.gpus)):
            there = resources.get(kind, 0.0)
            if self.workers * each > there:
                raise ValueError(
                    f"{self.workers} workers need {self.workers * each:g} {kind}s, the Ray cluster has {there:g}; "
                    "ask for fewer workers, or start more nodes first."
                )


class RayWorker:
    """An actor of the pool.

    Args:
        make: Loads the task and the pipeline.
        folder: Output folder, which all actors see.
        batch_size: Most rows that are generated together.
    """

    def __init__(self, make: Callable[[], tuple[Task, Any]], folder: str, batch_size: int) -> None:
        task, pipe = make()
        # a name of its own for every process: after a network fault the one that Ray replaced may still be writing
        self.runner = RowRunner(task, pipe, Path(folder), batch_size, f"{_PREFIX}-{secrets.token_hex(4)}")

    def __call__(self, block: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Generate micro-batches, given and told as JSON."""
        return {"told": [json.dumps(asdict(self._run(rows_from(text)))) for text in block["rows"]]}

    def _run(self, rows: list[Row]) -> Progress:
        """What became of one micro-batch; rows that an actor finished before it died count as done."""
        left = self._left(rows)
        self.runner.progress = Progress(done=len(rows) - len(left))
        return self.runner.run(left)

    def _left(self, rows: list[Row]) -> list[Row]:
        """Rows that nobody has done; journals are read only where an output is there already."""
        folder, suffix = self.runner.folder, self.runner.task.suffix
        if any((folder / f"{row.id}{suffix}").exists() for row in rows):
            return pending(rows, folder, retry_failed=True)
        return rows


def run_on_ray(
    rows: Sequence[Row],
    task: Task,
    make: Callable[[], tuple[Task, Any]],
    folder: Path,
    batch_size: int,
    pool: RayPool,
    on_progress: Callable[[Progress], Any] | None = None,
) -> Progress:
    """Generate ``rows``, which are pending, into ``folder`` by the actors of ``pool``.

    Joins the cluster that ``RAY_ADDRESS`` names, else starts one of this machine for the time of the call.

    Args:
        rows: Rows that are pending.
        task: What they are; only asked which rows go together.
        make: Loads task and pipeline in an actor; it is sent there, so it must be importable.
        folder: Output folder, which exists and which all nodes see under the same name.
        batch_size: Most rows that are generated together.
        pool: The actors.
        on_progress: Called as micro-batches become known to be finished.

    Returns:
        Figures and notes; failed rows are in the journals.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the cluster is too small for the pool.
    """
    records = [{"rows": rows_as_text(batch, task)} for batch in micro_batches(rows, task, batch_size)]
    total = Progress()
    if not records:
        return total
    folder = folder.resolve()
    with _cluster(pool) as ray:
        told = (
            ray.data.from_items(records, override_num_blocks=min(len(records), _MOST_BLOCKS))
            .map_batches(
                RayWorker,
                fn_constructor_args=(make, str(folder), batch_size),
                batch_size=1,
                num_cpus=1,
                num_gpus=pool.gpus or None,
                compute=ray.data.ActorPoolStrategy(size=pool.workers),
            )
            .iter_rows()
        )
        for line in told:
            total = added(total, Progress(**json.loads(line["told"])))
            if on_progress is not None:
                on_progress(total)
    clear_partial(folder, _PREFIX)
    return total


@contextmanager
def _cluster(pool: RayPool) -> Iterator[Any]:
    """Ray, connected to a cluster with room for ``pool``; left again if it was joined here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers; read when a cluster starts
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # a warning about Ray Data's own actors, in every run
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"--engine ray needs Ray: pip install 'mmspec[batch]' ({error}).") from error

    joined = not ray.is_initialized()
    if joined:
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        if address := os.environ.get("RAY_ADDRESS"):
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local", num_cpus=pool.workers, include_dashboard=False, object_store_memory=_OBJECT_STORE,
                **quiet,
            )  # fmt: skip
    try:
        pool.check(ray.cluster_resources())
        ray.data.DataContext.get_current().enable_progress_bars = False  # the command draws its own
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield ray
    finally:
        if joined:
            ray.shutdown()


def rows_as_text(rows: Sequence[Row], task: Task) -> str:
    """A micro-batch as JSON, with files by their full names: actors run in other folders."""
    files = [name for name, column in task.columns.items() if column.kind == "path"]
    return json.dumps([asdict(_with_full_names(row, files)) for row in rows])


def _with_full_names(row: Row, files: Sequence[str]) -> Row:
    full = {name: str(Path(row.values[name]).absolute()) for name in files if name in row.values}
    return replace(row, values={**row.values, **full}, written=dict(row.given))


def rows_from(text: str) -> list[Row]:
    """The micro-batch of :func:`rows_as_text`."""
    return [Row(**fields) for fields in json.loads(text)]


def added(total: Progress, part: Progress) -> Progress:
    """The sum of both."""
    return Progress(
        total.done + part.done, total.failed + part.failed, total.tokens + part.tokens, total.forwards + part.forwards,
        [*total.notes, *part.notes],
    )  # fmt: skip
