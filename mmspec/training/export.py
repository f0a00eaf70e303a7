"""Write the trained parts as the pipeline folder ``mmspec/emoji-t2i`` that ships with the package."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from mmspec.training.llamagen import LlamaGenConfig, load_checkpoint
from mmspec.training.vq import VQConfig

PROMPTS = (
    "red apple, noto style",
    "green apple, noto style",
    "red apple, twemoji style",
    "banana, fluent style",
    "strawberry, noto style",
    "pizza, twemoji style",
    "hamburger, fluent style",
    "birthday cake, noto style",
    "dog, noto style",
    "cat, fluent style",
    "penguin, twemoji style",
    "octopus, noto style",
    "sunflower, fluent style",
    "cactus, twemoji style",
    "rainbow, noto style",
    "fire engine, twemoji style",
    "rocket, fluent style",
    "soccer ball, noto style",
    "robot, twemoji style",
    "smiling face with sunglasses, fluent style",
)
"""The fixed prompts of the contact sheet."""

NOTICE = """\
The weights in this folder were trained from scratch on emoji drawings of three projects, and can redraw them:

Noto Emoji, copyright Google Inc., licensed under the Apache License 2.0.
    Package @iconify-json/noto.
Fluent Emoji (flat), copyright Microsoft Corporation, licensed under the MIT License.
    Package @iconify-json/fluent-emoji-flat.
Twemoji, copyright Twitter, Inc and other contributors, graphics licensed under CC-BY 4.0
    (https://creativecommons.org/licenses/by/4.0/). The drawings were rasterised; the model's output is an adaptation.
    Package @iconify-json/twemoji.

Neither the drawings nor the packages are part of this distribution.
"""


def export(config: LlamaGenConfig, vq_config: VQConfig, folder: Path, notes: dict[str, Any] | None = None) -> Path:
    """Write the averaged model of the newest checkpoint to ``folder``, weights in float16.

    Args:
        config: The decoder's training; its ``output`` holds the checkpoint.
        vq_config: The tokenizer's training; its ``output`` holds ``report.json``.
        folder: Where to write ``transformer/``, ``vq/``, ``text_encoder/``, ``tokenizer/``, ``categories.json``,
            ``prompts.json``, ``training.json`` and ``NOTICE``.
        notes: More entries for ``training.json``.
    """
    model, tokenizer, vq, step = load_checkpoint(config)
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {"transformer": model.transformer, "vq": vq, "text_encoder": model.text_encoder}
    for name, part in parts.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        copy.deepcopy(part).to(torch.float16).save_pretrained(folder / name)
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    _run_in_float32(folder / "text_encoder" / "config.json")
    report = config.output / "report.json"
    training = {
        "steps": step,
        "seed": config.seed,
        "batch_size": config.batch_size,
        "tokenizer": json.loads((vq_config.output / "report.json").read_text()),
        "decoder": json.loads(report.read_text()) if report.exists() else None,
        **(notes or {}),
    }
    _write(folder / "training.json", training)
    _write(folder / "categories.json", {str(index): name for index, name in enumerate(config.classes)})
    _write(folder / "prompts.json", list(PROMPTS))
    (folder / "NOTICE").write_text(NOTICE)
    return folder


def _run_in_float32(path: Path) -> None:
    """Say float32 in the text encoder's config: it is stored in half precision but meant to run in full."""
    config = json.loads(path.read_text())
    config["dtype"] = "float32"
    _write(path, config)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
