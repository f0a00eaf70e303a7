"""A reference recording: the speech to be made goes on after it, in its manner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.speech.audio import load_audio
from mmspec.speech.codec import SpeechCodec
from mmspec.speech.speakable import speakable

SECONDS = (0.3, 12.0)
"""Shortest and longest reference."""
_SILENCE = 1e-3  # loudest sample of a recording that holds no speech, full scale 1


@dataclass(frozen=True)
class Reference:
    """What the talker reads before it speaks: the ``text`` of the recording and its ``codes`` (T, G)."""

    text: str
    codes: Tensor

    def before(self, text: str) -> str:
        """The text of the reference, followed by ``text``."""
        return self.text + (" " if self.text[-1] in ".," else ", ") + text


def read_recording(
    audio: Any, rate: int | None, sampling_rate: int, longest: float = SECONDS[1], name: str = "`reference`"
) -> Tensor:
    """Samples (n,) of one speaker's recording at ``sampling_rate``.

    Args:
        audio: Anything that :func:`mmspec.speech.audio.load_audio` reads; other rates are resampled.
        rate: Rate of a bare array.
        sampling_rate: Rate of the result, in Hz.
        longest: Most seconds.
        name: What messages call it.

    Raises:
        TypeError, ValueError, FileNotFoundError: If it cannot be read, is too short or too long, silent, or not finite.
    """
    clip = load_audio(audio, sampling_rate, rate)
    if not SECONDS[0] <= clip.seconds <= longest:
        raise ValueError(
            f"{name} lasts {clip.seconds:.2f} s; it must last {SECONDS[0]} to {longest:.1f} s of one speaker."
        )
    if float(clip.samples.abs().max()) < _SILENCE:
        raise ValueError(f"{name} is silent; give a recording of speech.")
    return clip.samples


def read_reference(
    audio: Any, text: str | None, rate: int | None, codec: SpeechCodec, frame_stack: int = 1
) -> Reference:
    """Read and check a recording.

    Args:
        audio: Anything that :func:`mmspec.speech.audio.load_audio` reads; other rates are resampled.
        text: What is said in it.
        rate: Rate of a bare array.
        codec: Makes its codes.
        frame_stack: Frames that it is filled with silence to a multiple of.

    Raises:
        TypeError, ValueError, FileNotFoundError: If it cannot be read, is too short or too long, silent, not finite, or
            comes without its text.
    """
    if text is None:
        raise ValueError("`reference` needs `reference_text`: the words that are said in it.")
    words = speakable(text)
    samples = read_recording(audio, rate, codec.config.sample_rate)
    return Reference(words, codec.encode(samples, frame_stack))
