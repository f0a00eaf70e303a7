"""The checked arguments of a video call, what its micro-batches have produced, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.utils import BaseOutput
from PIL import Image
from torch import Tensor

from mmspec.core.loop import Decoder, Progress
from mmspec.core.stats import DecodeStats
from mmspec.drafters.base import check_positive
from mmspec.image.video_files import check_fps
from mmspec.image.video_grid import VideoGrid
from mmspec.pipelines.image_call import as_captions

OUTPUT_TYPES = ("pil", "np", "pt", "mp4", "gif", "tokens")


@dataclass(frozen=True)
class VideoCall:
    """The arguments of one call, see ``__call__`` of the pipeline.

    Raises:
        TypeError, ValueError: For values that are wrong for every model.
    """

    image: Any = None
    video: Any = None
    prompt: str | Sequence[str] | None = None
    num_frames: int | None = None
    context_frames: int | None = None
    guidance_scale: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_videos_per_prompt: int = 1
    generator: torch.Generator | Sequence[torch.Generator] | None = None
    seed: int | Sequence[int] | None = None
    speculate: bool = True
    extend: bool = False
    truncate_prompt: bool = False
    micro_batch_size: int | None = None
    fps: float | None = None
    output_type: str = "pil"

    def __post_init__(self) -> None:
        for name in ("num_frames", "context_frames", "num_videos_per_prompt", "micro_batch_size"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.output_type not in OUTPUT_TYPES:
            raise ValueError(f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {self.output_type!r}.")
        if (self.image is None) == (self.video is None):
            raise ValueError("Give exactly one of `image` and `video`, the frames that the clip continues.")
        if self.image is not None and self.context_frames not in (None, 1):
            raise ValueError(f"An `image` is one frame; `context_frames` is {self.context_frames}.")
        if self.fps is not None:
            check_fps(self.fps)
        if self.prompt is not None:
            as_captions("prompt", self.prompt)

    def sampling(self, defaults: Any) -> tuple[float, int, float]:
        """Temperature, top-k and top-p, the checkpoint's ``defaults`` where the caller said nothing."""
        names = ("temperature", "top_k", "top_p")
        temperature, top_k, top_p = (
            getattr(defaults, name) if getattr(self, name) is None else getattr(self, name) for name in names
        )
        return temperature, top_k, top_p


@dataclass
class Segment:
    """A stretch of a clip that is decoded in one go: ``context`` codes (B, c * frame) and what follows them.

    Attributes:
        context: Codes that are given.
        grid: Layout of the codes to come.
        decoders, progress: Of the micro-batches, the finished ones and the running one.
        num_rows: Samples B.
    """

    context: Tensor
    grid: VideoGrid
    num_rows: int
    decoders: list[Decoder] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    def see(self, decoder: Decoder, progress: Progress) -> None:
        """Note the newest progress of ``decoder``."""
        if not self.decoders or self.decoders[-1] is not decoder:
            self.decoders.append(decoder)
            self.progress.append(progress)
        self.progress[-1] = progress

    def tokens(self) -> Tensor:
        """New codes of all samples (B, M) on the CPU; zeros where there are none yet."""
        parts = [progress.tokens for progress in self.progress]
        if not parts:
            return torch.zeros(self.num_rows, self.grid.num_tokens, dtype=torch.long)
        known = torch.cat(parts).cpu()
        return torch.nn.functional.pad(known, (0, 0, 0, self.num_rows - len(known)))

    def frames(self) -> list[int]:
        """Committed new latent frames of each sample."""
        known = [self.grid.complete_frames(n) for progress in self.progress for n in progress.lengths]
        return known + [0] * (self.num_rows - len(known))


@dataclass
class VideoOutput(BaseOutput):
    """Generated clips, the context frames first.

    Attributes:
        frames: Lists of PIL images, an array (B, F, h, w, 3) or a tensor (B, F, 3, h, w) in [0, 1], files as bytes, or
            tokens, by ``output_type``.
        tokens: Codes (B, T * H * W) on the CPU, those of the context first.
        stats: Forwards, seconds, guarantee and seeds of the call.
        extended: Whether the clips are longer than those of the model's training; then what is exact is each stretch
            of them given the frames before it, and the quality is nobody's promise.
    """

    frames: Any
    tokens: Tensor
    stats: DecodeStats
    extended: bool = False


@dataclass
class PartialVideos(BaseOutput):
    """Clips while they are made.

    Attributes:
        new_frames: For each sample, the frames that were committed since the last one of these; committed frames are
            final. The first carries the context, as the tokenizer sees it.
        num_frames: Frames of each sample so far.
        finished: Whether these are the last.
        output: The complete :class:`VideoOutput` once ``finished``.
        stats: Figures so far, which go on changing.
    """

    new_frames: list[list[Image.Image]]
    num_frames: list[int]
    finished: bool = False
    output: Any = None
    stats: DecodeStats | None = None
