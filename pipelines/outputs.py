"""What pipelines return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffusers.pipelines.pipeline_utils import ImagePipelineOutput
from diffusers.utils import BaseOutput
from PIL import Image
from torch import Tensor

from mmspec.core.stats import DecodeStats


@dataclass
class ImageOutput(ImagePipelineOutput):
    """Generated pictures.

    Attributes:
        images: PIL images, an array (B, h, w, 3) in [0, 1], a tensor (B, 3, h, w) in [0, 1], or tokens, by
            ``output_type``.
        tokens: Image tokens (B, N) on the CPU, structural ones included, as the model itself numbers them.
        stats: Forwards, seconds, guarantee and seeds of the call.
    """

    tokens: Tensor | None = None
    stats: DecodeStats | None = None


@dataclass
class PartialImages(BaseOutput):
    """Pictures while they are made: their upper, committed rows on a white canvas.

    Attributes:
        images: One PIL image per sample.
        rows: Committed token rows of each sample. Committed rows are final.
        finished: Whether these are the finished pictures.
        output: The complete :class:`ImageOutput` once ``finished``.
        stats: Figures so far, which go on changing; rows of samples that did not start yet are missing.
    """

    images: list[Image.Image]
    rows: list[int]
    finished: bool = False
    output: Any = None
    stats: DecodeStats | None = None
