"""The image suite: pictures of the checkpoint's own prompts, each with a seed of its own.

Items repeat the prompts in order; item i has the seed ``seed + i``. With ``batch_size`` above 1 neighbours are decoded
together, and plain decoding of the same batches is what methods are compared with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.bench.deviation import code_distance, colour_distance
from mmspec.bench.harness import Outcome, Sample
from mmspec.bench.measure import bits_per_token, cuda_peak, run_timed
from mmspec.bench.memory import peak_memory
from mmspec.bench.methods import BuiltMethod, Method, Parts, build_methods
from mmspec.bench.overhead import measurable, overhead_shares
from mmspec.bench.positions import accepted_by
from mmspec.bench.report import BenchReport, ForwardTimes, figures, median_wall_ratio
from mmspec.core.controllers import WIDTHS
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import check_positive

if TYPE_CHECKING:
    from mmspec.pipelines.base import DecodeRequest

_OTHER_SEEDS = 1 << 20


@dataclass(frozen=True)
class ImageItem:
    """Pictures that are decoded together; ``None`` is what the checkpoint recommends."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    temperature: float | None = None
    top_k: int | None = None

    def open(self, pipe: Any) -> DecodeRequest:
        """The request by which ``pipe`` decodes these pictures."""
        from mmspec.pipelines.image_call import ImageCall

        prompts, seeds = list(self.prompts), list(self.seeds)
        [request] = pipe._requests(ImageCall(prompts, seed=seeds, temperature=self.temperature, top_k=self.top_k))
        return request

    @property
    def solo(self) -> list[ImageItem]:
        """Every picture as an item of its own."""
        pairs = zip(self.prompts, self.seeds, strict=True)
        return [replace(self, prompts=(prompt,), seeds=(seed,)) for prompt, seed in pairs]


@dataclass(frozen=True)
class ImageBench:
    """What to run.

    Attributes:
        model: Embedded name, folder or hub id; processes that measure memory load it again.
        methods: Methods, ``plain`` first.
        prompts: Prompts, repeated as often as needed.
        items: Number of pictures, at least 1.
        batch_size: Pictures decoded together.
        seed: Seed of the first picture.
        temperature, top_k: How tokens are drawn; ``None`` is what the checkpoint recommends.
        check_solo: Also compare every row of a batch with the row decoded alone.
        memory: Measure peak memory.
        overhead: Measure the time outside the forwards at the size of GPT-B, for methods that need no weights.

    Raises:
        TypeError, ValueError: For numbers below 1.
    """

    model: str
    methods: Sequence[Method]
    prompts: Sequence[str]
    items: int = 32
    batch_size: int = 1
    seed: int = 0
    temperature: float | None = None
    top_k: int | None = None
    check_solo: bool = False
    memory: bool = True
    overhead: bool = False

    def __post_init__(self) -> None:
        check_positive("items", self.items)
        check_positive("batch_size", self.batch_size)

    def groups(self) -> list[ImageItem]:
        """The items, ``batch_size`` pictures each."""
        pairs = [(self.prompts[i % len(self.prompts)], self.seed + i) for i in range(self.items)]
        cuts = range(0, self.items, self.batch_size)
        parts = [tuple(zip(*pairs[start : start + self.batch_size], strict=True)) for start in cuts]
        return [ImageItem(prompts, seeds, self.temperature, self.top_k) for prompts, seeds in parts]


def read_prompts(folder: Path) -> list[str]:
    """The prompts that a checkpoint lists in ``prompts.json``.

    Raises:
        ValueError: If there is no such file, or it is no list of strings.
    """
    file = folder / "prompts.json"
    if not file.is_file():
        raise ValueError(f"{folder} has no prompts.json; give prompts with --prompt.")
    try:
        prompts = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not readable JSON: {error}.") from error
    if not isinstance(prompts, list) or not prompts or not all(isinstance(text, str) for text in prompts):
        raise ValueError(f"{file} must hold a list of prompts.")
    return prompts


def decode(pipe: Any, built: BuiltMethod, item: ImageItem) -> Sample:
    """Decode one item by one method."""
    call = partial(
        pipe, list(item.prompts), seed=list(item.seeds), temperature=item.temperature, top_k=item.top_k,
        output_type="tokens",
    )  # fmt: skip
    output = built.run(pipe, call)
    return Sample(output.tokens, output.stats)


def run_image_bench(pipe: Any, bench: ImageBench, on_item: Callable[[int], Any] | None = None) -> BenchReport:
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


def _run(pipe: Any, bench: ImageBench, on_item: Callable[[int], Any] | None) -> BenchReport:
    built = build_methods(bench.methods, pipe)
    groups = bench.groups()
    widths = _widths(built, pipe.grid[0] * pipe.grid[1])
    methods = {name: partial(decode, pipe, method) for name, method in built.items()}
    outcomes, times = run_timed(pipe, methods, groups, widths, on_item)
    _measure_more(pipe, bench, built, groups, outcomes)
    plain = outcomes["plain"]
    entries = [
        figures(outcomes[name], plain, times, default=b.method.default, peer=b.method.peer)
        for name, b in built.items()
    ]
    return BenchReport("image", pipe.device.type, _settings(pipe, bench, outcomes, times), entries)


def _widths(built: dict[str, BuiltMethod], num_tokens: int) -> list[int]:
    """Widths to time: those of the controllers and the widest of every drafter, at most a whole picture."""
    widest = [method.drafter.max_nodes for method in built.values() if method.drafter]
    return sorted({min(width, num_tokens) for width in (*WIDTHS, *widest)})


def _measure_more(
    pipe: Any, bench: ImageBench, built: dict[str, BuiltMethod], groups: list[ImageItem], outcomes: dict[str, Outcome]
) -> None:
    """Fill in what is measured beside the clock: bits, memory, and equality with solo runs."""
    for name, outcome in outcomes.items():
        bits = [bits_per_token(pipe, item, s.tokens) for item, s in zip(groups, outcome.samples, strict=True)]
        outcome.bits, outcome.untruncated_bits = (sum(values) / len(values) for values in zip(*bits, strict=True))
        if bench.check_solo and outcome.stats.guarantee is Guarantee.SAME_TOKENS:
            outcome.solo_equal = _equals_solo(pipe, built[name], groups, outcome)
    if bench.items > 1:
        _measure_distances(pipe, built["plain"], groups, outcomes)
    if not bench.memory:
        return
    if pipe.device.type == "cuda":
        for name, method in built.items():
            outcomes[name].peak_memory = cuda_peak(partial(decode, pipe, method, groups[0]))
    else:
        plain_like = replace(bench, items=bench.batch_size, memory=False)
        for name, peak in peak_memory(plain_like, str(pipe.dtype).removeprefix("torch.")).items():
            outcomes[name].peak_memory = peak


def _measure_distances(pipe: Any, plain: BuiltMethod, groups: list[ImageItem], outcomes: dict[str, Outcome]) -> None:
    """Compare the pictures of relaxed methods with those of plain decoding; plain's own figures are mere chance."""
    relaxed = [outcome for outcome in outcomes.values() if not outcome.stats.guarantee.lossless]
    if not relaxed:
        return
    tokens = {
        outcome.name: torch.cat([s.tokens for s in outcome.samples]) for outcome in (outcomes["plain"], *relaxed)
    }
    others = [replace(item, seeds=tuple(seed + _OTHER_SEEDS for seed in item.seeds)) for item in groups]
    chance = torch.cat([decode(pipe, plain, item).tokens for item in others])
    reference = pictures_of(pipe, tokens["plain"])
    prompts = [prompt for item in groups for prompt in item.prompts]
    for outcome in (outcomes["plain"], *relaxed):
        drawn = chance if outcome.name == "plain" else tokens[outcome.name]
        outcome.distances = {
            "colour_distance": colour_distance(pictures_of(pipe, drawn), reference),
            "code_distance": code_distance(drawn, tokens["plain"], prompts, pipe.codebook.cpu()),
        }


def pictures_of(pipe: Any, tokens: Tensor) -> Tensor:
    """Pictures (B, 3, h, w) in [0, 1] of complete token grids (B, N)."""
    return pipe.image_processor.denormalize(pipe.decode_tokens(tokens)).cpu()


def _equals_solo(pipe: Any, built: BuiltMethod, groups: list[ImageItem], outcome: Outcome) -> bool:
    for item, sample in zip(groups, outcome.samples, strict=True):
        alone = torch.cat([decode(pipe, built, solo).tokens for solo in item.solo])
        if not torch.equal(alone, sample.tokens):
            return False
    return True


def _settings(pipe: Any, bench: ImageBench, outcomes: dict[str, Outcome], times: ForwardTimes) -> dict[str, Any]:
    sampling = {name: getattr(pipe.config, name) for name in ("guidance_scale", "temperature", "top_k", "top_p")}
    asked = {"temperature": bench.temperature, "top_k": bench.top_k}
    sampling.update({name: value for name, value in asked.items() if value is not None})
    settings: dict[str, Any] = {
        "model": bench.model,
        "items": bench.items,
        "batch_size": bench.batch_size,
        "seed": bench.seed,
        "prompts": list(bench.prompts),
        "check_solo": bench.check_solo,
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "sampling": sampling,
        "forward_ms": {"prefill": 1e3 * times.prefill, **{str(w): 1e3 * t for w, t in times.by_width.items()}},
        "overhead": {name: outcome.overhead() for name, outcome in outcomes.items()},
        "wall_ratio_median": {name: median_wall_ratio(o, outcomes["plain"]) for name, o in outcomes.items()},
        "acceptance_by_depth": {name: outcome.stats.acceptance_by_depth for name, outcome in outcomes.items()},
        "accepted_by_row": accepted_by(outcomes, lambda position: position // pipe.grid[1]),
        "peak_memory_bytes": {name: outcome.peak_memory for name, outcome in outcomes.items()},
    }
    if bench.overhead:
        settings["overhead_gpt_b"] = overhead_shares(method for method in bench.methods if measurable(method))
    return settings
