"""Recipe of block drafters for vision-language models: a small network learns what a frozen target writes next.

See :mod:`mmspec.training.vlm_blocks` for the losses, :mod:`mmspec.training.vlm_questions` for what all drafters share.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.block import BlockDrafter
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.loop import fit, step_generator
from mmspec.training.vlm_blocks import LOSSES, block_loss, corpus_blocks, draw_anchors, rollout_blocks
from mmspec.training.vlm_examples import Example
from mmspec.training.vlm_questions import (
    VlmQuestionsConfig,
    draw_weights,
    finish,
    gather,
    load_target,
    material_of,
    widths,
)
from mmspec.training.vlm_rollout import read_texts, roll_out, rollout_slots
from mmspec.training.vlm_tasks import Material

logger = logging.getLogger(__name__)

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"tree": "chain"},
    "tree-16": {"tree": "dynamic", "num_nodes": 16},
    "tree-32": {"tree": "dynamic", "num_nodes": 32},
}
"""Drafts that the report measures."""


@dataclass(frozen=True, kw_only=True)
class VlmDrafterConfig(VlmQuestionsConfig):
    """Settings of a block drafter's training; others are in :class:`VlmQuestionsConfig`.

    Args:
        loss: One of :data:`LOSSES`.
        anchors: Blocks of an answer.
        gamma: How fast the weight of a block's slots falls.
        num_layers: Layers of the drafter.
        block_size: Slots of a block.
        markov_rank: Rank of the correction by the token before a slot; 0 has none.
        mask_token_id: Token in the slots to fill; ``None`` is the target's padding.

    Raises:
        ValueError: If a number is out of range.
    """

    loss: str = "alr-ira"
    anchors: int = 8
    gamma: float = 4.0
    num_layers: int = 2
    block_size: int = 16
    markov_rank: int = 0
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ValueError(f"Unknown `loss` {self.loss!r}; choose one of {', '.join(LOSSES)}.")
        if self.markov_rank < 0:
            raise ValueError(f"`markov_rank` must be at least 0, got {self.markov_rank}.")
        for name in ("anchors", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.block_size < 2 or (self.loss == "alr-ira" and self.block_size < 4):
            raise ValueError("`block_size` must be at least 2, and 4 for 'alr-ira'.")
        if self.gamma <= 0:
            raise ValueError(f"`gamma` must be positive, got {self.gamma}.")

    @property
    def depth(self) -> int:
        """Slots of a block that are drafted."""
        return self.block_size - 1


def build(config: VlmDrafterConfig, pipe: VisionLanguagePipeline) -> BlockDrafter:
    """An untrained drafter for the target of ``pipe``; its weights follow from the seed."""
    text = pipe.model.config.get_text_config()
    mask = config.mask_token_id
    if mask is None:
        mask = text.pad_token_id if text.pad_token_id is not None else pipe.adapter.vocab_size - 1
    drafter = BlockDrafter(
        **widths(config, pipe), num_layers=config.num_layers, block_size=config.block_size, mask_token_id=mask,
        markov_rank=config.markov_rank,
    )  # fmt: skip
    draw_weights(drafter, config.seed)
    if config.markov_rank:
        torch.nn.init.zeros_(drafter.markov.after.weight)  # at first the slots are all there is
    return drafter


def loss_of_step(
    config: VlmDrafterConfig, pipe: VisionLanguagePipeline, drafter: BlockDrafter, examples: list[Example], step: int
) -> tuple[Tensor, dict[str, float]]:
    """Loss of one step; its examples, anchors and offsets follow from seed and step."""
    generator = step_generator(config.seed, step)
    rows = torch.randint(len(examples), (config.batch_size,), generator=generator).tolist()
    depth, rolls = config.depth, config.loss.startswith("alr")
    with torch.no_grad():
        texts = [examples[row].encode(pipe) for row in rows]
        primaries = -(-config.anchors // 2) if config.loss == "alr-ira" else config.anchors
        free = rollout_slots(primaries, depth) if rolls else 0
        reading = read_texts(pipe.adapter, texts, drafter.config.taps, free)
        anchors, real = draw_anchors(reading, primaries, generator)
        if rolls:
            rollout = roll_out(reading, anchors, depth, pipe.stop_tokens())
            secondary = draw_secondary(real, config.anchors - primaries, depth, generator)
            blocks = rollout_blocks(reading, rollout, real, config.gamma, secondary)
        else:
            blocks = corpus_blocks(reading, anchors, real, depth, config.loss, config.gamma)
    with config.autocast:
        return block_loss(drafter, reading, blocks)


def draw_secondary(real: Tensor, count: int, depth: int, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
    """For ``count`` further blocks a row, the anchor in whose continuation each begins and how far behind it."""
    if not count:
        return None
    chances = real.cpu().float().clamp_min(1e-9)
    parent = torch.multinomial(chances, count, replacement=True, generator=generator)
    offset = torch.randint(2, depth, parent.shape, generator=generator)
    return parent.to(real.device), offset.to(real.device)


def train(
    config: VlmDrafterConfig, pipe: VisionLanguagePipeline | None = None, material: Material | None = None
) -> Path:
    """Gather answers, train a drafter, measure it, and save it under ``config.output / "block_drafter"``.

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
    seconds = fit(drafter, lambda step: loss_of_step(config, pipe, drafter, examples, step), config)
    logger.info("block drafter trained for %.1f minutes", seconds / 60)
    return finish(config, pipe, drafter.eval().requires_grad_(False), material, SHAPES, {"loss": config.loss})
