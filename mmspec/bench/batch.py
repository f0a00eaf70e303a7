"""The batch suite: pictures by ``mmspec batch``'s engine, in micro-batches, against single calls in a loop.

An item is a group of pictures, and every method makes all of them with PNG files on the disk: ``plain`` and ``loop`` by one call a picture,
``batch-plain`` and ``batch`` by the engine; ``loop`` and ``batch`` decode as the checkpoint recommends. Seconds are those of all that, not
of the decoding loop alone, so ``items / seconds`` is throughput. Micro-batches take turns with the loops in one process.

With c calls of B pictures, n_w rounds of width w and t_B(w) the seconds of such a forward, measured in the same run,

    limit = (the sum over its calls of prefill + sum_w n_w t_B(w), of plain) / (that of the method)
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from mmspec.batch.engine import run_rows
from mmspec.batch.manifest import Row
from mmspec.batch.tasks import ImageTask
from mmspec.bench.harness import Outcome, Sample, run_interleaved
from mmspec.bench.image import ImageItem
from mmspec.bench.measure import ForwardClock
from mmspec.bench.report import BenchReport, ForwardTimes, MethodFigures
from mmspec.core.controllers import WIDTHS
from mmspec.core.stats import DecodeStats, merge_stats
from mmspec.drafters.base import check_positive


@dataclass(frozen=True)
class BatchMethod:
    """Whether pictures go together, and whether decoding is speculative."""

    name: str
    together: bool
    speculate: bool


METHODS = (
    BatchMethod("plain", False, False), BatchMethod("loop", False, True), BatchMethod("batch-plain", True, False),
    BatchMethod("batch", True, True),
)  # fmt: skip


@dataclass(frozen=True)
class BatchBench:
    """What to run.

    Attributes:
        model: Embedded name, folder or hub id, for the report.
        prompts: Prompts, repeated as often as needed.
        items: Number of pictures.
        batch_size: Pictures of a micro-batch.
        group: Pictures that a method makes before the next one has its turn.
        seed: Seed of the first picture.

    Raises:
        TypeError, ValueError: For numbers below 1, or a group that is no multiple of the micro-batch.
    """

    model: str
    prompts: Sequence[str]
    items: int = 32
    batch_size: int = 16
    group: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("items", "batch_size", "group"):
            check_positive(name, getattr(self, name))
        if self.group % self.batch_size:
            raise ValueError(f"`group` is {self.group}; it must be a multiple of `batch_size`, {self.batch_size}.")

    def groups(self) -> list[list[Row]]:
        """The items, as rows of a manifest."""
        rows = [
            Row(f"{n:04d}", n + 1, self.seed + n, {"prompt": self.prompts[n % len(self.prompts)]})
            for n in range(self.items)
        ]
        return [rows[start : start + self.group] for start in range(0, len(rows), self.group)]


@dataclass(frozen=True)
class BatchSample(Sample):
    """What one method made of a group; ``calls`` are the stats of its calls, ``seconds`` the time of everything."""

    calls: list[DecodeStats] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class RecordingTask(ImageTask):
    """The image task of a batch, which keeps the tokens of its rows and the stats of its calls."""

    tokens: dict[str, Tensor] = field(default_factory=dict)
    calls: list[DecodeStats] = field(default_factory=list)

    def call(self, pipe: Any, rows: Sequence[Row], **inputs: Any) -> Any:
        output = super().call(pipe, rows, **inputs)
        self.tokens.update(zip((row.id for row in rows), output.tokens, strict=True))
        self.calls.append(output.stats)
        return output


def generate(pipe: Any, bench: BatchBench, method: BatchMethod, rows: Sequence[Row]) -> BatchSample:
    """Make the pictures of ``rows`` in a folder that is removed afterwards."""
    task = RecordingTask({}, {"speculate": method.speculate})
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        if method.together:
            run_rows(rows, task, pipe, Path(folder), bench.batch_size)
        else:
            for row in rows:
                [content] = task.run(pipe, [row]).contents
                (Path(folder) / f"{row.id}.png").write_bytes(content)
        seconds = time.perf_counter() - start
        written = len(list(Path(folder).glob("*.png")))
    if written != len(rows):
        raise RuntimeError(f"{method.name} wrote {written} of {len(rows)} pictures.")
    tokens = torch.stack([task.tokens[row.id].reshape(-1) for row in rows])
    return BatchSample(tokens, merge_stats(task.calls), task.calls, seconds)


def run_batch_bench(pipe: Any, bench: BatchBench, on_item: Callable[[int], Any] | None = None) -> BenchReport:
    """Run the suite on ``pipe``, which is ``bench.model`` loaded.

    Returns:
        The report; its ``unequal`` names methods whose tokens are not those of single plain calls, and
        ``settings.throughput_ratio`` is the throughput of ``batch`` over that of ``loop``.
    """
    pipe.set_progress_bar_config(disable=True)
    groups = bench.groups()
    clocks = {size: _clock(pipe, bench, size) for size in sorted({1, bench.batch_size})}

    def after(number: int) -> None:
        for clock in clocks.values():
            clock.turn()
        if on_item is not None:
            on_item(number)

    methods = {method.name: partial(generate, pipe, bench, method) for method in METHODS}
    outcomes = run_interleaved(methods, groups, after)
    times = {size: clock.times() for size, clock in clocks.items()}
    entries = [_figures(method, outcomes, times, bench.batch_size) for method in METHODS]
    return BenchReport("batch", pipe.device.type, _settings(pipe, bench, outcomes, times), entries)


def _clock(pipe: Any, bench: BatchBench, size: int) -> ForwardClock:
    """Times forwards of ``size`` pictures; those of most of a picture are too seldom to be worth their time."""
    most = pipe.grid[0] * pipe.grid[1]
    prompts = tuple(bench.prompts[n % len(bench.prompts)] for n in range(size))
    item = ImageItem(prompts, tuple(range(bench.seed, bench.seed + size)))
    return ForwardClock(pipe, item, sorted({min(width, most) for width in WIDTHS}))


def seconds_of(outcome: Outcome) -> float:
    """Wall time of everything."""
    return sum(sample.seconds for sample in outcome.samples if isinstance(sample, BatchSample))


def calls_of(outcome: Outcome) -> list[DecodeStats]:
    """The stats of all calls."""
    return [call for sample in outcome.samples if isinstance(sample, BatchSample) for call in sample.calls]


def forward_seconds(outcome: Outcome, times: ForwardTimes) -> float:
    """Seconds that the forwards take by themselves, all calls being as wide as those that were timed."""
    return sum(
        times.prefill + sum(count * times.at(width) for width, count in call.widths.items())
        for call in calls_of(outcome)
    )


def _figures(
    method: BatchMethod, outcomes: dict[str, Outcome], times: dict[int, ForwardTimes], batch_size: int
) -> MethodFigures:
    outcome, plain = outcomes[method.name], outcomes["plain"]
    calls, wall_ratio = calls_of(outcome), seconds_of(plain) / seconds_of(outcome)
    limit = forward_seconds(plain, times[1]) / forward_seconds(outcome, times[batch_size if method.together else 1])
    items = len(outcome.stats.rows)
    return MethodFigures(
        name=method.name, default=method.name == "batch", peer=False, guarantee=outcome.stats.guarantee.value,
        items=items, tokens_equal=outcome.equals(plain), forwards=outcome.forwards,
        forwards_ratio=plain.forwards / outcome.forwards,
        tokens_per_forward=outcome.stats.tokens / sum(call.forwards * len(call.rows) for call in calls),
        wall_ratio=wall_ratio, model_share=outcome.stats.seconds["model"] / seconds_of(outcome),
        peak_memory_ratio=None, limit_fraction=wall_ratio / limit, deviation=None,
        quality={"items_per_second": items / seconds_of(outcome), "plain_items_per_second": items / seconds_of(plain)},
    )  # fmt: skip


def throughput_ratios(outcomes: dict[str, Outcome]) -> list[float]:
    """Throughput of ``batch`` over that of ``loop`` for every group."""
    pairs = zip(outcomes["loop"].samples, outcomes["batch"].samples, strict=True)
    return [a.seconds / b.seconds for a, b in pairs if isinstance(a, BatchSample) and isinstance(b, BatchSample)]


def _settings(
    pipe: Any, bench: BatchBench, outcomes: dict[str, Outcome], times: dict[int, ForwardTimes]
) -> dict[str, Any]:
    return {
        "model": bench.model,
        "items": bench.items,
        "batch_size": bench.batch_size,
        "group": bench.group,
        "seed": bench.seed,
        "prompts": list(bench.prompts),
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "throughput_ratio": seconds_of(outcomes["loop"]) / seconds_of(outcomes["batch"]),
        "throughput_ratio_median": median(throughput_ratios(outcomes)),
        "forward_ms": {
            str(size): {"prefill": 1e3 * t.prefill, **{str(w): 1e3 * s for w, s in t.by_width.items()}}
            for size, t in times.items()
        },
        "seconds": {
            name: {**outcome.stats.seconds, "everything": seconds_of(outcome)} for name, outcome in outcomes.items()
        },
    }
