"""What the image pipelines share: the checked arguments of a call, and what its micro-batches have produced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.loop import Decoder, Progress
from mmspec.core.stats import DecodeStats, merge_stats
from mmspec.drafters.base import check_positive
from mmspec.image.grid import Grid
from mmspec.pipelines.base import DecodeRequest

OUTPUT_TYPES = ("pil", "np", "pt", "tokens")


@dataclass(frozen=True)
class ImageCall:
    """The arguments of one call, see ``__call__`` of the pipeline.

    Raises:
        TypeError, ValueError: For values that are wrong for every model.
    """

    prompt: str | Sequence[str] | None = None
    class_labels: int | str | Sequence[int | str] | None = None
    negative_prompt: str | Sequence[str] | None = None
    height: int | None = None
    width: int | None = None
    aspect_ratio: str | None = None
    guidance_scale: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_images_per_prompt: int = 1
    generator: torch.Generator | Sequence[torch.Generator] | None = None
    seed: int | Sequence[int] | None = None
    speculate: bool = True
    guided_until: int | None = None
    truncate_prompt: bool = False
    micro_batch_size: int | None = None
    output_type: str = "pil"

    def __post_init__(self) -> None:
        for name in ("height", "width", "num_images_per_prompt", "micro_batch_size"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.output_type not in OUTPUT_TYPES:
            raise ValueError(f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {self.output_type!r}.")
        if self.aspect_ratio is not None and (self.height is not None or self.width is not None):
            raise ValueError("Give `aspect_ratio` or `height` and `width`, not both.")
        if self.prompt is not None:
            as_captions("prompt", self.prompt)

    @property
    def num_conditions(self) -> int:
        """Number of captions or classes."""
        given = self.prompt if self.prompt is not None else self.class_labels
        return 1 if isinstance(given, (str, int)) else len(given or ())

    def sampling(self, defaults: Any) -> tuple[float, int, float]:
        """Temperature, top-k and top-p, the checkpoint's ``defaults`` where the caller said nothing."""
        names = ("temperature", "top_k", "top_p")
        temperature, top_k, top_p = (
            getattr(defaults, name) if getattr(self, name) is None else getattr(self, name) for name in names
        )
        return temperature, top_k, top_p


@dataclass
class ImageRun:
    """What the micro-batches of one call, pictures laid out on ``grid``, have produced so far."""

    requests: list[DecodeRequest]
    grid: Grid
    decoders: list[Decoder] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    def see(self, decoder: Decoder, progress: Progress) -> None:
        """Note the newest progress of ``decoder``."""
        if not self.decoders or self.decoders[-1] is not decoder:
            self.decoders.append(decoder)
            self.progress.append(progress)
        self.progress[-1] = progress

    def _all(self, parts: list[Tensor]) -> Tensor:
        waiting = sum(len(request.seeds) for request in self.requests[len(parts) :])
        return torch.nn.functional.pad(torch.cat(parts), (0, 0, 0, waiting)).cpu()

    def tokens(self) -> Tensor:
        """Tokens of all samples (B, N) as the loop numbers them, on the CPU; zeros where there are none yet."""
        return self._all([progress.tokens for progress in self.progress])

    def own_ids(self) -> Tensor:
        """Tokens of all samples (B, N) as the model numbers them, on the CPU; zeros where there are none yet."""
        return self._all([request.own_ids(p) for request, p in zip(self.requests, self.progress, strict=False)])

    def lengths(self) -> list[int]:
        """Committed tokens of each sample."""
        known = [length for progress in self.progress for length in progress.lengths]
        return known + [0] * (sum(len(request.seeds) for request in self.requests) - len(known))

    def rows(self) -> list[int]:
        """Committed complete token rows of each sample."""
        return [self.grid.complete_rows(length) for length in self.lengths()]

    def stats(self) -> DecodeStats:
        """Figures of the micro-batches so far."""
        return merge_stats([decoder.stats for decoder in self.decoders])

    def shown(self) -> int:
        """How much there is to show; more of it is worth another partial picture."""
        return sum(self.rows())


def match_negatives(prompts: list[str], negative: str | Sequence[str]) -> list[str]:
    """One negative prompt per prompt, from one for all or one each.

    Raises:
        TypeError, ValueError: If ``negative`` is no text, or of another number.
    """
    negatives = as_captions("negative_prompt", negative)
    if len(negatives) not in (1, len(prompts)):
        raise ValueError(f"`negative_prompt` has {len(negatives)} entries for {len(prompts)} prompts.")
    return negatives * (len(prompts) // len(negatives))


def as_captions(name: str, value: str | Sequence[str]) -> list[str]:
    """A list of captions; TypeError or ValueError if ``value`` is not one caption or a list of them."""
    captions = [value] if isinstance(value, str) else value
    if not isinstance(captions, (list, tuple)) or any(not isinstance(caption, str) for caption in captions):
        raise TypeError(f"`{name}` must be a string or a list of strings, got {value!r}.")
    if not captions:
        raise ValueError(f"`{name}` is empty; give at least one caption.")
    return list(captions)
