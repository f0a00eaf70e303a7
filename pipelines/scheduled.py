"""Opening a decoder that follows a schedule instead of the raster order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mmspec.core.noise import RowNoise
from mmspec.core.scheduled import ScheduledDecoder, is_raster
from mmspec.core.stats import DecodeStats
from mmspec.core.verify import Guarantee
from mmspec.runner.memory import check_memory, estimate_memory
from mmspec.runner.scheduled import ScheduledRunner

if TYPE_CHECKING:
    from mmspec.pipelines.base import DecodeRequest

_REMEDY = "Use a smaller `micro_batch_size` or a lower dtype."


def open_scheduled(request: DecodeRequest, device: torch.device, *, buckets: bool) -> ScheduledDecoder:
    """Check memory and build the decoder of a ``request`` that has a schedule.

    Raises:
        ValueError: If the output is no grid of a fixed number of tokens.
        MemoryError: If the call would not fit.
    """
    schedule, num_cells, columns = request.schedule, request.stopping.max_new_tokens, request.row_length
    assert schedule is not None
    if request.grammar is not None:
        raise ValueError(f"`schedule` {type(schedule).__name__} knows no forced tokens, which this output has.")
    if columns is None or not request.stopping.fixed_length or num_cells % columns:
        raise ValueError(f"`schedule` {type(schedule).__name__} needs an output that is a grid of known size.")
    steps = schedule.steps(num_cells // columns, columns)
    raster = is_raster(steps)
    measure = schedule.measure and not raster
    widest = max([len(step.cells) for step in steps], default=1)
    if measure:
        widest = max(widest, min(num_cells - 1, ScheduledDecoder.chunk))
    model = request.model(request.network, device)
    estimate = estimate_memory(
        rows=len(request.seeds),
        branches=request.guidance.branches,
        capacity=model.prompt.width + num_cells + widest,
        max_nodes=widest,
        vocab_size=model.vocab_size,
        cache_bytes_per_slot=request.cache_bytes_per_slot,
        decode=request.decode_bytes,
    )
    check_memory(estimate, device, _REMEDY)
    target = ScheduledRunner(model, request.guidance, num_cells, widest, buckets=buckets)
    stats = DecodeStats(
        method=type(schedule).__name__.removesuffix("Schedule").lower(),
        guarantee=Guarantee.SAME_TOKENS if raster else schedule.worth,
        seeds=list(request.seeds),
    )
    noise = RowNoise(torch.tensor(request.seeds, device=device), target.vocab_size)
    return ScheduledDecoder(
        target, steps, num_cells, noise, request.sampling, stats, masked=schedule.masked, measure=measure
    )
