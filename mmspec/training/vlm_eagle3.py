"""Recipe of EAGLE-3 heads for vision-language models, with training-time test: the head learns to read its own predictions
(Li et al., 2025, "EAGLE-3"; steps and their weights as there).

See :mod:`mmspec.training.vlm_steps` for what a row reads and learns, here from joined states of several layers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.eagle3 import Eagle3Drafter
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.loop import fit, step_generator
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
from mmspec.training.vlm_rollout import Reading, read_texts
from mmspec.training.vlm_steps import predicted_states, step_losses
from mmspec.training.vlm_tasks import Material

logger = logging.getLogger(__name__)

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"tree": "chain", "num_nodes": 8},
    "tree-16": {"tree": "dynamic", "num_nodes": 16},
    "tree-32": {"tree": "dynamic", "num_nodes": 32},
}
"""Drafts that the report measures."""


@dataclass(frozen=True, kw_only=True)
class VlmEagle3Config(VlmQuestionsConfig):
    """Settings of an EAGLE-3 head's training; others are in :class:`VlmQuestionsConfig`.

    Args:
        steps_ahead: Steps that the head is trained to predict; from the second on it reads itself.
        step_decay: Weight of each step relative to the one before it.
        draft_vocab_size: Draft only so many tokens, the most frequent of the answers; ``None`` drafts all.

    Raises:
        ValueError: If a number is out of range.
    """

    steps_ahead: int = 7
    step_decay: float = 0.8
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_ahead < 1 or not 0 < self.step_decay <= 1:
            raise ValueError("`steps_ahead` must be at least 1 and `step_decay` lie in (0, 1].")
        if self.draft_vocab_size is not None and self.draft_vocab_size < 1:
            raise ValueError(f"`draft_vocab_size` must be at least 1, got {self.draft_vocab_size}.")


def build(config: VlmEagle3Config, pipe: VisionLanguagePipeline, examples: Sequence[Example]) -> Eagle3Drafter:
    """An untrained head for the target of ``pipe``; its output rows begin as the target's, the rest follows from the seed."""
    drafter = Eagle3Drafter(**widths(config, pipe), draft_vocab_size=config.draft_vocab_size)
    draw_weights(drafter, config.seed)
    if config.draft_vocab_size is not None:
        chosen = frequent_tokens(examples, config.draft_vocab_size, pipe.adapter.vocab_size, pipe.stop_tokens())
        drafter.d2t.copy_(chosen - torch.arange(len(chosen)))
    with torch.no_grad():
        rows = pipe.model.get_output_embeddings().weight[drafter.drafted_tokens.to(pipe.model.device)]
        drafter.lm_head.weight.copy_(rows)
    return drafter


def frequent_tokens(examples: Sequence[Example], count: int, vocab_size: int, always: Sequence[int]) -> Tensor:
    """The ``count`` most frequent tokens (count,) of the answers in ascending order, those of ``always`` among them."""
    seen = Counter(token for example in examples for token in example.answer)
    ranked = [*always, *(token for token, _ in seen.most_common()), *range(vocab_size)]
    return torch.tensor(sorted(list(dict.fromkeys(ranked))[:count]))


def losses(drafter: Eagle3Drafter, reading: Reading, config: VlmEagle3Config) -> tuple[Tensor, dict[str, float]]:
    """The loss of the recipe, the share of right tokens at some steps, and the expected number of right drafts in a row."""
    predicted = predicted_states(drafter, reading, reading.features, config.steps_ahead)
    return step_losses(predicted, reading, config.step_decay, drafter.draft_logits, drafter.drafted_tokens)


def train(
    config: VlmEagle3Config, pipe: VisionLanguagePipeline | None = None, material: Material | None = None
) -> Path:
    """Gather answers, train a head, measure it, and save it under ``config.output / "eagle3_drafter"``.

    Args:
        config: Settings.
        pipe, material: The target and its questions; by default those that ``config`` names.

    Raises:
        ValueError: If the run is resumed with other settings, or there is nothing to learn.
    """
    pipe = pipe or load_target(config)
    material = material or material_of(config)
    examples = gather(config, pipe, material)
    drafter = build(config, pipe, examples).to(config.device)
    drafter.train()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        rows = torch.randint(len(examples), (config.batch_size,), generator=generator).tolist()
        reading = read_texts(pipe.adapter, [examples[row].encode(pipe) for row in rows], drafter.config.taps)
        with config.autocast:
            return losses(drafter, reading, config)

    seconds = fit(drafter, loss_of, config)
    logger.info("EAGLE-3 head trained for %.1f minutes", seconds / 60)
    facts = {"loss": "training-time test"}
    return finish(config, pipe, drafter.eval().requires_grad_(False), material, SHAPES, facts)
