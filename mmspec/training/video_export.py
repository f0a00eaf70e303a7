"""Write the trained parts as the pipeline folder ``mmspec/tiny-video`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec.bench.video import SAMPLES
from mmspec.core.controllers import WIDTHS
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.pipelines.video import VideoPipeline
from mmspec.pipelines.video_call import VideoOutput
from mmspec.training.video_ar import VideoARConfig, VideoDataset, evaluate, load_checkpoint
from mmspec.training.video_card import NOTICE, model_card, stage
from mmspec.training.video_motion import motion_errors
from mmspec.training.video_tokenizer import VideoTokenizerConfig

RECOMMENDED: dict[str, Any] = {
    "guidance_scale": 1.0,
    "temperature": 0.5,
    "top_k": 50,
    "top_p": 1.0,
    "fps": 8.0,
    "max_context": 2,
}
"""The defaults of a call."""

DRAFTER: dict[str, Any] = {"window": 128, "initializer": "copy-frame", "controller": "fixed"}


def export(
    config: VideoARConfig,
    tokenizers: Sequence[VideoTokenizerConfig],
    folder: str | Path,
    assessment: str = "",
    num_samples: int = 16,
    recommended: dict[str, Any] | None = None,
) -> Path:
    """Write the averaged model of the newest checkpoint, of a running or a finished training, as a pipeline folder.

    Weights are stored in float16.

    Args:
        config: The decoder's training; its ``output`` holds the checkpoint.
        tokenizers: The tokenizer's trainings, first to last; their ``output`` holds ``report.json``. None if the decoder
            started from an exported model: its tokenizer is the model's.
        folder: Where to write the pipeline, ``samples``, ``training.json``, ``README.md`` and ``NOTICE``.
        assessment: Paragraph for the model card on what the clips look like.
        num_samples: First frames that come with the checkpoint, of clips that training never saw.
        recommended: Defaults of a call, by default :data:`RECOMMENDED`.

    Raises:
        FileNotFoundError: If either training left nothing to export.
        ValueError: If tokenizers are given beside a model to start from, or neither is.
    """
    if bool(tokenizers) == (config.start_from is not None):
        raise ValueError("Give the trainings of the tokenizer, or a model to start from, and not both.")
    folder = Path(folder)
    earlier = _earlier(config, tokenizers)
    model, dataset, progress = load_checkpoint(config)
    pipe = open_pipeline(config, model, dataset, recommended)
    samples = _write_samples(folder, dataset, num_samples)
    pipe.drafter = JacobiDrafter(**DRAFTER, prior=measure_prior(pipe, samples))
    training = {
        "stages": [*earlier["stages"], _decoder_stage(config, progress, len(tokenizers))],
        "tokenizer": earlier["tokenizer"],
        "decoder": {**progress, "clips": len(dataset.clips.trained), **evaluate(model, dataset, config)},
        "motion": motion_errors(pipe, dataset.clips, dataset.clips.held_out),
    }
    card = model_card(pipe, config, training, assessment)
    for part in (pipe.transformer, pipe.video_tokenizer, pipe.text_encoder):
        part.to(torch.float16)
    for name in pipe.components:
        shutil.rmtree(folder / name, ignore_errors=True)
    pipe.save_pretrained(folder)
    _clean_config(folder / "text_encoder" / "config.json", dtype="float32")  # stored in half, meant to run in full
    for name in ("video_tokenizer", "transformer"):
        _clean_config(folder / name / "config.json")
    (folder / "training.json").write_text(json.dumps(training, indent=2) + "\n")
    (folder / "README.md").write_text(card)
    (folder / "NOTICE").write_text(NOTICE)
    return folder


def _earlier(config: VideoARConfig, tokenizers: Sequence[VideoTokenizerConfig]) -> dict[str, Any]:
    """The ``stages`` before the decoder's training, and the reports of the ``tokenizer``."""
    if config.start_from is not None:
        before = json.loads((config.start_from / "training.json").read_text())
        return {name: before[name] for name in ("stages", "tokenizer")}
    reports = [json.loads((run.output / "report.json").read_text()) for run in tokenizers]
    stages = []
    for number, (run, report) in enumerate(zip(tokenizers, reports, strict=True), start=1):
        done = stage("video-tokenizer", run, report, {"output": f"runs/tokenizer-{number}"})
        done["command"] += " --set decoder_only=true" if run.decoder_only else ""
        done["command"] += f" --set start_from=runs/tokenizer-{number - 1}" if run.start_from else ""
        stages.append(done)
    return {"stages": stages, "tokenizer": reports}


def _decoder_stage(config: VideoARConfig, progress: dict[str, float], tokenizers: int) -> dict[str, Any]:
    if config.start_from is None:
        options = {"tokenizer": f"runs/tokenizer-{tokenizers}/tokenizer", "output": "runs/video-ar"}
        return stage("video-ar", config, progress, options)
    options = {"tokenizer": "tiny-video/video_tokenizer", "output": "runs/video-ar-2"}
    done = stage("video-ar", config, progress, options)
    done["command"] += " --set start_from=tiny-video"
    return done


def open_pipeline(
    config: VideoARConfig, model: Any, dataset: VideoDataset, recommended: dict[str, Any] | None = None
) -> VideoPipeline:
    """A pipeline of a trained model, without a drafter."""
    from mmspec.image.video_tokenizer import DiscreteVideoTokenizer

    tokenizer = DiscreteVideoTokenizer.from_pretrained(config.tokenizer, torch_dtype=torch.float32).eval()
    pipe = VideoPipeline(
        model.transformer, tokenizer, model.text_encoder, dataset.captioner, context_length=config.context_length,
        **(RECOMMENDED if recommended is None else recommended),
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _write_samples(folder: Path, dataset: VideoDataset, count: int) -> list[dict[str, str]]:
    """First frames of random held-out clips as PNG files, and ``samples.json``."""
    clips = dataset.clips
    chosen = np.random.default_rng(0).permutation(clips.held_out)[:count]
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    entries = []
    for number, clip in enumerate(chosen):
        path = f"samples/{number:02d}.png"
        Image.fromarray(clips.render(np.array([clip]))[0, 0]).save(folder / path)
        entries.append({"image": path, "prompt": clips.plain_caption(int(clip))})
    (folder / SAMPLES).write_text(json.dumps(entries, indent=2) + "\n")
    return [{**entry, "image": str(folder / entry["image"])} for entry in entries]


def measure_prior(pipe: VideoPipeline, samples: list[dict[str, str]]) -> dict[str, float]:
    """Tokens per forward by fixed window, over ``samples``; where the cost-aware controller starts.

    A property of the model alone: which machine measures it does not matter.
    """
    saved, prior = pipe.drafter, {"1": 1.0}
    try:
        for window in WIDTHS[1:]:
            pipe.drafter = JacobiDrafter(**{**DRAFTER, "window": window, "controller": "fixed"})
            output = pipe(
                image=[Image.open(sample["image"]) for sample in samples],
                prompt=[sample["prompt"] for sample in samples],
                seed=0,
                output_type="tokens",
            )
            assert isinstance(output, VideoOutput)
            rows = output.stats.rows
            prior[str(window)] = round(sum(r.tokens - 1 for r in rows) / sum(r.rounds for r in rows), 2)
    finally:
        pipe.drafter = saved
    return prior


def _clean_config(path: Path, **changes: Any) -> None:
    """Change entries of a saved configuration, and drop the folder of the training run, which is nobody's business."""
    config = json.loads(path.read_text()) | changes
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n")
