"""The text-to-speech part of ``mmspec demo``: sentences spoken plainly and with drafted residual codes."""

from __future__ import annotations

from pathlib import Path

from mmspec.cli.demo_rows import Row, Twice
from mmspec.cli.loading import load_voice
from mmspec.cli.output import tell_files
from mmspec.cli.speak import DEFAULT_VOICE

SENTENCES = ("the conference is now unmuted.", "you are no longer muted.", "information about your last call.")


def speak_sentences(count: int, out: Path, seed: int = 0, device: str = "auto", model: str = DEFAULT_VOICE) -> Row:
    """Speak ``count`` sentences both ways and write them to ``out`` as WAV files; returns the row of the table."""
    import torch

    pipe = load_voice(model, device)
    pipe(SENTENCES[1], seed=seed)  # warm-up
    pairs = []
    for number, text in enumerate(SENTENCES[:count]):
        plain, fast = (pipe(text, seed=seed + number, speculate=on) for on in (False, True))
        same_codes = torch.equal(plain.tokens[0], fast.tokens[0])
        pairs.append(Twice(text, plain, fast, same_codes and plain.wav() == fast.wav()))
    tell_files([pair.speculative.save(out / f"voice-{number}.wav") for number, pair in enumerate(pairs, 1)])
    return Row.of("text to speech", pairs)
