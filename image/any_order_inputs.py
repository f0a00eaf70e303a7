"""What any-order pictures are conditioned on: classes, an order of the cells, and cells that are known.

Symbols: B samples, M cells, K known cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.image.video_files import read_frames


@dataclass(frozen=True)
class AnyOrderCondition:
    """Conditions of B samples.

    Attributes:
        labels: Class numbers (B,).
        order: Order of all cells (M,), the same for all samples.
        known: Tokens (B, K) of the first K cells of the order.
    """

    labels: Tensor
    order: Tensor
    known: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def repeat(self, count: int) -> AnyOrderCondition:
        """Every sample ``count`` times in a row."""
        return replace(
            self,
            labels=self.labels.repeat_interleave(count, 0),
            known=self.known.repeat_interleave(count, 0),
        )

    def rows(self, start: int, stop: int) -> AnyOrderCondition:
        """The samples ``start`` to ``stop``."""
        return replace(self, labels=self.labels[start:stop], known=self.known[start:stop])


def known_cells(mask_image: Any, rows: int, columns: int) -> Tensor:
    """Cells (K,) of which a mask leaves every pixel, in raster order.

    Args:
        mask_image: A PIL image, an array (h, w) or (h, w, 3) or a tensor (h, w) or (3, h, w); white, or 1, is what is to be
            painted. Other sizes are stretched to the picture's.
        rows, columns: Of cells.

    Raises:
        TypeError: If it is no mask.
        ValueError: If there is nothing to paint.
    """
    painted = _read_mask(mask_image)
    height, width = (-(-side // cells) * cells for side, cells in zip(painted.shape, (rows, columns), strict=True))
    stretched = Image.fromarray(painted.astype(np.uint8) * 255).resize((width, height), Image.Resampling.NEAREST)
    blocks = np.asarray(stretched).reshape(rows, height // rows, columns, width // columns) > 0
    touched = torch.from_numpy(blocks.any(axis=(1, 3)).flatten())
    if not touched.any():
        raise ValueError("`mask_image` is black everywhere, so there is nothing to paint; white is what changes.")
    return (~touched).nonzero()[:, 0]


def _read_mask(mask: Any) -> np.ndarray:
    """Pixels to paint (h, w), boolean."""
    if isinstance(mask, Image.Image):
        return np.asarray(mask.convert("L")) >= 128
    if isinstance(mask, Tensor):
        mask = mask.detach().cpu().numpy()
        mask = mask.max(axis=0) if mask.ndim == 3 else mask
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`mask_image` must be a PIL image, an array or a tensor, got {type(mask).__name__}.")
    if mask.ndim == 3:
        mask = mask.max(axis=-1)
    if mask.ndim != 2 or not mask.size:
        raise ValueError(f"`mask_image` must have the axes (h, w), got the shape {mask.shape}.")
    return mask >= (128 if mask.dtype == np.uint8 else 0.5)


def read_pictures(image: Any, height: int, width: int) -> Tensor:
    """Pictures (n, 3, height, width) in [-1, 1] of whatever :func:`mmspec.image.video_files.read_frames` reads.

    Raises:
        TypeError, ValueError: If it cannot be read.
    """
    frames = read_frames(image)
    resized = [
        np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.LANCZOS)) for frame in frames
    ]
    return torch.from_numpy(np.stack(resized)).movedim(-1, 1).float() / 127.5 - 1
