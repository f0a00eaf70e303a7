"""Write the trained parts as the pipeline folder ``mmspec/emoji-t2i`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmspec.core.controllers import WIDTHS
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.pipelines.outputs import ImageOutput
from mmspec.training.llamagen import LlamaGenConfig, evaluate, load_checkpoint, load_dataset
from mmspec.training.loop import read_progress
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

RECOMMENDED: dict[str, Any] = {"guidance_scale": 1.5, "temperature": 0.7, "top_k": 50}
"""The defaults of a call."""

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
    earlier: Sequence[LlamaGenConfig] = (),
    prompts: Sequence[str] = PROMPTS,
    recommended: dict[str, Any] | None = None,
) -> Path:
    """Write the averaged model of the newest checkpoint, of a running or a finished training, as a pipeline folder.

    Weights are stored in float16. What else is in ``folder`` is kept.

    Args:
        config: The decoder's training; its ``output`` holds the checkpoint.
        vq_config: The tokenizer's training; its ``output`` holds ``report.json``.
        folder: Where to write the pipeline, and ``prompts.json``, ``training.json``, ``README.md`` and ``NOTICE``.
        assessment: Paragraph for the model card on what the pictures look like.
        earlier: The trainings that this one started from, first to last, for the model card.
        prompts: The fixed prompts of demo, bench and contact sheet.
        recommended: Defaults of a call, by default :data:`RECOMMENDED`.

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
    training["earlier"] = [read_progress(stage.output) for stage in earlier]
    stages = [*zip(earlier, training["earlier"], strict=True), (config, progress)]
    card = model_card(model, vq, vq_config, stages, training, assessment)
    pipe = LlamaGenPipeline(
        model.transformer, vq, model.text_encoder, tokenizer,
        class_names=list(config.classes), clean_captions=False, **(RECOMMENDED if recommended is None else recommended),
    )  # fmt: skip
    pipe.drafter = JacobiDrafter(initializer="uniform", prior=measure_prior(pipe, prompts))
    for part in (model.transformer, vq, model.text_encoder):
        part.to(torch.float16)
    for name in pipe.components:
        shutil.rmtree(folder / name, ignore_errors=True)
    pipe.save_pretrained(folder)
    _run_in_float32(folder / "text_encoder" / "config.json")
    vq_settings = json.loads((folder / "vq" / "config.json").read_text())
    vq_settings.pop("_name_or_path", None)  # the folder of the training run, which is nobody's business
    _write(folder / "vq" / "config.json", vq_settings)
    _write(folder / "training.json", training)
    _write(folder / "prompts.json", list(prompts))
    (folder / "README.md").write_text(card)
    (folder / "NOTICE").write_text(NOTICE)
    return folder


def measure_prior(pipe: LlamaGenPipeline, prompts: Sequence[str]) -> dict[str, float]:
    """Tokens per forward by fixed window, over ``prompts``; where the cost-aware controller starts.

    A property of the model alone: which machine measures it does not matter.
    """
    saved, prior = pipe.drafter, {"1": 1.0}
    try:
        for window in WIDTHS[1:]:
            pipe.drafter = JacobiDrafter(window=window, initializer="uniform", controller="fixed")
            output = pipe(list(prompts), seed=0, output_type="tokens")
            assert isinstance(output, ImageOutput)
            assert output.stats is not None
            rows = output.stats.rows
            prior[str(window)] = round(sum(r.tokens - 1 for r in rows) / sum(r.rounds for r in rows), 2)
    finally:
        pipe.drafter = saved
    return prior


def _run_in_float32(path: Path) -> None:
    """Say float32 in the text encoder's config: it is stored in half precision but meant to run in full."""
    config = json.loads(path.read_text())
    config["dtype"] = "float32"
    _write(path, config)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
