"""``mmspec batch``: a manifest of anything that mmspec generates, resumable and complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import options
from mmspec.cli.ask import DEFAULT_VISION_LANGUAGE_MODEL
from mmspec.cli.image import DEFAULT_IMAGE_MODEL, check_method
from mmspec.cli.loading import load_pipeline, load_reader, load_recogniser, load_video_pipeline, load_voice, set_method
from mmspec.cli.output import complain, progress, say
from mmspec.cli.speak import DEFAULT_VOICE
from mmspec.cli.transcribe import DEFAULT_SPEECH_MODEL
from mmspec.cli.video import DEFAULT_VIDEO_MODEL

LOADERS: dict[str, tuple[str, Callable[[str, str, str], Any]]] = {
    "image": (DEFAULT_IMAGE_MODEL, load_pipeline),
    "speak": (DEFAULT_VOICE, load_voice),
    "ask": (DEFAULT_VISION_LANGUAGE_MODEL, load_reader),
    "transcribe": (DEFAULT_SPEECH_MODEL, load_recogniser),
    "video": (DEFAULT_VIDEO_MODEL, load_video_pipeline),
}
"""Default model and loader of each task."""
DEFAULT_BATCH_SIZE = 16  # on processors 8 rows leave a tenth of the throughput, 32 add little
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class BatchModel:
    """What a worker loads; workers of Ray get it sent."""

    task: str
    name: str
    device: str
    dtype: str
    drafter: str | None
    acceptance: str | None
    assignments: Sequence[str]
    plain: bool

    def open(self) -> tuple[Any, Any]:
        """The task and the pipeline."""
        from mmspec.batch.tasks import TASKS

        _, load = LOADERS[self.task]
        pipe = load(self.name, self.device, self.dtype)
        pipe.set_progress_bar_config(disable=True)
        set_method(pipe, self.drafter, self.acceptance, self.assignments)
        return TASKS[self.task](_facts_of(pipe, self.name), {"speculate": not self.plain}), pipe


def batch(
    manifest: Annotated[Path, typer.Argument(help="A .jsonl, .csv or .txt file, one row a line.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for outputs and the journal.")],
    task: Annotated[str, typer.Option(help="image, speak, transcribe, ask or video.")] = "image",
    model: Annotated[
        str | None, typer.Option(help="Embedded name, folder or hub id; default: the embedded one.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Most rows generated together; changes memory and speed only.", min=1)
    ] = DEFAULT_BATCH_SIZE,
    seed: Annotated[int, typer.Option(help="Seed of the first row; the next have seed + 1, ...", min=0)] = 0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try rows again that failed before.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the manifest and tell the memory need; generate nothing.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or ray: a pool of workers on Ray Data.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Workers of --engine ray; default 2. Each loads the model.", min=1)
    ] = None,
    drafter: options.DrafterName = None,
    acceptance: options.AcceptanceName = None,
    assignments: options.Assignments = None,
    plain: options.Plain = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Generate every row of a manifest into a folder, one file a row.

    Run the same command again after any interruption: nothing is lost, doubled or half-written. Rows that fail are
    noted with the reason, the others are generated, and the exit code is 1. Started by torchrun or accelerate, every
    process takes its share of the rows.

    [bold]Example[/]: mmspec batch prompts.txt --out pictures --batch-size 8
    """
    from mmspec.batch.journal import failures, pending
    from mmspec.batch.manifest import read_manifest
    from mmspec.batch.tasks import TASKS
    from mmspec.batch.workers import this_worker, wait_for_others

    check_method(plain, drafter, acceptance, None, assignments)
    worker = this_worker()
    _check_call(task, out, engine, workers, worker)
    kind, (default, _) = TASKS[task], LOADERS[task]
    rows = worker.share(read_manifest(manifest, kind.columns, kind.main, seed))
    left = pending(rows, out, retry_failed)
    recipe = BatchModel(
        task, model or default, worker.device(device), dtype, drafter, acceptance, assignments or [], plain
    )
    if dry_run:
        _rehearse(rows, left, *recipe.open(), batch_size)
        return
    done = 0
    if left:
        out.mkdir(parents=True, exist_ok=True)
        try:
            done = _run(left, recipe, out, batch_size, worker, workers or 2 if engine == "ray" else None)
        except KeyboardInterrupt:
            finished = len(rows) - len(pending(rows, out))
            complain(f"Interrupted; {finished} of {len(rows)} rows are done. Run the same command to go on.")
            raise typer.Exit(130) from None
    failed = failures(rows, out)
    wait_for_others(worker)
    _conclude(rows, failed, done)


def _check_call(task: str, out: Path, engine: str, workers: int | None, worker: Any) -> None:
    """Raise ValueError or NotADirectoryError for options that do not go together."""
    if task not in LOADERS:
        raise ValueError(f"Unknown --task {task!r}; choose one of {', '.join(LOADERS)}.")
    if engine not in ENGINES:
        raise ValueError(f"Unknown --engine {engine!r}; choose one of {', '.join(ENGINES)}.")
    if workers is not None and engine != "ray":
        raise ValueError("--workers goes with --engine ray; start several local workers by torchrun or accelerate.")
    if engine == "ray" and not worker.alone:
        raise ValueError(
            f"--engine ray starts its own workers, but a launcher started {worker.count}; use one of them."
        )
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out {out} is a file; name a folder.")


def _facts_of(pipe: Any, name: str) -> dict[str, str]:
    """Name and hash of the model, for the outputs."""
    from mmspec.batch.provenance import weights_hash
    from mmspec.models.loading import local_folder

    folder = local_folder(name)
    return {"model": name, "dtype": str(pipe.dtype).removeprefix("torch.")} | (
        {} if folder is None else {"weights": weights_hash(Path(folder))}
    )


def _run(left: Sequence[Any], recipe: BatchModel, out: Path, batch_size: int, worker: Any, actors: int | None) -> int:
    """Generate with a progress bar, by ``actors`` on Ray or here; returns how many rows were done."""
    from mmspec.batch.engine import Progress, run_rows
    from mmspec.batch.outputs import clear_partial
    from mmspec.batch.tasks import TASKS

    clear_partial(out, None if worker.alone else worker.name)
    with progress(f"{TASKS[recipe.task].main}s", len(left)) as tell:

        def on_progress(now: Progress) -> None:
            tell(now.done + now.failed, f"{now.tokens_per_forward:.2f} tokens per forward")

        if actors is None:
            result = run_rows(left, *recipe.open(), out, batch_size, worker.name, on_progress)
        else:
            from mmspec.batch.ray_engine import RayPool, run_on_ray

            task = TASKS[recipe.task]({}, {})
            pool = RayPool(actors, _gpus_each(recipe.device))
            result = run_on_ray(left, task, recipe.open, out, batch_size, pool, on_progress)
    for note in result.notes:
        complain(note, style="yellow")
    if result.forwards:
        say(f"{result.done} rows, {result.tokens_per_forward:.2f} tokens per forward.")
    return result.done


def _gpus_each(device: str) -> float:
    """GPUs that an actor asks Ray for: one where the option wants a GPU, or leaves it open and this machine has one."""
    import torch

    return float(device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()))


def _conclude(rows: Sequence[Any], failed: Sequence[tuple[Any, str]], done: int) -> None:
    """Say what became of all rows; exit code 1 if some failed."""
    say(f"{len(rows) - len(failed)} of {len(rows)} rows are done, {done} of them in this run.")
    if failed:
        for row, reason in failed:
            complain(f"line {row.line} ({row.id}): {reason}")
        complain(f"{len(failed)} rows failed. Correct them in the manifest, or run again with --retry-failed.")
        raise typer.Exit(1)


def _rehearse(rows: Sequence[Any], left: Sequence[Any], made: Any, pipe: Any, batch_size: int) -> None:
    """Check every row and say what a run would do and need; exit code 1 if rows would fail."""
    from mmspec.batch.engine import micro_batches, problem_of
    from mmspec.runner.memory import GIB, available_memory

    problems = [(row, problem) for row in rows if (problem := problem_of(row, made))]
    sound = [row for row in left if problem_of(row, made) is None]
    batches = list(micro_batches(sound, made, batch_size))
    say(f"{len(rows)} rows, {len(left)} to do, in {len(batches)} micro-batches of at most {batch_size}.")
    weights = sum(p.numel() * p.element_size() for part in _networks(pipe) for p in part.parameters())
    need = made.memory(pipe, batches[0]) if batches else None
    told = "no estimate for this task" if need is None else f"about {need} besides"
    free = available_memory(pipe.device) / GIB
    say(f"Memory: {weights / GIB:.2f} GiB of weights, {told}; {free:.1f} GiB are free on {pipe.device}.")
    for row, problem in problems:
        complain(f"line {row.line} ({row.id}): {problem}")
    if problems:
        raise typer.Exit(1)


def _networks(pipe: Any) -> list[Any]:
    return [part for part in pipe.components.values() if hasattr(part, "parameters")]
