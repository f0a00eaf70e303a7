"""Compare losses of block drafters: one training for each loss and seed, alike in everything else.

By default the corpus is off the target's own policy: its answers have some tokens replaced by others, so that what
follows them is not what the target would write (as in arXiv 2609.38795, where losses that label anchors by the target's
own continuations gain most).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mmspec.drafters.block import FOLDER
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.vlm_blocks import LOSSES
from mmspec.training.vlm_drafter import SHAPES, VlmDrafterConfig
from mmspec.training.vlm_drafter import train as train_drafter
from mmspec.training.vlm_questions import load_target, material_of
from mmspec.training.vlm_tasks import Material

logger = logging.getLogger(__name__)

REPORT = "losses.json"


@dataclass(frozen=True, kw_only=True)
class VlmLossesConfig(VlmDrafterConfig):
    """Settings of the comparison; others are those of each training, see :class:`VlmDrafterConfig`.

    Args:
        losses: Losses to compare; ratios are to the first one.
        seeds: Seeds of each, of weights, questions and anchors.

    Raises:
        ValueError: If a loss is unknown, or there are no seeds.
    """

    losses: tuple[str, ...] = ("ce", "alr-ira")
    seeds: tuple[int, ...] = (0, 1, 2)
    answers: str = "corpus"
    corpus_noise: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [loss for loss in self.losses if loss not in LOSSES]:
            raise ValueError(f"Unknown loss {unknown[0]!r} in `losses`; choose from {', '.join(LOSSES)}.")
        if len(self.losses) < 2 or not self.seeds:
            raise ValueError("`losses` must name at least two losses, `seeds` at least one seed.")

    def one(self, loss: str, seed: int) -> VlmDrafterConfig:
        """The training of one loss with one seed; it resumes by itself."""
        own = {item.name: getattr(self, item.name) for item in fields(VlmDrafterConfig)}
        folder = self.output / f"{loss}-{seed}"
        return VlmDrafterConfig(**{**own, "loss": loss, "seed": seed, "output": folder, "resume": True})


def train(
    config: VlmLossesConfig, pipe: VisionLanguagePipeline | None = None, material: Material | None = None
) -> Path:
    """Train and measure every loss with every seed, those that are done already excepted, and write ``losses.json``.

    The losses of a seed come one after the other, so that a comparison that is broken off is still one.
    """
    pipe = pipe or load_target(config)
    material = material or material_of(config)
    measured: dict[str, list[dict[str, Any]]] = {loss: [] for loss in config.losses}
    for seed in config.seeds:
        for loss in config.losses:
            one = config.one(loss, seed)
            report = one.output / FOLDER / "report.json"
            if not report.is_file():
                train_drafter(one, pipe, material)
            measured[loss].append(json.loads(report.read_text()))
        path = config.output / REPORT
        path.write_text(json.dumps(comparison(config, measured), indent=2) + "\n")
    return path


def comparison(config: VlmLossesConfig, reports: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Acceptance lengths of each loss by kind of draft, over all kinds of questions; ratios are to the first loss."""
    content: dict[str, Any] = {
        "seeds": list(config.seeds), "corpus_noise": config.corpus_noise, "answers": config.answers,
        "steps": {loss: [report["steps"] for report in each] for loss, each in reports.items()}, "shapes": {},
    }  # fmt: skip
    for shape in SHAPES:
        lengths = {
            loss: [mean(kind[shape]["length"] for kind in report["measured"].values()) for report in each]
            for loss, each in reports.items()
        }
        base = mean(lengths[config.losses[0]])
        content["shapes"][shape] = {
            loss: {
                "lengths": [round(length, 3) for length in each],
                "mean": round(mean(each), 3),
                "deviation": round(stdev(each), 3) if len(each) > 1 else None,
                "ratio": round(mean(each) / base, 4),
            }
            for loss, each in lengths.items()
        }
    return content
