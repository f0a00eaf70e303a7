"""What is measured beside the decoding loop: the cost of a forward, the likelihood of tokens, a GPU's peak memory.

Symbols: B rows, N new tokens, w nodes of a draft.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from mmspec.bench.harness import Outcome, Sample, run_interleaved
from mmspec.bench.report import ForwardTimes
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams, process
from mmspec.drafters.jacobi import JacobiDrafter

if TYPE_CHECKING:
    from mmspec.pipelines.base import DecodeRequest


class BenchItem(Protocol):
    """What is decoded together; every suite has its own."""

    def open(self, pipe: Any) -> DecodeRequest:
        """The request by which ``pipe``, with its present parts, decodes it."""
        ...


T = TypeVar("T", bound=BenchItem)

_WARM_SECONDS = 0.06


def run_timed(
    pipe: Any,
    methods: Mapping[str, Callable[[T], Sample]],
    items: Sequence[T],
    widths: Sequence[int],
    on_item: Callable[[int], Any] | None = None,
) -> tuple[dict[str, Outcome], ForwardTimes]:
    """Run every method on every item as :func:`run_interleaved` does, and time the target's forwards between the items."""
    clock = ForwardClock(pipe, items[0], widths)

    def after(number: int) -> None:
        clock.turn()
        if on_item is not None:
            on_item(number)

    outcomes = run_interleaved(methods, items, after)
    return outcomes, clock.times()


class ForwardClock:
    """Time the target's forward on half a picture of cache, which is the mean length over a run.

    A turn is a few forwards of every width, behind as many of the same width as take a while: a forward then meets the processor's
    caches as those of its own width leave them, which is how a decoding loop runs. The first ones behind a wide forward
    take a third longer. There is a turn after every item of a bench: a machine that is slower for a
    while is so for forwards and items alike. The median counts.
    """

    def __init__(self, pipe: Any, item: BenchItem, widths: Sequence[int]) -> None:
        self.widths = tuple(widths)
        self.device: torch.device = pipe.device  # asked once: it walks through all modules, which would be timed
        self.target, self.total, _ = _open_target(pipe, item, max(widths))
        self.prefills: list[float] = []
        self.seconds: dict[int, list[float]] = {width: [] for width in widths}
        self.turn()

    @torch.no_grad()
    def turn(self, repeats: int = 4) -> None:
        """Time a prefill, and ``repeats`` forwards of every width; every turn begins with another width."""
        target, half = self.target, self.total // 2
        start = _now(self.device)
        logits = target.prefill().logits
        self.prefills.append(_now(self.device) - start)
        target.cache.lengths = target.cache.lengths + half  # what lies in those slots does not change the time
        tokens = torch.zeros(len(logits), max(self.widths), dtype=torch.long, device=logits.device)
        first = len(self.prefills) % len(self.widths)
        for width in self.widths[first:] + self.widths[:first]:
            draft = Draft(tokens[:, :width], DraftLaw.DETERMINISTIC)
            started = _now(self.device)
            while _now(self.device) - started < _WARM_SECONDS:
                target.verify(draft, half + 1)
            for _ in range(repeats):
                start = _now(self.device)
                target.verify(draft, half + 1)
                self.seconds[width].append(_now(self.device) - start)

    def times(self) -> ForwardTimes:
        """Medians of all turns."""
        return ForwardTimes(median(self.prefills), {width: median(values) for width, values in self.seconds.items()})


def _open_target(pipe: Any, item: BenchItem, window: int) -> tuple[Any, int, SamplingParams]:
    """A session of the target on ``item`` with room for ``window`` nodes, the tokens of an output, how they are drawn."""
    from mmspec.bench.methods import Parts

    saved = Parts.of(pipe)
    try:
        Parts(JacobiDrafter(window=window), None).put(pipe)
        request = item.open(pipe)
        return pipe.open_decoder(request).target, request.stopping.max_new_tokens, request.sampling
    finally:
        saved.put(pipe)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def bits_per_token(pipe: Any, item: BenchItem, tokens: Tensor) -> tuple[float, float]:
    """Mean of -log2 p of ``tokens`` (B, N) in one teacher-forced pass: under the law that plain decoding draws from, and
    under that law without top-k and top-p.

    Samples of a lossless method have the same expectation as those of plain decoding: the entropy of that law. The
    first figure is infinite if there is a token that plain decoding never draws; the second one is always finite.
    """
    target, total, sampling = _open_target(pipe, item, 1)
    first = target.prefill().logits
    tokens = tokens.to(first.device)
    rest = target.verify(Draft(tokens[:, : total - 1], DraftLaw.DETERMINISTIC), 1).logits
    logits = torch.cat([first, rest], dim=1)
    laws = (process(logits, params).log_softmax(-1) for params in (sampling, SamplingParams(sampling.temperature)))
    truncated, full = (float(-law.gather(-1, tokens[..., None]).mean()) / math.log(2) for law in laws)
    return truncated, full


def cuda_peak(run: Callable[[], Any]) -> int:
    """Bytes that torch has allocated on the GPU at the peak of ``run``, weights included."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    return int(torch.cuda.max_memory_allocated())
