"""What is measured beside the decoding loop: the cost of a forward, the likelihood of tokens, a GPU's peak memory.

Symbols: B rows, N new tokens, w nodes of a draft.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.bench.report import ForwardTimes
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import process
from mmspec.drafters.jacobi import JacobiDrafter

if TYPE_CHECKING:
    from mmspec.bench.image import ImageItem


@torch.no_grad()
def forward_times(pipe: Any, item: ImageItem, widths: Sequence[int], turns: int = 3, repeats: int = 4) -> ForwardTimes:
    """Time the target's forward on half a picture of cache, which is the mean length over a run.

    The widths take turns of a few forwards each, so that a disturbance hits all of them and a forward meets the
    processor's caches as those of its own width leave them, which is how a decoding loop runs; the median counts.
    """
    target, total = _open_target(pipe, item, max(widths))
    prefill = []
    for _ in range(3):
        start = _now(pipe)
        logits = target.prefill().logits
        prefill.append(_now(pipe) - start)
    target.cache.lengths = target.cache.lengths + total // 2  # what lies in those slots does not change the time
    tokens = torch.zeros(len(logits), max(widths), dtype=torch.long, device=logits.device)
    seconds: dict[int, list[float]] = {width: [] for width in widths}
    for _ in range(turns):
        for width in widths:
            draft = Draft(tokens[:, :width], DraftLaw.DETERMINISTIC)
            for repeat in range(repeats + 1):
                start = _now(pipe)
                target.verify(draft, total // 2 + 1)
                if repeat:  # the first one follows another width, which a decoding loop seldom does
                    seconds[width].append(_now(pipe) - start)
    return ForwardTimes(median(prefill), {width: median(values) for width, values in seconds.items()})


def _open_target(pipe: Any, item: ImageItem, window: int) -> tuple[Any, int]:
    """A session of the target on the prompts of ``item`` with room for ``window`` nodes, and the tokens of a picture."""
    from mmspec.bench.methods import Parts
    from mmspec.pipelines.image_call import ImageCall

    saved = Parts.of(pipe)
    try:
        Parts(JacobiDrafter(window=window), None).put(pipe)
        [request] = pipe._requests(ImageCall(list(item.prompts), seed=list(item.seeds)))
        return pipe.open_decoder(request).target, request.stopping.max_new_tokens
    finally:
        saved.put(pipe)


def _now(pipe: Any) -> float:
    if pipe.device.type == "cuda":
        torch.cuda.synchronize(pipe.device)
    return time.perf_counter()


@torch.no_grad()
def bits_per_token(pipe: Any, item: ImageItem, tokens: Tensor) -> tuple[float, float]:
    """Mean of -log2 p of ``tokens`` (B, N) in one teacher-forced pass: under the law that plain decoding draws from, and
    under that law without top-k and top-p.

    Samples of a lossless method have the same expectation as those of plain decoding: the entropy of that law. The
    first figure is infinite if there is a token that plain decoding never draws; the second one is always finite.
    """
    from mmspec.core.sampling import SamplingParams

    target, total = _open_target(pipe, item, 1)
    first = target.prefill().logits
    tokens = tokens.to(first.device)
    rest = target.verify(Draft(tokens[:, : total - 1], DraftLaw.DETERMINISTIC), 1).logits
    temperature = pipe.config.temperature if item.temperature is None else item.temperature
    top_k = pipe.config.top_k if item.top_k is None else item.top_k
    sampling = SamplingParams(temperature, top_k, pipe.config.top_p)
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
