"""A tiny video pipeline saved as a checkpoint folder, as commands and benches load it."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from mmspec.drafters.jacobi import JacobiDrafter
from tests.oracles.video import noise_clip, tiny_video_pipeline

PROMPTS = ["a cat", "blue moon"]


def save_tiny_video(folder: Path) -> Path:
    """Write a tiny pipeline with a fixed Jacobi window, first frames and ``samples.json``."""
    drafter = JacobiDrafter(window=13, controller="fixed", initializer="copy-frame")
    tiny_video_pipeline(by_text=True, drafter=drafter).save_pretrained(folder)
    (folder / "samples").mkdir()
    entries = []
    for number, prompt in enumerate(PROMPTS):
        entries.append({"image": f"samples/{number}.png", "prompt": prompt})
        Image.fromarray(noise_clip(1, number)[0]).save(folder / entries[-1]["image"])
    (folder / "samples.json").write_text(json.dumps(entries))
    return folder
