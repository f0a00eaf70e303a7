"""Measure the trained vision-language model on what it has never seen, and write it as a pipeline folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from mmspec.bench.answers import correctness
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.loop import read_progress
from mmspec.training.vlm_lines import HELD_OUT_FONT
from mmspec.training.vlm_target import VlmTargetConfig
from mmspec.training.vlm_tasks import Material, Sample, held_out_samples, moved_samples
from mmspec.training.vlm_tokenizer import picture_processor

_NO_SETTINGS = (
    "data",
    "output",
    "steps",
    "minutes",
    "resume",
    "start_from",
    "device",
    "compile",
    "checkpoint_minutes",
)


def export(model: Any, config: VlmTargetConfig, material: Material, folder: Path) -> Path:
    """Write ``model`` in float16 as a pipeline that runs in float32, with ``training.json`` beside it."""
    # measured as stored: rounding to half precision is part of what ships
    model = model.to(torch.float16).to(torch.float32)
    pipe = VisionLanguagePipeline(model, picture_processor(config.patch_size), NGramDrafter())
    pipe.set_progress_bar_config(disable=True)
    measured = measure(pipe, material, config.evaluate, config.max_answer)
    write_pipeline(pipe, folder)
    training = {
        "runs": [*_earlier(config), {**read_progress(config.output), "settings": _chosen(config)}],
        "seed": config.seed, "corruption": config.corruption, "measured": measured,
    }  # fmt: skip
    _write(folder / "training.json", training)
    return folder


def _earlier(config: VlmTargetConfig) -> list[dict[str, Any]]:
    """The runs that this one went on from."""
    if config.start_from is None:
        return []
    runs: list[dict[str, Any]] = json.loads((config.start_from / "pipeline" / "training.json").read_text())["runs"]
    return runs


def _chosen(config: VlmTargetConfig) -> dict[str, Any]:
    """Settings of the recipe that differ from its defaults; where and how long it ran is no setting."""
    own = {item.name: item.default for item in fields(VlmTargetConfig) if item.name not in _NO_SETTINGS}
    return {name: getattr(config, name) for name, default in own.items() if getattr(config, name) != default}


def measure(
    pipe: VisionLanguagePipeline, material: Material, count: int, max_answer: int = 96
) -> dict[str, dict[str, float]]:
    """Error rates and accuracies of plain greedy decoding on ``count`` held-out samples of each kind."""
    kinds = {
        "read": held_out_samples(material, "read", count),
        "read_new_font": held_out_samples(material, "read", count, seed=1, font=HELD_OUT_FONT)
        if HELD_OUT_FONT in material.lines.fonts
        else [],
        "name": moved_samples(material, "name", count),
        "name_new_drawing": held_out_samples(material, "name", count),
        "json": moved_samples(material, "json", count),
        "json_new_drawing": held_out_samples(material, "json", count),
    }
    return {name: score(pipe, samples, max_answer) for name, samples in kinds.items() if samples}


def score(pipe: VisionLanguagePipeline, samples: Sequence[Sample], max_answer: int = 96) -> dict[str, float]:
    """Share of answers that are right, and characters that are wrong relative to those of the true answers."""
    output = pipe(
        [sample.question for sample in samples], [sample.picture for sample in samples], max_new_tokens=max_answer,
        speculate=False, seed=0,
    )  # fmt: skip
    answers, truths = output.texts or [], [sample.answer for sample in samples]
    measured = correctness(answers, truths)
    scores = {"samples": len(samples), "exact": measured["accuracy"], "cer": measured["cer"]}
    if samples[0].task == "json":
        scores["valid"] = sum(map(_is_json, answers)) / len(samples)
    return {name: round(value, 4) for name, value in scores.items()}


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def write_pipeline(pipe: VisionLanguagePipeline, folder: Path) -> None:
    """The pipeline with its model in float16, to be run in float32."""
    for name in pipe.components:
        shutil.rmtree(folder / name, ignore_errors=True)
    pipe.model.to(torch.float16)
    pipe.save_pretrained(folder)
    pipe.model.to(torch.float32)
    for path in (folder / "model_index.json", folder / "model" / "config.json"):
        settings = json.loads(path.read_text())
        settings.pop("_name_or_path", None)  # the folder of the training run, which is nobody's business
        if path.parent != folder:
            settings["dtype"] = "float32"
        _write(path, settings)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
