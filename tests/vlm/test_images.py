"""Pictures as users have them: right, or refused with a reason."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.vlm.images import load_image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def colours() -> Image.Image:
    """Red, green, blue and white, 2 x 2."""
    return Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], dtype=np.uint8))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "L", "LA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_of_eight_bits(mode: str) -> None:
    given = colours().convert(mode)
    image = load_image(given)
    assert image.mode == "RGB"
    assert image.size == (2, 2)
    wanted = np.asarray(given.convert("RGB"), dtype=int)
    assert np.abs(np.asarray(image, dtype=int) - wanted).max() <= 2


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_files_bytes_and_paths(kind: str, tmp_path: Path) -> None:
    content = encoded(Image.new("RGB", (8, 8), (200, 30, 60)), kind)
    path = tmp_path / "picture"
    path.write_bytes(content)
    for source in (content, path, str(path)):
        assert np.abs(np.asarray(load_image(source), dtype=int) - (200, 30, 60)).max() <= 4


def test_transparent_parts_are_white() -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert np.asarray(load_image(image)).tolist() == [[[255, 255, 255], [10, 20, 30]]]
    palette = Image.new("P", (1, 1), 0)
    palette.info["transparency"] = 0
    assert load_image(palette).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["I;16", "I"])
def test_sixteen_bits_are_scaled_not_clipped(mode: str) -> None:
    deep = Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.uint16)).convert(mode)
    assert np.asarray(load_image(deep))[0, :, 0].tolist() == [0, 128, 255]


def test_exif_rotation_is_carried_out() -> None:
    upright = Image.new("RGB", (4, 2), "white")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert load_image(encoded(upright, "JPEG", exif=exif)).size == (2, 4)


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_unusual_sizes(size: tuple[int, int]) -> None:
    assert load_image(Image.new("L", size, 7)).size == size


def test_arrays_and_tensors() -> None:
    whole = np.asarray(colours())
    floats = torch.from_numpy(whole / 255.0)
    assert np.array_equal(np.asarray(load_image(whole)), whole)
    assert np.array_equal(np.asarray(load_image(floats)), whole)


def bad() -> dict[str, tuple[Any, type[Exception], str]]:
    frames = [Image.new("RGB", (4, 4), shade) for shade in ("red", "blue")]
    png = encoded(colours().resize((64, 64), Image.Resampling.BICUBIC))
    jpeg = encoded(Image.effect_noise((64, 64), 80).convert("RGB"), "JPEG")
    return {
        "animated": (encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), ValueError, "animated"),
        "empty": (b"", ValueError, "empty file"),
        "no picture": (b"hello, world", ValueError, "no picture"),
        "png cut short": (png[: len(png) // 2], ValueError, "damaged or cut short"),
        "jpeg cut short": (jpeg[: len(jpeg) // 2], ValueError, "damaged or cut short"),
        "web address": ("https://example.org/cat.png", ValueError, "web address"),
        "missing": ("/nowhere/cat.png", FileNotFoundError, "no picture"),
        "number": (3, TypeError, "must be a path"),
        "shape": (np.zeros((3, 8, 8), dtype=np.uint8), ValueError, "shape"),
        "range": (np.full((2, 2), 200.0), ValueError, r"outside \[0, 1\]"),
        "integers": (np.zeros((2, 2), dtype=np.int64), ValueError, "8-bit"),
        "no pixels": (np.zeros((0, 2), dtype=np.uint8), ValueError, "no pixels"),
    }


@pytest.mark.parametrize("name", sorted(bad()))
def test_what_cannot_be_read_is_refused_with_a_reason(name: str) -> None:
    source, error, words = bad()[name]
    with pytest.raises(error, match=words):
        load_image(source)


def test_an_empty_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "empty.png"
    path.touch()
    with pytest.raises(ValueError, match=r"empty\.png' is an empty file"):
        load_image(path)
