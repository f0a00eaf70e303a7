"""A recogniser on disk with recordings, as the embedded checkpoint is."""

from __future__ import annotations

import json
from pathlib import Path

import soundfile

from mmspec.speech.ctc_drafter import CTCDrafter
from tests.oracles.speech import RATE, babble, tiny_asr

TEXTS = ("the four", "a cat is in", "bring four")


def save_tiny_recogniser(folder: Path) -> Path:
    """Write a random-weight recogniser with two sets of recordings; it ends sentences early."""
    pipe = tiny_asr(1, drafter=CTCDrafter(), presets={"balanced": [4.0, 0.05]})
    pipe.decoder.generation_config.eos_token_id = [2, 22]
    pipe.save_pretrained(folder)
    for subset in ("human", "synthetic"):
        place = folder / "samples" / subset
        place.mkdir(parents=True)
        entries = []
        for number, text in enumerate(TEXTS):
            soundfile.write(place / f"{number}.flac", babble(0.8 + number, number).numpy(), RATE)
            entries.append({"file": f"{number}.flac", "text": text})
        (place / "transcripts.json").write_text(json.dumps(entries))
    return folder
