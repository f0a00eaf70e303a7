"""What speech synthesis returns."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from diffusers.utils import BaseOutput
from numpy.typing import NDArray
from torch import Tensor

from mmspec.core.stats import DecodeStats

OUTPUT_TYPES = ("np", "pt", "pcm", "tokens")


def check_output_type(output_type: str) -> None:
    """Raise ValueError if there is no such output type."""
    if output_type not in OUTPUT_TYPES:
        raise ValueError(f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}.")


def to_pcm(waveform: Tensor) -> NDArray[np.int16]:
    """16-bit samples (n,) of a waveform (n,) in [-1, 1]; what lies beyond is clipped."""
    samples: NDArray[np.int16] = (waveform.clamp(-1, 1) * 32767).round().short().numpy()
    return samples


def as_type(waveform: Tensor, output_type: str) -> Any:
    """The waveform (n,) as ``np`` (float32 array), ``pt`` (tensor) or ``pcm`` (int16 array)."""
    if output_type == "pcm":
        return to_pcm(waveform)
    return waveform if output_type == "pt" else waveform.numpy()


@dataclass
class SynthesisOutput(BaseOutput):
    """Spoken texts.

    Attributes:
        audios: One waveform (n,) for each utterance, each as long as its speech; by ``output_type`` a float array, a
            tensor, or 16-bit samples; ``None`` for ``tokens``.
        sampling_rate: Samples a second.
        tokens: Codes (T, G) of each utterance.
        texts: What was said, as the model read it.
        finish_reasons: ``stop`` where the speech ended by itself, ``length`` where a budget cut it.
        stats: Calls, seconds and guarantee; its rows are the pieces of the utterances in order.
    """

    audios: list[Any] | None
    sampling_rate: int
    tokens: list[Tensor]
    texts: list[str]
    finish_reasons: list[str]
    stats: DecodeStats

    @property
    def seconds(self) -> list[float]:
        """Length of each utterance that has a waveform."""
        return [len(audio) / self.sampling_rate for audio in self.audios or []]

    def save(self, path: str | Path, number: int = 0) -> Path:
        """Write an utterance as a 16-bit WAV or FLAC file.

        Raises:
            ValueError: If the output holds tokens only.
        """
        if self.audios is None:
            raise ValueError("This output holds tokens only; ask for another `output_type`.")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, _pcm_of(self.audios[number]), self.sampling_rate, subtype="PCM_16")
        return path

    def wav(self, number: int = 0) -> bytes:
        """An utterance as the bytes of a 16-bit WAV file."""
        if self.audios is None:
            raise ValueError("This output holds tokens only; ask for another `output_type`.")
        buffer = io.BytesIO()
        soundfile.write(buffer, _pcm_of(self.audios[number]), self.sampling_rate, format="WAV", subtype="PCM_16")
        return buffer.getvalue()


def _pcm_of(audio: Any) -> NDArray[np.int16]:
    import torch

    if isinstance(audio, np.ndarray) and audio.dtype == np.int16:
        return audio
    return to_pcm(torch.as_tensor(audio))


@dataclass
class AudioChunk(BaseOutput):
    """A piece of an utterance while it is spoken; pieces follow one another without a seam.

    Attributes:
        samples: The next samples (m,), by ``output_type``; possibly none in the last chunk.
        sampling_rate: Samples a second.
        finished: Whether this is the last chunk.
        output: The complete :class:`SynthesisOutput` once ``finished``.
        stats: Figures so far, which go on changing; its rows are the pieces of the text that were begun.
    """

    samples: Any
    sampling_rate: int
    finished: bool = False
    output: SynthesisOutput | None = None
    stats: DecodeStats | None = None
