"""Videos as the processors of vision-language models want them: few frames, and when each of them was.

Symbols: F frames of a clip, h and w pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

DEFAULT_FPS = 24.0
"""Frames a second of clips that do not say; what transformers takes, too."""


@dataclass(frozen=True)
class Clip:
    """A video with the frames that are read.

    Attributes:
        frames: Pixels (F, h, w, 3), 8 bits.
        places: Which frames of the whole clip they are (F,).
        total: Frames of the whole clip.
        fps: Frames a second of the whole clip.
    """

    frames: np.ndarray
    places: tuple[int, ...]
    total: int
    fps: float

    @classmethod
    def thinned(cls, frames: np.ndarray, fps: float, most: int) -> Clip:
        """At most ``most`` of the ``frames`` (F, h, w, 3), evenly spread over the clip, its first and last among them."""
        total = len(frames)
        places = np.linspace(0, total - 1, min(most, total)).round().astype(int)
        return cls(frames[places], tuple(places.tolist()), total, float(fps))

    @property
    def metadata(self) -> dict[str, Any]:
        """What transformers' processors ask for, to write times into the prompt or to space positions."""
        return {
            "total_num_frames": self.total, "fps": self.fps, "duration": self.total / self.fps,
            "height": self.frames.shape[1], "width": self.frames.shape[2], "frames_indices": list(self.places),
        }  # fmt: skip


ClipReader = Callable[[Any], Clip]
"""Reads whatever a caller gives as a video."""


def is_clip(value: Any) -> bool:
    """Whether ``value`` is one video rather than a list of them; a list of pictures is one."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        return True
    first = value[0] if value else None
    return isinstance(first, Image.Image) or getattr(first, "ndim", 4) in (2, 3)
