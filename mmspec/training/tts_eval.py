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
COMBINED: dict[str, tuple[int, tuple[int, int]]] = {"phrases": (2, (3, 6)), "words": (3, (1, 2))}
"""Combinations by name: how many prompts, and of how many words."""
MASK_STEPS = (1, 3, 7)


def held_in(recordings: Sequence[Recording], count: int = SENTENCES, seed: int = 0) -> list[Recording]:
    """Trained sentences of four to fourteen words, different ones, in random order."""
    by_text = {r.text: r for r in recordings if not r.held_out and 3 <= r.text.count(" ") <= 13}
    chosen = sorted(by_text.values(), key=lambda r: r.name)
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


def combinations(
    recordings: Sequence[Recording], parts: int, words: tuple[int, int], count: int = COMBINATIONS, seed: int = 0
) -> list[list[Recording]]:
    """``count`` groups of ``parts`` trained prompts, each of as many words as ``words`` says, that were never recorded together."""
    fewest, most = words
    by_text = {r.text.strip(".,"): r for r in recordings if not r.held_out and len(r.text) > 3}
    ordered = [by_text[text] for text in sorted(by_text) if fewest <= text.count(" ") + 1 <= most]
    rng = random.Random(seed)
    return [rng.sample(ordered, parts) for _ in range(count)]


def joined(parts: Sequence[Recording]) -> tuple[str, Tensor]:
    """Text of ``parts`` said after one another, and their recordings with a fifth of a second between them (n,)."""
    pause = torch.zeros(3200)
    waves = [wave for part in parts for wave in (part.waveform, pause)]
    return ", ".join(part.text.strip(".,") for part in parts) + ".", torch.cat(waves[:-1])


@torch.no_grad()
def measure(pipe: TextToSpeechPipeline, recordings: Sequence[Recording]) -> dict[str, Any]:
    """Word error rates by what was spoken, and the texts.

    Raises:
        ImportError: Without pocketsphinx or jiwer.
    """
    listen = pocketsphinx_transcriber()
    chosen = held_in(recordings)
    texts = [recording.text for recording in chosen]
    sets = {"held_in": (texts, [recording.waveform for recording in chosen])}
    for name, (parts, words) in COMBINED.items():
        groups = [joined(group) for group in combinations(recordings, parts, words)]
        sets[name] = [text for text, _ in groups], [wave for _, wave in groups]
    unseen = {r.text: r for r in recordings if r.held_out}
    sets["held_out"] = list(unseen), [r.waveform for r in unseen.values()]
    result: dict[str, Any] = {}
    for name, (wanted, waves) in sets.items():
        for kind, sounds in versions(pipe, wanted, waves, masked=name == "held_in").items():
            result[f"{name}_{kind}"] = {"items": len(wanted), **error_rates(wanted, listen(sounds))}
    result["sentences"] = texts
    return result


def versions(
    pipe: TextToSpeechPipeline, texts: list[str], waves: list[Tensor], masked: bool = False
) -> dict[str, list[Tensor]]:
    """``texts`` as they were recorded (``waves``), as the codec passes that on, and as the voice says them.

    Args:
        masked: Also as MaskGIT decoding says them, if ``pipe`` can, with several numbers of steps.
    """
    sounds = {
        "recordings": waves,
        "codec": [decode(pipe.codec, pipe.codec.encode(wave)) for wave in waves],
        "spoken": pipe(texts, seed=0, output_type="pt").audios or [],
    }
    if masked and pipe.mask_predictor is not None:
        for steps in MASK_STEPS:
            output = pipe(texts, seed=0, output_type="pt", depth="maskgit", depth_steps=steps)
            sounds[f"maskgit_{steps}"] = output.audios or []
    return sounds
