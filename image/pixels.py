"""From a picture tokenizer's output to [-1, 1], for families whose processors state how pixels were normalised."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def unnormalise(pictures: Tensor, image_processor: Any) -> Tensor:
    """Undo ``image_processor``'s ``(x - mean) / std`` on ``pictures`` (B, 3, h, w), and scale [0, 1] to [-1, 1]."""
    if not getattr(image_processor, "do_normalize", True):
        return pictures * 2 - 1
    mean, std = (
        pictures.new_tensor(getattr(image_processor, name))[:, None, None] for name in ("image_mean", "image_std")
    )
    return (pictures * std + mean) * 2 - 1
