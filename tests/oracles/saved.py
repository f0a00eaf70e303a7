"""A tiny pipeline saved as a checkpoint folder, as commands and benches load it."""

from __future__ import annotations

import json
from pathlib import Path

from mmspec.drafters.jacobi import JacobiDrafter
from tests.oracles.tiny import tiny_pipeline

PROMPTS = ["a red apple", "a blue dog on the moon", "very old tree"]


def save_tiny_checkpoint(folder: Path) -> Path:
    """Write a tiny pipeline with a fixed Jacobi window, and its ``prompts.json``."""
    tiny_pipeline(drafter=JacobiDrafter(window=6, controller="fixed")).save_pretrained(folder)
    (folder / "prompts.json").write_text(json.dumps(PROMPTS))
    return folder
