"""Recipe of recursive MTP heads for vision-language models (Cai et al., 2025, "FastMTP"): one head learns to predict several
steps from its own outputs, with less weight on later steps, on answers of the target itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.mtp import MTPDrafter
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.loop import fit, step_generator
from mmspec.training.vlm_questions import (
    VlmQuestionsConfig,
    draw_weights,
    finish,
    gather,
    load_target,
    material_of,
    widths,
)
from mmspec.training.vlm_rollout import Reading, read_texts
from mmspec.training.vlm_steps import STEP_LOSSES, predicted_states, step_losses
from mmspec.training.vlm_tasks import Material

logger = logging.getLogger(__name__)

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"tree": "chain", "num_nodes": 4},
    "chain-8": {"tree": "chain", "num_nodes": 8},
    "tree-16": {"tree": "dynamic", "num_nodes": 16, "depth": 5, "beam": 6, "branching": 6},
}
"""Drafts that the report measures."""


@dataclass(frozen=True, kw_only=True)
class VlmMTPConfig(VlmQuestionsConfig):
    """Settings of an MTP head's training; others are in :class:`VlmQuestionsConfig`.

    Args:
        steps_ahead: Steps that the head is trained to predict; from the second on it reads itself.
        step_decay: Weight of each step relative to the one before it.
        loss: ``ce`` or ``kd``, see :mod:`mmspec.training.vlm_steps`.
        sandwich_norms, norm_output: As for :class:`~mmspec.drafters.mtp.MTPDrafter`.

    Raises:
        ValueError: If a number is out of range, or the loss unknown.
    """

    steps_ahead: int = 3
    step_decay: float = 0.6
    loss: str = "ce"
    sandwich_norms: bool = False
    norm_output: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_ahead < 1 or not 0 < self.step_decay <= 1:
            raise ValueError("`steps_ahead` must be at least 1 and `step_decay` lie in (0, 1].")
        if self.loss not in STEP_LOSSES:
            raise ValueError(f"Unknown `loss` {self.loss!r}; choose one of {', '.join(STEP_LOSSES)}.")


def build(config: VlmMTPConfig, pipe: VisionLanguagePipeline) -> MTPDrafter:
    """An untrained head for the target of ``pipe``; its weights follow from the seed."""
    sizes = {name: value for name, value in widths(config, pipe).items() if name != "taps"}
    drafter = MTPDrafter(**sizes, sandwich_norms=config.sandwich_norms, norm_output=config.norm_output)
    draw_weights(drafter, config.seed)
    return drafter


def losses(drafter: MTPDrafter, reading: Reading, config: VlmMTPConfig) -> tuple[Tensor, dict[str, float]]:
    """The loss of the recipe, the share of right tokens at some steps, and the expected number of right drafts in a row."""
    predicted = predicted_states(drafter, reading, reading.states, config.steps_ahead)
    every = torch.arange(drafter.config.vocab_size, device=reading.ids.device)

    def logits_of(states: Tensor) -> Tensor:
        return drafter.predict(states[None], reading.model)[0]

    return step_losses(predicted, reading, config.step_decay, logits_of, every, config.loss)


def train(config: VlmMTPConfig, pipe: VisionLanguagePipeline | None = None, material: Material | None = None) -> Path:
    """Gather answers, train a head, measure it, and save it under ``config.output / "mtp_drafter"``.

    Args:
        config: Settings.
        pipe, material: The target and its questions; by default those that ``config`` names.

    Raises:
        ValueError: If the run is resumed with other settings, or there is nothing to learn.
    """
    pipe = pipe or load_target(config)
    material = material or material_of(config)
    examples = gather(config, pipe, material)
    drafter = build(config, pipe).to(config.device)
    drafter.train()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        rows = torch.randint(len(examples), (config.batch_size,), generator=generator).tolist()
        reading = read_texts(pipe.adapter, [examples[row].encode(pipe) for row in rows], ())
        with config.autocast:
            return losses(drafter, reading, config)

    seconds = fit(drafter, loss_of, config)
    logger.info("MTP head trained for %.1f minutes", seconds / 60)
    return finish(config, pipe, drafter.eval().requires_grad_(False), material, SHAPES, {"loss": config.loss})
