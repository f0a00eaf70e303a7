"""How well the voice is understood: word errors of pocketsphinx on its speech, beside those on the recordings themselves and on what the
codec makes of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.wer import error_rates
from mmspec.pipelines.text_to_speech import TextToSpeechPipeline
from mmspec.speech.codec_stream import decode
from mmspec.training.asr_eval import pocketsphinx_transcriber
from mmspec.training.tts_data import Recording

SENTENCES = 50
COMBINATIONS = 20


def held_in(recordings: Sequence[Recording], count: int = SENTENCES, seed: int = 0) -> list[Recording]:
    """Trained sentences of four to fourteen words, different ones, in random order."""
    by_text = {r.text: r for r in recordings if not r.held_out and 3 <= r.text.count(" ") <= 13}
    chosen = sorted(by_text.values(), key=lambda r: r.name)
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


def combinations(
    recordings: Sequence[Recording], count: int = COMBINATIONS, seed: int = 0
) -> list[tuple[Recording, ...]]:
    """Triples of prompts of one or two words each that were never recorded together."""
    short = {r.text.strip(".,"): r for r in recordings if _is_short(r)}
    ordered = [short[text] for text in sorted(short)]
    rng = random.Random(seed)
    return [tuple(rng.sample(ordered, 3)) for _ in range(count)]


def _is_short(recording: Recording) -> bool:
    return not recording.held_out and len(recording.text) > 3 and recording.text.count(" ") <= 1


def joined(parts: Sequence[Recording]) -> tuple[str, Tensor]:
    """Text of ``parts`` said after one another, and their recordings with a fifth of a second between them (n,)."""
    pause = torch.zeros(3200)
    waves = [wave for part in parts for wave in (part.waveform, pause)]
    return ", ".join(part.text.strip(".,") for part in parts) + ".", torch.cat(waves[:-1])


def measure(pipe: TextToSpeechPipeline, recordings: Sequence[Recording]) -> dict[str, Any]:
    """Word error rates by what was spoken, and the texts.

    Raises:
        ImportError: Without pocketsphinx or jiwer.
    """
    listen = pocketsphinx_transcriber()
    chosen = held_in(recordings)
    mixed, spliced = zip(*(joined(parts) for parts in combinations(recordings)), strict=True)
    texts = [recording.text for recording in chosen]
    unseen = {r.text: r for r in recordings if r.held_out}
    with torch.no_grad():
        rebuilt = [decode(pipe.codec, pipe.codec.encode(recording.waveform)) for recording in chosen]
    spoken = pipe(texts, seed=0, output_type="pt")
    together = pipe(list(mixed), seed=0, output_type="pt")
    new = pipe(list(unseen), seed=0, output_type="pt")
    sets: dict[str, tuple[list[str], list[Tensor]]] = {
        "recordings": (texts, [recording.waveform for recording in chosen]),
        "codec": (texts, rebuilt),
        "spoken": (texts, spoken.audios or []),
        "combination_recordings": (list(mixed), list(spliced)),
        "combinations": (list(mixed), together.audios or []),
        "held_out_recordings": (list(unseen), [r.waveform for r in unseen.values()]),
        "held_out_spoken": (list(unseen), new.audios or []),
    }
    result: dict[str, Any] = {}
    for name, (wanted, waves) in sets.items():
        heard = listen(waves)
        result[name] = {"items": len(wanted), **error_rates(wanted, heard)}
    result["ends"] = {reason: spoken.finish_reasons.count(reason) for reason in set(spoken.finish_reasons)}
    result["sentences"] = texts
    return result
