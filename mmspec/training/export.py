"""Write the trained parts as the pipeline folder ``mmspec/emoji-t2i`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel

from mmspec.training.emoji import class_of_names
from mmspec.training.llamagen import CaptionedDecoder, LlamaGenConfig, evaluate, load_checkpoint, load_dataset
from mmspec.training.loop import LoopConfig, read_progress
from mmspec.training.model_card import model_card
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


def export(
    config: LlamaGenConfig,
    vq_config: VQConfig,
    folder: str | Path,
    assessment: str = "",
    first_stage: LlamaGenConfig | None = None,
) -> Path:
    """Write the averaged model of the newest checkpoint, of a running or a finished training, as a pipeline folder.

    Weights are stored in float16. What else is in ``folder``, such as ``model_index.json``, is kept.

    Args:
        config: The decoder's training; its ``output`` holds the checkpoint.
        vq_config: The tokenizer's training; its ``output`` holds ``report.json``.
        folder: Where to write ``transformer/``, ``vq/``, ``text_encoder/``, ``tokenizer/``, ``categories.json``,
            ``prompts.json``, ``training.json``, ``README.md`` and ``NOTICE``.
        assessment: Paragraph for the model card on what the pictures look like.
        first_stage: The training that ``config.start_from`` names, for the model card.

    Raises:
        FileNotFoundError: If either training left nothing to export.
    """
    folder = Path(folder)
    model, tokenizer, vq, progress = load_checkpoint(config)
    dataset = load_dataset(config, vq)
    training: dict[str, Any] = {
        "tokenizer": json.loads((vq_config.output / "report.json").read_text()),
        "decoder": {**progress, "drawings": len(dataset.codes), **evaluate(model, dataset, tokenizer, config)},
    }
    stages = [(config, progress)]
    if first_stage is not None:
        training["first_stage"] = read_progress(first_stage.output)
        stages.insert(0, (first_stage, training["first_stage"]))
    values = _sizes(model, vq, config) | _measurements(training, vq_config) | _recipe(stages, vq_config, training)
    card = model_card(values | {"assessment": assessment.strip()})
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {"transformer": model.transformer, "vq": vq, "text_encoder": model.text_encoder}
    for name, part in parts.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        part.to(torch.float16).save_pretrained(folder / name)
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    _run_in_float32(folder / "text_encoder" / "config.json")
    _write(folder / "training.json", training)
    _write(folder / "categories.json", {str(index): name for index, name in enumerate(config.classes)})
    _write(folder / "prompts.json", list(PROMPTS))
    (folder / "README.md").write_text(card)
    (folder / "NOTICE").write_text(NOTICE)
    return folder


def _sizes(model: CaptionedDecoder, vq: VQModel, config: LlamaGenConfig) -> dict[str, Any]:
    return {
        "pixels": vq.config.sample_size,
        "names": len(class_of_names(config.classes)),
        "layers": config.num_layers,
        "width": config.hidden_size,
        "grid": model.transformer.config.grid_width,
        "decoder_parameters": model.transformer.num_parameters(),
        "codes": vq.config.num_vq_embeddings,
        "code_dim": vq.config.vq_embed_dim,
        "vq_parameters": vq.num_parameters(),
        "text_parameters": model.text_encoder.num_parameters(),
        "pieces": config.text_vocab_size,
        "classes": ", ".join(config.classes),
        "slots": config.condition_length,
    }


def _measurements(training: dict[str, Any], vq_config: VQConfig) -> dict[str, Any]:
    codes = training["tokenizer"]
    return {
        "held_out_count": vq_config.num_held_out,
        "held_out_psnr": codes["held_out"]["psnr"],
        "listed_psnr": codes["listed"]["psnr"],
        "codes_used": codes["listed"]["codes_used"],
        "code_entropy": codes["listed"]["entropy_bits"],
        **training["decoder"],
    }


def _recipe(
    stages: list[tuple[LlamaGenConfig, dict[str, float]]], vq_config: VQConfig, training: dict[str, Any]
) -> dict[str, Any]:
    """How the decoder was trained, in numbers, in words for each stage, and as commands."""
    samples = int(sum(progress["steps"] * config.batch_size for config, progress in stages))
    minutes = sum(progress["minutes"] for _, progress in stages)
    vq_minutes = training["tokenizer"]["minutes"]
    commands = [f"codes = {_call(vq_config, output='runs/vq', minutes=round(vq_minutes, 1))}", "vq.train(codes)"]
    words = []
    for number, (config, progress) in enumerate(stages, start=1):
        fixed: dict[str, Any] = {"output": f"runs/stage-{number}", "vq": "runs/vq/vq", "start_from": None}
        if number > 1:
            fixed["start_from"] = f"runs/stage-{number - 1}"
        commands.append(f"config = {_call(config, **fixed)}")
        planned, shares = config.minutes, config.corruption
        stopped = planned is not None and planned - progress["minutes"] > 1
        commands.append("llamagen.train(config)" + (f"  # stopped after {progress['minutes']:.0f}" if stopped else ""))
        words.append(
            f"{number}. {progress['steps']:,.0f} steps of {config.batch_size} in {progress['minutes']:.0f} "
            f"{f'of {planned:.0f} planned ' if stopped else ''}minutes: "
            f"{shares.lost:.0%} lost, {shares.suffix:.0%} suffix, {shares.scattered:.0%} scattered, "
            f"{1 - shares.lost - shares.suffix - shares.scattered:.0%} clean."
        )
    return {
        "samples": samples,
        "epochs": samples / training["decoder"]["drawings"],
        "minutes": minutes,
        "vq_minutes": vq_minutes,
        "total": (minutes + vq_minutes) / 60,
        "commands": "\n".join(commands),
        "stages": "\n".join(words),
    }


def _call(config: LoopConfig, **changes: Any) -> str:
    """Python that makes ``config`` with ``changes``; settings that have their default value are left out."""
    defaults = {item.name: item.default for item in fields(config)}
    values = {name: getattr(config, name) for name in defaults} | {"data": "emoji", "resume": False} | changes
    shown = [
        f"    {n}={json.dumps(v) if isinstance(v, str) else repr(v)},"
        for n, v in values.items()
        if v != defaults[n] and (v or defaults[n] is not None)
    ]
    kind = type(config)
    return "\n".join([f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}(", *shown, ")"])


def _run_in_float32(path: Path) -> None:
    """Say float32 in the text encoder's config: it is stored in half precision but meant to run in full."""
    config = json.loads(path.read_text())
    config["dtype"] = "float32"
    _write(path, config)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
