"""What the image pipelines share: the checked arguments of a call, and what its micro-batches have produced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.loop import Decoder, Progress
from mmspec.drafters.base import check_positive
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
        for name in ("num_images_per_prompt", "micro_batch_size"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.output_type not in OUTPUT_TYPES:
            raise ValueError(f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {self.output_type!r}.")
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
    """What the micro-batches of one call have produced so far."""

    requests: list[DecodeRequest]
    decoders: list[Decoder] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    def see(self, decoder: Decoder, progress: Progress) -> None:
        """Note the newest progress of ``decoder``."""
        if not self.decoders or self.decoders[-1] is not decoder:
            self.decoders.append(decoder)
            self.progress.append(progress)
        self.progress[-1] = progress

    def tokens(self) -> Tensor:
        """Tokens of all samples (B, N), zeros where there are none yet."""
        waiting = sum(len(request.seeds) for request in self.requests[len(self.progress) :])
        done = torch.cat([progress.tokens for progress in self.progress])
        return torch.nn.functional.pad(done, (0, 0, 0, waiting))

    def lengths(self) -> list[int]:
        """Committed tokens of each sample."""
        known = [length for progress in self.progress for length in progress.lengths]
        return known + [0] * (sum(len(request.seeds) for request in self.requests) - len(known))

    def rows(self, row_length: int) -> list[int]:
        """Committed complete token rows of each sample."""
        return [length // row_length for length in self.lengths()]


def as_captions(name: str, value: str | Sequence[str]) -> list[str]:
    """A list of captions; TypeError or ValueError if ``value`` is not one caption or a list of them."""
    captions = [value] if isinstance(value, str) else value
    if not isinstance(captions, (list, tuple)) or any(not isinstance(caption, str) for caption in captions):
        raise TypeError(f"`{name}` must be a string or a list of strings, got {value!r}.")
    if not captions:
        raise ValueError(f"`{name}` is empty; give at least one caption.")
    return list(captions)
