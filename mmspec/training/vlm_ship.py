"""Write the trained target and its drafters as the pipeline folder ``mmspec/tiny-vlm`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmspec.drafters.block import BlockDrafter
from mmspec.drafters.eagle3 import FOLDER as EAGLE3
from mmspec.drafters.eagle3 import Eagle3Drafter
from mmspec.models.loading import read_json
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.vlm_card import NOTICE, model_card
from mmspec.training.vlm_export import write_pipeline
from mmspec.training.vlm_losses import REPORT
from mmspec.training.vlm_target import VlmTargetConfig
from mmspec.training.vlm_tasks import TASKS, DataConfig, Material, held_out_samples, load_material, moved_samples
from mmspec.vlm.items import QUESTIONS


@dataclass(frozen=True, kw_only=True)
class VlmShipConfig:
    """What to put together.

    Args:
        data: Folder that ``mmspec train vlm data`` filled, for the questions that come along.
        run: Output of ``mmspec train vlm target``.
        block: Output of ``mmspec train vlm-drafter``, whose drafter the checkpoint recommends.
        eagle3: Output of ``mmspec train vlm-drafter --head eagle3``, if it is to come along.
        losses: Output of ``mmspec train vlm losses``, for the card.
        output: Folder to write.
        assessment: Text file with a paragraph for the card.
        num_nodes: Nodes of the recommended drafts.
        samples: Questions of each task.
    """

    data: Path
    run: Path
    block: Path
    output: Path
    eagle3: Path | None = None
    losses: Path | None = None
    assessment: Path | None = None
    num_nodes: int = 16
    samples: int = 16
    device: str = "cpu"


def train(config: VlmShipConfig, material: Material | None = None) -> Path:
    """Put the parts of ``config`` together; nothing is trained.

    Raises:
        FileNotFoundError: If a training has no result yet.
    """
    folder, pipeline = Path(config.output), Path(config.run) / "pipeline"
    if not pipeline.is_dir():
        raise FileNotFoundError(f"{config.run} holds no pipeline; the training of the target must have ended.")
    material = material or load_material(DataConfig(config.data))
    pipe = VisionLanguagePipeline.from_pretrained(pipeline)
    block = Path(config.block) / BlockDrafter.folder
    drafter = BlockDrafter.from_pretrained(block).with_settings(num_nodes=config.num_nodes)
    drafter.check_target(pipe.model)
    reports = {"block": read_json(block / "report.json")}
    sizes = _sizes(pipe, drafter)
    folder.mkdir(parents=True, exist_ok=True)
    pipe.drafter = drafter.to(torch.float16)
    write_pipeline(pipe, folder)
    if config.eagle3 is not None:
        head = Path(config.eagle3) / EAGLE3
        reports["eagle3"] = read_json(head / "report.json")
        sizes["eagle_parameters"] = _add_head(head, folder / EAGLE3, pipe)
    _write_questions(material, folder, config.samples)
    training = {**read_json(pipeline / "training.json"), "drafters": reports, "asked": reports["block"]["asked"]}
    training.setdefault("corruption", VlmTargetConfig.corruption)  # of trainings that do not tell it
    if config.losses is not None:
        training["losses"] = read_json(Path(config.losses) / REPORT)
    if config.assessment is not None:
        training["assessment"] = Path(config.assessment).read_text()
    (folder / "training.json").write_text(json.dumps(training, indent=2) + "\n")
    (folder / "README.md").write_text(model_card(training, sizes, _commands(training)))
    (folder / "NOTICE").write_text(NOTICE)
    return folder


def _add_head(source: Path, folder: Path, pipe: VisionLanguagePipeline) -> int:
    """Copy an EAGLE-3 head that fits the target; its number of parameters."""
    head = Eagle3Drafter.from_pretrained(source)
    head.check_target(pipe.model)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("report.json"))
    return int(head.num_parameters())


def _write_questions(material: Material, folder: Path, count: int) -> None:
    """New lines, and known emoji in new places, as PNG files, and their questions and answers."""
    shutil.rmtree(folder / "samples", ignore_errors=True)
    (folder / "samples").mkdir()
    lines = []
    for task in TASKS:
        draw = held_out_samples if task == "read" else moved_samples
        for number, sample in enumerate(draw(material, task, count, seed=11)):
            path = f"samples/{task}-{number:02d}.png"
            grey = task == "read"  # the same pixels in a third of the bytes
            Image.fromarray(sample.image[..., 0] if grey else sample.image).save(folder / path, optimize=True)
            entry = {"task": task, "prompt": sample.question, "images": [path], "answer": sample.answer}
            lines.append(json.dumps(entry))
    (folder / QUESTIONS).write_text("\n".join(lines) + "\n")


def _sizes(pipe: VisionLanguagePipeline, drafter: BlockDrafter) -> dict[str, Any]:
    text, vision = pipe.model.config.get_text_config(), pipe.model.config.vision_config
    return {
        "vision_layers": vision.num_hidden_layers, "vision_width": vision.hidden_size, "patch": vision.patch_size,
        "layers": text.num_hidden_layers, "width": text.hidden_size, "parameters": pipe.model.num_parameters(),
        "vocabulary": pipe.adapter.vocab_size, "block_layers": drafter.config.num_layers,
        "block_size": drafter.config.block_size, "taps": ", ".join(map(str, drafter.config.taps)),
        "block_parameters": drafter.num_parameters(),
    }  # fmt: skip


def _commands(training: dict[str, Any]) -> list[str]:
    """The command lines of the trainings, with the minutes that they took."""
    heads = {"block": ("", "block"), "eagle3": (" --head eagle3", "eagle3")}
    lines = ["mmspec train vlm data --data vlm-data"]
    last = len(training["runs"])
    for number, run in enumerate(training["runs"], start=1):
        place = "runs/vlm" if number == last else f"runs/vlm-{number}"
        chosen = {**({"start_from": f"runs/vlm-{number - 1}"} if number > 1 else {}), **run["settings"]}
        settings = "".join(f" --set '{name}={_written(value)}'" for name, value in chosen.items())
        minutes = max(1, round(run["minutes"]))
        lines.append(f"mmspec train vlm target --data vlm-data --output {place} --minutes {minutes}{settings}")
    for name, report in training["drafters"].items():
        option, place = heads[name]
        lines.append(
            f"mmspec train vlm-drafter{option} --target runs/vlm/pipeline --data vlm-data --output runs/{place} "
            f"--minutes {max(1, round(report['minutes']))}"
        )
    parts = " ".join(f"--{name} runs/{name}" for name in training["drafters"])
    return [*lines, f"mmspec train vlm export --data vlm-data --run runs/vlm {parts} --output tiny-vlm"]


def _written(value: Any) -> str:
    """A setting as ``--set`` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
