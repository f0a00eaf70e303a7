"""The video suite: continuations of the checkpoint's own first frames, each with a seed of its own.

Items repeat the samples in order; item i has the seed ``seed + i``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmspec.bench.harness import Outcome, Sample
from mmspec.bench.measure import bits_per_token, run_timed
from mmspec.bench.methods import BuiltMethod, Method, Parts, build_methods
from mmspec.bench.positions import accepted_by
from mmspec.bench.report import BenchReport, ForwardTimes, figures, median_wall_ratio
from mmspec.core.controllers import WIDTHS
from mmspec.drafters.base import check_positive

if TYPE_CHECKING:
    from mmspec.pipelines.base import DecodeRequest

SAMPLES = "samples.json"


@dataclass(frozen=True)
class VideoItem:
    """A clip to make: the picture or clip that it continues, its text or ``None``, and its seed."""

    source: Path
    prompt: str | None
    seed: int

    def open(self, pipe: Any) -> DecodeRequest:
        """The request by which ``pipe`` decodes this clip."""
        from mmspec.pipelines.video_call import VideoCall

        [request] = pipe.first_requests(VideoCall(video=self.source, prompt=self.prompt, seed=self.seed))
        return request


@dataclass(frozen=True)
class VideoBench:
    """What to run.

    Attributes:
        model: Embedded name, folder or hub id.
        methods: Methods, ``plain`` first.
        samples: Sources and texts, repeated as often as needed.
        items: Number of clips, at least 1.
        seed: Seed of the first clip.

    Raises:
        TypeError, ValueError: For numbers below 1, or no samples.
    """

    model: str
    methods: Sequence[Method]
    samples: Sequence[tuple[Path, str | None]]
    items: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("items", self.items)
        if not self.samples:
            raise ValueError("There is nothing to continue; give at least one picture or clip.")

    def clips(self) -> list[VideoItem]:
        """The items."""
        count = len(self.samples)
        return [VideoItem(*self.samples[i % count], self.seed + i) for i in range(self.items)]


def read_samples(folder: Path) -> list[tuple[Path, str | None]]:
    """The pictures and texts that a checkpoint lists in ``samples.json``.

    Raises:
        ValueError: If there is no such file, or it is of another form.
    """
    file = folder / SAMPLES
    if not file.is_file():
        raise ValueError(f"{folder} has no {SAMPLES}; name a picture or a clip to continue.")
    try:
        entries = json.loads(file.read_text())
        return [(folder / entry["image"], entry.get("prompt")) for entry in entries]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} must be a list of objects with `image` and `prompt`: {error!r}.") from error


def decode(pipe: Any, built: BuiltMethod, item: VideoItem) -> Sample:
    """Decode one item by one method."""
    call = partial(pipe, video=item.source, prompt=item.prompt, seed=item.seed, output_type="tokens")
    output = built.run(pipe, call)
    return Sample(output.tokens, output.stats)


def run_video_bench(pipe: Any, bench: VideoBench, on_item: Callable[[int], Any] | None = None) -> BenchReport:
    """Run the suite on ``pipe``, which is ``bench.model`` loaded.

    Returns:
        The report; its ``unequal`` names methods that broke their promise.
    """
    pipe.set_progress_bar_config(disable=True)
    saved = Parts.of(pipe)
    try:
        return _run(pipe, bench, on_item)
    finally:
        saved.put(pipe)


def _run(pipe: Any, bench: VideoBench, on_item: Callable[[int], Any] | None) -> BenchReport:
    built = build_methods(bench.methods, pipe)
    clips = bench.clips()
    longest = pipe.layout.num_tokens - pipe.layout.frame_length
    widest = [min(method.drafter.max_nodes, longest) for method in built.values() if method.drafter]
    widths = sorted({w for w in (*WIDTHS, *widest) if w <= longest})
    methods = {name: partial(decode, pipe, method) for name, method in built.items()}
    outcomes, times = run_timed(pipe, methods, clips, widths, on_item)
    context = pipe.layout.num_tokens - clips[0].open(pipe).stopping.max_new_tokens
    for outcome in outcomes.values():
        pairs = zip(clips, outcome.samples, strict=True)
        bits = [bits_per_token(pipe, item, sample.tokens[:, context:]) for item, sample in pairs]
        outcome.bits, outcome.untruncated_bits = (sum(values) / len(values) for values in zip(*bits, strict=True))
    entries = [
        figures(outcomes[name], outcomes["plain"], times, default=b.method.default, peer=b.method.peer)
        for name, b in built.items()
    ]
    return BenchReport("video", pipe.device.type, _settings(pipe, bench, outcomes, times), entries)


def _settings(pipe: Any, bench: VideoBench, outcomes: dict[str, Outcome], times: ForwardTimes) -> dict[str, Any]:
    by_start = {
        name.removeprefix("start-"): outcome.forwards
        for name, outcome in outcomes.items()
        if name.startswith("start-")
    }
    return {
        "model": bench.model,
        "items": bench.items,
        "seed": bench.seed,
        "prompts": [prompt for _, prompt in bench.samples],
        "num_frames": pipe.num_frames,
        "latent_shape": list(pipe.transformer.config.latent_shape),
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "sampling": {n: getattr(pipe.config, n) for n in ("guidance_scale", "temperature", "top_k", "top_p")},
        "forward_ms": {"prefill": 1e3 * times.prefill, **{str(w): 1e3 * t for w, t in times.by_width.items()}},
        "overhead": {name: outcome.overhead() for name, outcome in outcomes.items()},
        "wall_ratio_median": {name: median_wall_ratio(o, outcomes["plain"]) for name, o in outcomes.items()},
        "acceptance_by_depth": {name: outcome.stats.acceptance_by_depth for name, outcome in outcomes.items()},
        "accepted_by_frame": accepted_by(outcomes, lambda position: position // pipe.layout.frame_length),
        "forwards_ratio_to_uniform_w32": {
            kind: by_start["uniform"] / count for kind, count in by_start.items() if "uniform" in by_start
        },
    }
