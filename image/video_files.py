"""Clips from whatever the caller has, and back to files: PIL frames, arrays, GIF (Pillow) and MP4 (imageio-ffmpeg).

Inside, a clip is a uint8 array of frames (F, h, w, 3). Transparent pixels are drawn on white.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageSequence, UnidentifiedImageError
from torch import Tensor

STILL_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
ANIMATED_SUFFIXES = (".gif", ".webp", ".png")
VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")


def read_frames(source: Any) -> np.ndarray:
    """The frames of a clip as uint8 (F, h, w, 3).

    Args:
        source: The path of a video, an animation or a picture; a PIL image; a sequence of PIL images or of
            arrays (h, w, 3); an array (F, h, w, 3 or 4) or (h, w, 3 or 4), uint8 or floats in [0, 1]; or a tensor
            (F, 3, h, w) or (3, h, w) of floats in [0, 1].

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If there are no frames, they differ in size, or the file is damaged or of an unknown kind.
        TypeError: For anything else.
    """
    if isinstance(source, (str, Path)):
        return _read_file(Path(source))
    if isinstance(source, Image.Image):
        return on_white(source)[None]
    if isinstance(source, Tensor):
        return _from_array(_channels_last(source))
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Sequence):
        if not source:
            raise ValueError("The clip has no frames; give at least one.")
        frames = [read_frames(frame) for frame in source if not isinstance(frame, (str, Path))]
        if len(frames) < len(source):
            raise TypeError("A clip is a list of frames, not of paths; give one path, or read the pictures first.")
        return _join(frames)
    raise TypeError(
        f"A clip must be a path, PIL images, an array (F, h, w, 3) or a tensor (F, 3, h, w), got {type(source).__name__}."
    )


def read_fps(source: Any) -> float | None:
    """Frames a second that the file at the path ``source`` says; ``None`` where it says nothing, and for anything else."""
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return None
    path = Path(source)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        reader = _ffmpeg().read_frames(str(path))
        try:
            return float(next(reader)["fps"]) or None
        except (OSError, RuntimeError, StopIteration, ValueError, KeyError, IndexError):
            return None
        finally:
            reader.close()
    try:
        with Image.open(path) as image:
            milliseconds = image.info.get("duration")
    except (UnidentifiedImageError, OSError):
        return None
    return 1000 / milliseconds if milliseconds else None


def _join(frames: list[np.ndarray]) -> np.ndarray:
    sizes = sorted({frame.shape[1:3] for frame in frames})
    if len(sizes) > 1:
        listed = ", ".join(f"{height} x {width}" for height, width in sizes)
        raise ValueError(f"The frames of a clip must have one size, got {listed} (height x width); resize them first.")
    return np.concatenate(frames)


def _channels_last(frames: Tensor) -> np.ndarray:
    if frames.ndim not in (3, 4) or frames.shape[-3] not in (3, 4):
        raise ValueError(f"A clip as a tensor must be (F, 3, h, w) or (3, h, w), got {tuple(frames.shape)}.")
    return frames.detach().cpu().movedim(-3, -1).float().numpy() if frames.is_floating_point() else (
        frames.detach().cpu().movedim(-3, -1).numpy()
    )  # fmt: skip


def _from_array(frames: np.ndarray) -> np.ndarray:
    if frames.ndim == 3:
        frames = frames[None]
    if frames.ndim != 4 or frames.shape[-1] not in (3, 4) or not frames.size:
        raise ValueError(f"A clip as an array must be (F, h, w, 3) with at least one frame, got {frames.shape}.")
    if np.issubdtype(frames.dtype, np.floating):
        low, high = float(frames.min()), float(frames.max())
        if not (low >= 0 and high <= 1):  # also not a number
            raise ValueError(f"Frames as floats must lie in [0, 1], got values from {low} to {high}.")
        frames = np.rint(frames * 255).astype(np.uint8)
    elif frames.dtype != np.uint8:
        raise ValueError(f"Frames must be uint8, or floats in [0, 1], got {frames.dtype}.")
    if frames.shape[-1] == 4:
        return np.stack([on_white(Image.fromarray(frame, "RGBA")) for frame in frames])
    return frames


def on_white(image: Image.Image) -> np.ndarray:
    """The picture as uint8 (h, w, 3), transparent pixels white."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def _read_file(path: Path) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(f"There is no video at {path}.")
    suffix = path.suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return _read_video(path)
    if suffix not in {*STILL_SUFFIXES, *ANIMATED_SUFFIXES}:
        legal = ", ".join(dict.fromkeys((*VIDEO_SUFFIXES, *ANIMATED_SUFFIXES, *STILL_SUFFIXES)))
        raise ValueError(f"{path.name} is no video or picture that can be read; legal endings are {legal}.")
    try:
        with Image.open(path) as image:
            return _join([on_white(frame)[None] for frame in ImageSequence.Iterator(image)])
    except (UnidentifiedImageError, OSError, EOFError, SyntaxError) as error:
        raise ValueError(f"{path.name} is damaged or no picture: {error}") from error


def _read_video(path: Path) -> np.ndarray:
    ffmpeg = _ffmpeg()
    frames = []
    try:
        reader = ffmpeg.read_frames(str(path), pix_fmt="rgb24")
        width, height = next(reader)["size"]
        frames = [np.frombuffer(frame, dtype=np.uint8).reshape(height, width, 3) for frame in reader]
    except (OSError, RuntimeError, StopIteration, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{path.name} is damaged or no video: {str(error).strip().splitlines()[:1]}") from error
    if not frames:
        raise ValueError(f"{path.name} has no frames.")
    return np.stack(frames)


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError("Reading and writing MP4 needs imageio-ffmpeg: pip install 'mmspec[video]'.") from error
    return imageio_ffmpeg


def cover(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """Frames (F, h, w, 3) resized until they cover ``height`` x ``width``, and cropped to it around the centre."""
    old_height, old_width = frames.shape[1:3]
    if (old_height, old_width) == (height, width):
        return frames
    scale = max(height / old_height, width / old_width)
    size = max(width, round(old_width * scale)), max(height, round(old_height * scale))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    resized = [np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC)) for frame in frames]
    return np.stack(resized)[:, top : top + height, left : left + width]


def to_tensor(frames: np.ndarray) -> Tensor:
    """uint8 frames (F, h, w, 3) as a video (1, 3, F, h, w) in [-1, 1]."""
    return (torch.from_numpy(np.array(frames)).float() / 127.5 - 1).permute(3, 0, 1, 2)[None].contiguous()


def check_fps(fps: float, name: str = "fps") -> None:
    """Raise ValueError or TypeError unless ``fps`` is a number of frames per second that files can say."""
    if isinstance(fps, bool) or not isinstance(fps, (int, float)):
        raise TypeError(f"`{name}` must be a number, got {fps!r}.")
    if not 0 < fps <= 240:
        raise ValueError(f"`{name}` must lie above 0 and be at most 240, got {fps}.")


def encode_gif(frames: Sequence[Image.Image], fps: float) -> bytes:
    """An endless GIF of ``frames``. Its times are hundredths of a second, so that ``fps`` is rounded to 100 / n."""
    check_fps(fps)
    buffer = io.BytesIO()
    duration = max(1, round(100 / fps)) * 10
    frames[0].save(buffer, "GIF", save_all=True, append_images=list(frames[1:]), duration=duration, loop=0, disposal=2)
    return buffer.getvalue()


def encode_mp4(frames: Sequence[Image.Image], fps: float) -> bytes:
    """An H.264 file of ``frames``.

    Raises:
        ValueError: If a side is odd, which the codec's colour format cannot hold.
    """
    check_fps(fps)
    width, height = frames[0].size
    if width % 2 or height % 2:
        raise ValueError(f"MP4 needs even sides, got {width} x {height} pixels; write a GIF instead.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        writer = _ffmpeg().write_frames(
            str(path), (width, height), fps=fps, codec="libx264", quality=None, macro_block_size=1,
            output_params=["-crf", "12"], ffmpeg_log_level="error",
        )  # fmt: skip
        writer.send(None)
        for frame in frames:
            writer.send(np.ascontiguousarray(np.asarray(frame.convert("RGB"))))
        writer.close()
        return path.read_bytes()
