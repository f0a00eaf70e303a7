"""Reading and writing clips: every kind of input is right or a clear error."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.image.video_files import cover, encode_gif, encode_mp4, read_frames, to_tensor


def pictures(count: int = 3, size: tuple[int, int] = (16, 12), mode: str = "RGB") -> list[Image.Image]:
    rng = np.random.default_rng(0)
    shape = (size[1], size[0], len(mode))
    return [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8), mode) for _ in range(count)]


FRAMES = np.stack([np.asarray(p) for p in pictures()])


@pytest.mark.parametrize(
    "source",
    [
        pictures(),
        FRAMES,
        list(FRAMES),
        FRAMES / 255,
        torch.from_numpy(FRAMES).movedim(-1, -3),
        torch.from_numpy(FRAMES).movedim(-1, -3).float() / 255,
    ],
    ids=["pil", "array", "arrays", "floats", "tensor", "float-tensor"],
)
def test_every_kind_of_clip(source: object) -> None:
    assert np.array_equal(read_frames(source), FRAMES)


def test_one_frame() -> None:
    for source in (pictures(1), pictures(1)[0], FRAMES[0], FRAMES[:1]):
        assert np.array_equal(read_frames(source), FRAMES[:1])


def test_transparency_is_drawn_on_white() -> None:
    clear = np.zeros((2, 4, 4, 4), dtype=np.uint8)
    clear[1, :, :, 3] = 255
    for source in (clear, [Image.fromarray(frame, "RGBA") for frame in clear]):
        frames = read_frames(source)
        assert frames.shape == (2, 4, 4, 3)
        assert bool((frames[0] == 255).all())
        assert not frames[1].any()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([], ValueError, "no frames"),
        (np.zeros((0, 4, 4, 3), dtype=np.uint8), ValueError, "at least one frame"),
        (pictures(1) + pictures(1, (8, 8)), ValueError, "one size, got 8 x 8, 12 x 16"),
        (np.zeros((2, 4, 5), dtype=np.uint8), ValueError, r"\(F, h, w, 3\)"),
        (np.full((1, 4, 4, 3), 2.0), ValueError, r"\[0, 1\]"),
        (np.full((1, 4, 4, 3), np.nan), ValueError, r"\[0, 1\]"),
        (np.zeros((1, 4, 4, 3), dtype=np.int32), ValueError, "uint8"),
        (torch.zeros(1, 5, 4, 3), ValueError, r"\(F, 3, h, w\)"),
        (["a.png", "b.png"], TypeError, "not of paths"),
        ({}, TypeError, "clip must be"),
    ],
)
def test_wrong_clips(source: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        read_frames(source)


def test_gif_round_trip(tmp_path) -> None:
    flat = [Image.new("RGB", (16, 12), colour) for colour in ("red", "lime", "blue")]
    path = tmp_path / "clip.gif"
    path.write_bytes(encode_gif(flat, 8))
    frames = read_frames(path)
    assert frames.shape == (3, 12, 16, 3)
    for frame, colour in zip(frames, flat, strict=True):
        assert np.array_equal(frame, np.asarray(colour))
    with Image.open(path) as image:
        assert image.info["duration"] == 120


def test_mp4_round_trip(tmp_path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    flat = [Image.new("RGB", (16, 12), (level, 255 - level, 40)) for level in (0, 100, 200, 250)]
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_mp4(flat, 8))
    frames = read_frames(str(path))
    assert frames.shape == (4, 12, 16, 3)
    worst = np.abs(frames.astype(int) - np.stack([np.asarray(f) for f in flat])).max()
    assert worst < 12  # the codec is lossy
    with pytest.raises(ValueError, match="even sides"):
        encode_mp4([Image.new("RGB", (15, 12))], 8)


def test_damaged_and_foreign_files(tmp_path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(FileNotFoundError):
        read_frames(tmp_path / "none.mp4")
    for name in ("broken.mp4", "broken.gif", "empty.mp4", "empty.png"):
        (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"no video at all")
        with pytest.raises(ValueError, match=r"damaged|no frames"):
            read_frames(tmp_path / name)
    buffer = io.BytesIO()
    pictures(1)[0].save(buffer, "PNG")
    (tmp_path / "cut.png").write_bytes(buffer.getvalue()[:60])
    with pytest.raises(ValueError, match="damaged"):
        read_frames(tmp_path / "cut.png")
    (tmp_path / "clip.txt").write_text("no")
    with pytest.raises(ValueError, match="legal endings"):
        read_frames(tmp_path / "clip.txt")


@pytest.mark.parametrize("fps", [0, -1, float("nan"), 1000])
def test_impossible_frame_rates(fps: float) -> None:
    with pytest.raises(ValueError, match="fps"):
        encode_gif(pictures(), fps)


def test_frame_rates_are_numbers() -> None:
    for wrong in ("8", True):
        with pytest.raises(TypeError, match="fps"):
            encode_gif(pictures(), wrong)


def test_cover_keeps_the_centre() -> None:
    frame = np.zeros((1, 4, 8, 3), dtype=np.uint8)
    frame[:, :, 2:6] = 200
    assert cover(frame, 4, 8) is frame
    cropped = cover(frame, 4, 4)
    assert cropped.shape == (1, 4, 4, 3)
    assert bool((cropped == 200).all())
    assert cover(frame, 8, 8).shape == (1, 8, 8, 3)
    assert to_tensor(cropped).shape == (1, 3, 1, 4, 4)
