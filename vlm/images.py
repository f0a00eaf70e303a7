"""Pictures as users have them, made into RGB pictures as vision towers expect them, or refused with a reason."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
"""Modes with more than 8 bits a channel, which PIL would clip at 255 rather than scale."""


def load_image(source: Any, number: int = 0) -> Image.Image:
    """One picture in RGB, upright.

    Args:
        source: A path, the bytes of a file, a PIL image, an array or a tensor (h, w), (h, w, 3) or (h, w, 4), 8 bits
            or floats in [0, 1].
        number: Place in a list, for messages.

    Grey, palette, CMYK and 16-bit pictures are converted, transparency is laid on white, and a rotation that EXIF asks
    for is carried out.

    Raises:
        FileNotFoundError: If a path does not exist.
        TypeError: If this is no picture.
        ValueError: If a file is empty, damaged, cut short, animated, or a web address.
    """
    name = f"picture {number}"
    if isinstance(source, (str, Path)):
        name, source = repr(str(source)), _read(source)
    if isinstance(source, (bytes, bytearray)):
        image = _decode(bytes(source), name)
    elif isinstance(source, Image.Image):
        image = source
        _refuse_animation(image, name)
    elif isinstance(source, (np.ndarray, torch.Tensor)):
        image = _from_array(source, name)
    else:
        raise TypeError(
            f"{name} must be a path, bytes, a PIL image, an array or a tensor, got {type(source).__name__}."
        )
    if not image.width or not image.height:
        raise ValueError(f"{name} has no pixels: {image.width} x {image.height}.")
    return _to_rgb(ImageOps.exif_transpose(image))


def _read(source: str | Path) -> bytes:
    if "://" in str(source):
        raise ValueError(f"{str(source)!r} is a web address; mmspec fetches nothing, give a file.")
    path = Path(source).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no picture {str(source)!r}.")
    return path.read_bytes()


def _decode(content: bytes, name: str) -> Image.Image:
    if not content:
        raise ValueError(f"{name} is an empty file.")
    try:
        image = Image.open(io.BytesIO(content))
        _refuse_animation(image, name)
        image.load()
    except UnidentifiedImageError as error:
        raise ValueError(f"{name} is no picture that PIL can read.") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} is damaged or cut short: {error}") from error
    return image


def _refuse_animation(image: Image.Image, name: str) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise ValueError(
            f"{name} is animated, with {frames} frames; give one frame, or several as a list of pictures."
        )


def _from_array(source: Any, name: str) -> Image.Image:
    array = source.detach().cpu().numpy() if isinstance(source, torch.Tensor) else source
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise ValueError(f"{name} must have the shape (h, w), (h, w, 3) or (h, w, 4), got {array.shape}.")
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min(initial=0) < 0 or array.max(initial=0) > 1:
            raise ValueError(f"{name} has floats outside [0, 1].")
        array = np.round(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"{name} must hold 8-bit numbers or floats in [0, 1], got {array.dtype}.")
    return Image.fromarray(array)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP:
        values = np.asarray(image, dtype=np.float64)
        largest = 65535.0 if image.mode != "F" else max(1.0, float(values.max()))
        return Image.fromarray(np.round(values.clip(0, largest) * (255 / largest)).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layered = image.convert("RGBA")
        white = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(white, layered).convert("RGB")
    return image.convert("RGB")


def is_image(value: Any) -> bool:
    """Whether ``value`` is one picture rather than a list of them."""
    return not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray))
