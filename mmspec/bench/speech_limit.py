"""What the forwards of a recogniser cost by themselves: the physical limit of any method.

With p the seconds of a prompt, p_d those of a prompt with a draft, t(w) those of a forward of w nodes, all measured on
the recording of median length, a run of n prompts and n_w rounds of width w takes at least n p + sum_w n_w t(w).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from mmspec.bench.harness import Outcome
from mmspec.core.draft import Draft, DraftLaw
from mmspec.runner.runner import Runner
from mmspec.speech.adapters.base import SpeechTask
from mmspec.speech.audio import load_audio

WIDTHS = (1, 2, 4, 8, 16, 25)
_DRAFT = 24  # nodes behind a drafted prompt


@dataclass(frozen=True)
class ForwardCosts:
    """Seconds of a plain prompt, of a drafted one, and of a forward by width."""

    prompt: float
    drafted: float
    by_width: dict[int, float]

    def at(self, width: int) -> float:
        """Seconds of a forward of ``width`` nodes."""
        widths = sorted(self.by_width)
        return float(np.interp(width, widths, [self.by_width[w] for w in widths]))

    def seconds(self, outcome: Outcome) -> float:
        """What the forwards of ``outcome`` take by themselves."""
        stats = outcome.stats
        rounds = sum(stats.widths.values())
        prompts = outcome.forwards - rounds
        # a prompt that goes with a draft is a verification, so its row counts one round more than there are widths
        drafted = sum(row.rounds for row in stats.rows) > rounds
        each = self.drafted if drafted else self.prompt
        return prompts * each + sum(count * self.at(width) for width, count in stats.widths.items())

    def milliseconds(self) -> dict[str, float]:
        """The costs for the report."""
        widths = {str(width): 1e3 * seconds for width, seconds in self.by_width.items()}
        return {"prefill": 1e3 * self.prompt, "drafted_prefill": 1e3 * self.drafted, **widths}


@torch.no_grad()
def forward_costs(pipe: Any, files: Sequence[Path], repeats: int = 5) -> ForwardCosts:
    """Time the forwards of ``pipe`` on the recording of median size among ``files``."""
    adapter = pipe.adapter
    file = sorted(files, key=lambda path: path.stat().st_size)[len(files) // 2]
    clip = adapter.encode(load_audio(file, adapter.sampling_rate).samples, SpeechTask())
    device = clip.prompt.device

    def runner() -> Runner:
        from mmspec.core.guidance import Guidance

        return Runner(adapter.decoder(adapter.network, [clip], device), Guidance(), 64, max(_DRAFT, *WIDTHS))

    def draft(width: int) -> Draft:
        return Draft(torch.zeros(1, width, dtype=torch.long, device=device), DraftLaw.DETERMINISTIC)

    prompt = [_timed(device, runner().prefill) for _ in range(repeats)]
    drafted = [_timed(device, runner().prefill, draft(_DRAFT)) for _ in range(repeats)]
    target = runner()
    target.prefill()
    target.cache.lengths = target.cache.lengths + 12  # about half a transcript
    by_width = {}
    for width in WIDTHS:
        times = [_timed(device, target.verify, draft(width), 13) for _ in range(repeats + 1)]
        by_width[width] = median(times[1:])
    return ForwardCosts(median(prompt), median(drafted), by_width)


def _timed(device: torch.device, run: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    run(*arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
