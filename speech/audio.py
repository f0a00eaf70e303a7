"""Recordings from wherever they come: files, bytes, arrays. Mono, float, at the rate that a model needs.

Channels are averaged, integers scaled by their type's range, other rates resampled (band-limited interpolation, Smith,
1984), and an offset above a hundredth of full scale is removed. Whatever cannot be read right raises, naming the source.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.speech.signal_functions import resample

RATES = (1_000, 768_000)
_LOUDEST = 32.0  # in full scales: beyond it the samples are integers that someone converted without scaling
_OFFSET = 0.01
_MOST_CHANNELS = 8
_SCALES = {np.dtype(np.int16): 2.0**15, np.dtype(np.int32): 2.0**31, np.dtype(np.int8): 2.0**7}


@dataclass(frozen=True)
class Clip:
    """A recording: mono float32 ``samples`` (n,) on the CPU, their rate, and a name for messages."""

    samples: Tensor
    sampling_rate: int
    name: str

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sampling_rate

    def cut(self, first: int, last: int) -> Clip:
        """The samples from ``first`` to before ``last``."""
        return Clip(self.samples[first:last], self.sampling_rate, self.name)


def load_audio(source: Any, sampling_rate: int, array_rate: int | None = None, number: int = 0) -> Clip:
    """Read one recording.

    Args:
        source: A path; the bytes of a file; an open binary file; ``(array, rate)``; a mapping with ``array`` and
            ``sampling_rate``; or an array or tensor, whose rate is ``array_rate``. Arrays are (n,), (channels, n) or
            (n, channels), with at most 8 channels.
        sampling_rate: Rate of the result.
        array_rate: Rate of bare arrays.
        number: Place of the source in its batch, for messages.

    Returns:
        The clip at ``sampling_rate``; it may be empty.

    Raises:
        FileNotFoundError, IsADirectoryError: If there is no such file, or it is a folder.
        TypeError, ValueError: If the source is no audio, is cut short, holds values that are not finite, or comes
            without a rate.
    """
    name, samples, rate = _read(source, array_rate, number)
    if not np.isfinite(samples).all():
        place = int(np.argmin(np.isfinite(samples).reshape(len(samples), -1).all(-1)))
        raise ValueError(f"{name} holds a value that is not finite at sample {place}.")
    if samples.size and (peak := float(np.abs(samples).max())) > _LOUDEST:
        raise ValueError(
            f"{name} holds float samples up to {peak:g}; floats must lie in [-1, 1]. Give integers as an integer array."
        )
    mono = torch.from_numpy(np.ascontiguousarray(samples.mean(-1), dtype=np.float32))
    if len(mono) and abs(float(mono.mean())) > _OFFSET:
        mono = mono - mono.mean()
    if rate != sampling_rate and len(mono):
        mono = resample(mono, rate, sampling_rate)
    return Clip(mono, sampling_rate, name)


def _read(source: Any, array_rate: int | None, number: int) -> tuple[str, NDArray[np.float64], int]:
    """Name, samples (n, channels) in [-1, 1] and rate of a source."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; name a sound file.")
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist.")
        return _decode(str(path), path.read_bytes())
    name = f"audio[{number}]"
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(name, bytes(source))
    if hasattr(source, "read"):
        content = source.read()
        if not isinstance(content, bytes):
            raise TypeError(f"{name} is a file that is not open in binary mode.")
        return _decode(str(getattr(source, "name", name)), content)
    if isinstance(source, Mapping):
        if not {"array", "sampling_rate"} <= source.keys():
            raise ValueError(f"{name} is a mapping with {sorted(source)}; it needs 'array' and 'sampling_rate'.")
        source = (source["array"], source["sampling_rate"])
    if isinstance(source, tuple):
        if len(source) != 2:
            raise TypeError(f"{name} is a tuple of {len(source)}; give (array, rate).")
        source, array_rate = source
    if array_rate is None:
        raise ValueError(f"{name} has no rate; give (array, rate) or `sampling_rate`.")
    return name, _channels(name, _as_array(name, source)), check_rate(name, array_rate)


def check_rate(name: str, rate: Any) -> int:
    """``rate`` as an integer; TypeError or ValueError unless it is a sampling rate in Hz."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float, np.integer)) or int(rate) != rate:
        raise TypeError(f"The sampling rate of {name} must be a whole number of Hz, got {rate!r}.")
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(f"The sampling rate of {name} must lie in {RATES[0]}..{RATES[1]} Hz, got {rate}.")
    return int(rate)


def _as_array(name: str, source: Any) -> NDArray[np.float64]:
    if isinstance(source, Tensor):
        source = source.detach().cpu()
        source = source.float().numpy() if source.is_floating_point() else source.numpy()
    if isinstance(source, Sequence) and not isinstance(source, str):
        source = np.asarray(source, dtype=np.float64)
    if not isinstance(source, np.ndarray):
        raise TypeError(f"{name} is {type(source).__name__}; give a path, bytes, an array or a tensor.")
    if source.dtype.kind == "f":
        return source.astype(np.float64)
    if source.dtype == np.uint8:
        return (source.astype(np.float64) - 128) / 128
    if source.dtype not in _SCALES:
        raise TypeError(f"{name} holds {source.dtype}; give floats in [-1, 1], int16, int32, int8 or uint8.")
    return source.astype(np.float64) / _SCALES[source.dtype]


def _channels(name: str, array: NDArray[np.float64]) -> NDArray[np.float64]:
    """``array`` as (n, channels)."""
    if array.ndim == 1:
        return array[:, None]
    if array.ndim != 2 or min(array.shape) > _MOST_CHANNELS or min(array.shape) == 0 < max(array.shape):
        raise ValueError(
            f"{name} has shape {array.shape}; give (n,), (channels, n) or (n, channels) with at most "
            f"{_MOST_CHANNELS} channels."
        )
    if max(array.shape) <= _MOST_CHANNELS and 1 not in array.shape and array.size:
        raise ValueError(f"{name} has shape {array.shape}, in which samples and channels cannot be told apart.")
    return array if array.shape[0] >= array.shape[1] else array.T


def _decode(name: str, content: bytes) -> tuple[str, NDArray[np.float64], int]:
    if not content:
        raise ValueError(f"{name} is an empty file, not audio.")
    _check_length(name, content)
    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float64", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise ValueError(f"{name} is not audio that can be read (wav, flac, ogg, mp3): {error}") from error
    return name, samples, check_rate(name, rate)


def _check_length(name: str, content: bytes) -> None:
    """Raise ValueError if a WAV file holds fewer samples than its header says; decoders shorten it silently."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return
    place = 12
    while place + 8 <= len(content):
        kind, size = content[place : place + 4], struct.unpack_from("<I", content, place + 4)[0]
        if kind == b"data":
            there = len(content) - place - 8
            if size not in (0, 0xFFFFFFFF) and size > there:  # streams leave the size open
                raise ValueError(
                    f"{name} is cut short: its header promises {size} bytes of samples, {there} are there."
                )
            return
        place += 8 + size + size % 2
    raise ValueError(f"{name} is cut short: it has a WAV header and no samples.")
