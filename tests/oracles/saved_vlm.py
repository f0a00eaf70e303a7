"""A vision-language model on disk with its block drafter, as the embedded checkpoint is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmspec import VisionLanguagePipeline
from mmspec.drafters.block import FOLDER as BLOCK_FOLDER
from mmspec.training.vlm_tokenizer import picture_processor
from mmspec.vlm.items import QUESTIONS
from tests.oracles.vlm import reading_model, tiny_block


def picture(seed: int = 0, size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Noise of ``size``, width and height."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise)


def tiny_reader(drafter: Any = None) -> VisionLanguagePipeline:
    """A random-weight pipeline of the embedded model's kind."""
    pipe = VisionLanguagePipeline(reading_model(), picture_processor(), drafter)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def save_tiny_reader(folder: Path) -> Path:
    """Write one with a random block drafter and two questions of each of two tasks."""
    drafter = tiny_block(reading_model(), num_nodes=8)
    pipe = tiny_reader(drafter)
    pipe.model.generation_config.eos_token_id = 2  # which its head never writes
    try:
        pipe.save_pretrained(folder)
    finally:
        pipe.model.generation_config.eos_token_id = None  # other tests share the model
    drafter.save_pretrained(folder / BLOCK_FOLDER)
    (folder / "samples").mkdir()
    lines = []
    for number in range(4):
        picture(number).save(folder / "samples" / f"{number}.png")
        entry = {
            "prompt": "read",
            "images": [f"samples/{number}.png"],
            "answer": "abc",
            "task": ("read", "name")[number % 2],
        }
        lines.append(json.dumps(entry))
    (folder / QUESTIONS).write_text("\n".join(lines) + "\n")
    return folder
