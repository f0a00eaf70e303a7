"""Arguments of a call of :class:`mmspec.pipelines.csm.CsmPipeline`, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, ProcessorMixin

from mmspec.pipelines.speech_reference import read_recording
from mmspec.speech.csm_prompts import readable
from mmspec.speech.utterances import Piece

FASTEST = 0.03
"""Seconds a character that no reading is faster than."""

_TOP_K = 50  # of transformers' generation where a checkpoint gives none


@dataclass(frozen=True)
class CsmPiece(Piece):
    """An utterance with its ``prompt`` tokens (L,)."""

    prompt: Tensor


@dataclass(frozen=True)
class CsmContext:
    """What was said before: ``texts``, ``speakers`` (``None``: that of the utterance) and ``samples`` (n,) of each turn."""

    texts: Sequence[str] = ()
    speakers: Sequence[int | None] = ()
    samples: Sequence[Tensor] = ()


@dataclass(frozen=True)
class CsmCall:
    """Arguments of a call, see :meth:`CsmPipeline.__call__`; sampling settings are in ``first`` and ``rest``."""

    prompt: str | Sequence[str]
    speaker: int | Sequence[int]
    reference: Any
    reference_text: str | Sequence[str] | None
    reference_speaker: int | Sequence[int] | None
    reference_sampling_rate: int | None
    first: dict[str, float | None]
    rest: dict[str, float | None]
    max_frames: int | None
    generator: torch.Generator | Sequence[torch.Generator] | None
    seed: int | Sequence[int] | None
    speculate: bool
    layout: str
    num_waveforms: int = 1
    micro_batch_size: int = 1


def read_context(call: CsmCall, processor: ProcessorMixin, sampling_rate: int, longest: float) -> CsmContext:
    """The turns before, read and checked; nothing is encoded yet.

    Args:
        call: The arguments.
        processor: Whose special tokens a text must not hold.
        sampling_rate: Rate of the samples.
        longest: Most seconds of a recording.

    Raises:
        TypeError, ValueError, FileNotFoundError: For recordings that cannot be used, or texts that do not belong to them.
    """
    words, who = call.reference_text, call.reference_speaker
    if call.reference is None:
        if any(value is not None for value in (words, who, call.reference_sampling_rate)):
            raise ValueError(
                "`reference_text`, `reference_speaker` and `reference_sampling_rate` belong to a `reference`; give one."
            )
        return CsmContext()
    if words is None:
        raise ValueError("`reference` needs `reference_text`: the words that are said in it.")
    if isinstance(words, str):
        recordings, words = [call.reference], [words]
    elif isinstance(call.reference, list):
        recordings = call.reference
    else:
        raise TypeError("`reference_text` is a list, so `reference` must be a list of recordings.")
    if len(recordings) != len(words) or not words:
        raise ValueError(f"There are {len(recordings)} recordings in `reference` and {len(words)} `reference_text`.")
    return CsmContext(
        [readable(text, processor, "`reference_text`") for text in words],
        [None] * len(words) if who is None else speakers_of("reference_speaker", who, len(words)),
        [
            read_recording(audio, call.reference_sampling_rate, sampling_rate, longest, f"`reference` {number}")
            for number, audio in enumerate(recordings)
        ],
    )


def asked_sampling(
    temperature: float | None, top_k: float | None, top_p: float | None, **others: float | None
) -> dict[str, float | None]:
    """Sampling settings as a call gives them, ``None`` where it leaves them to the checkpoint."""
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, **others}


def generation_sampling(config: GenerationConfig | None, num_codes: int) -> dict[str, Any]:
    """Sampling as transformers' generation reads it from ``config``; greedy unless it says otherwise."""
    if config is None or not config.do_sample:
        return {"temperature": 0.0}
    return {
        "temperature": 1.0 if config.temperature is None else config.temperature,
        "top_k": min(num_codes, _TOP_K if config.top_k is None else config.top_k),
        "top_p": 1.0 if config.top_p is None else config.top_p,
    }


def speakers_of(name: str, given: int | Sequence[int], count: int) -> list[int]:
    """A speaker for each of ``count`` turns.

    Raises:
        TypeError, ValueError: For another number of them, or what is no speaker.
    """
    speakers = [given] * count if isinstance(given, int) else list(given)
    if len(speakers) != count:
        raise ValueError(f"`{name}` has {len(speakers)} entries for {count} texts; give one for all or one for each.")
    for speaker in speakers:
        if isinstance(speaker, bool) or not isinstance(speaker, int):
            raise TypeError(f"`{name}` must be a whole number, got {speaker!r}.")
        if speaker < 0:
            raise ValueError(f"`{name}` must be at least 0, got {speaker}.")
    return speakers
