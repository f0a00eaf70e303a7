"""Fourth stage of the embedded voice: the code predictor alone.

The talker learns code 0 long before the predictor knows the seven others. Its states, frozen now, are computed once, with pasts that are corrupted to
several degrees, and the predictor goes on learning from them: an epoch costs a third of one with the talker. The losses are
those of the stage before.

Symbols: M frames, G codes a frame, D talker width.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.tts_states import draw_states, frozen_states, open_talker
from mmspec.training.tts_talker import TalkerTrainer, evaluate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PredictorConfig(LoopConfig):
    """Settings of the stage.

    Args:
        data: Folder of the recordings.
        quantizer, talker: Output folders of the stages before.
        corrupted: Shares of the past codes that are replaced, one for each variant of the states.
        ahead_weight: Weight of predicting codes after the next one.
    """

    data: Path
    quantizer: Path
    talker: Path
    corrupted: tuple[float, ...] = (0.0, 0.1, 0.25)
    ahead_weight: float = 1.0
    batch_size: int = 400
    learning_rate: float = 1.5e-3
    average_decay: float = 0.995


class PredictorTrainer(nn.Module):
    """The predictor with the losses of the talker's recipe; other parts of the talker are left as they are."""

    def __init__(self, losses: TalkerTrainer, config: PredictorConfig) -> None:
        super().__init__()
        self.losses, self.config = losses, config
        for parameter in losses.talker.parameters():
            parameter.requires_grad_(False)
        # embeddings of codes are also the talker's input, so they stay
        predictor = losses.talker.code_predictor
        for part in (predictor.stack, predictor.small_to_mtp_projection):
            for parameter in part.parameters():
                parameter.requires_grad_(True)
        predictor.lm_head.requires_grad_(True)

    def loss(self, states: Tensor, codes: Tensor) -> tuple[Tensor, dict[str, float]]:
        rest, ahead = self.losses.residual_losses(states, codes)
        return rest + self.config.ahead_weight * ahead, {"rest": rest.item(), "ahead": ahead.item()}


def train(config: PredictorConfig) -> Path:
    """Train the predictor and save the whole talker with its measurements; returns its folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
    """
    torch.manual_seed(config.seed)
    losses, material, held_out = open_talker(config.data, config.quantizer, config.talker)
    states, codes = frozen_states(losses, material, config.corrupted, config.seed)
    trainer, talker = PredictorTrainer(losses, config), losses.talker

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        return trainer.loss(*draw_states(states, codes, config.batch_size, step_generator(config.seed, step)))

    seconds = fit(trainer, loss_of, config)
    report = {
        "minutes": seconds / 60, "parameters": sum(p.numel() for p in talker.parameters()),
        "trained": evaluate(losses, material[:60]), "held_out": evaluate(losses, held_out),
    }  # fmt: skip
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("predictor: %s", report)
    talker.save_pretrained(config.output / "talker")
    return config.output / "talker"
