"""Optional stage of the embedded voice: a network that fills the residual codes of a frame in parallel.

Talker states are frozen, with pasts that are corrupted to several degrees. For each frame u is drawn from [0, 1), ceil(N cos(pi u / 2)) of the N residual codes
are masked, and the loss is the cross-entropy of these (Chang et al., 2022, "MaskGIT").

Symbols: M frames, V variants of the past, G codes a step, N = G - 1, D talker width.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.drafters.fingerprint import fingerprint
from mmspec.speech.mask_predictor import MaskPredictor
from mmspec.speech.talker import SpeechTalker
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.tts_states import draw_states, frozen_states, open_talker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MaskPredictorConfig(LoopConfig):
    """Settings of the stage.

    Args:
        data: Folder of the recordings.
        quantizer, talker: Output folders of the stages before.
        corrupted: Shares of the past codes that are replaced, one for each variant of the states.
        hidden_size, num_layers, intermediate_size: Of the network; it has four heads.
        order_noise: See :class:`MaskPredictor`.
    """

    data: Path
    quantizer: Path
    talker: Path
    corrupted: tuple[float, ...] = (0.0, 0.1, 0.25)
    hidden_size: int = 128
    num_layers: int = 3
    intermediate_size: int = 384
    order_noise: float = 1.0
    batch_size: int = 400
    learning_rate: float = 1.5e-3
    average_decay: float = 0.995


class MaskPredictorTrainer(nn.Module):
    """The network with its loss."""

    def __init__(self, network: MaskPredictor) -> None:
        super().__init__()
        self.network = network
        for name, parameter in network.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.05 if "embedding" in name else 0.02)

    def loss(self, states: Tensor, codes: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy of masked codes among ``codes`` (M, G) given ``states`` (M, D), and the share that is right."""
        masked = draw_masks(len(codes), codes.shape[1] - 1, generator)
        logits = self.network(states, codes, masked)[masked]
        wanted = codes[:, 1:][masked]
        right = (logits.argmax(-1) == wanted).float().mean()
        return F.cross_entropy(logits, wanted), {"right": right.item()}


def draw_masks(frames: int, slots: int, generator: torch.Generator) -> Tensor:
    """Which codes are masked (frames, slots): by the cosine of a uniform number, at least one a frame."""
    counts = (slots * (torch.rand(frames, 1, generator=generator) * math.pi / 2).cos()).ceil().clamp_min(1)
    ranks = torch.rand(frames, slots, generator=generator).argsort(-1).argsort(-1)
    return ranks < counts


def build_network(talker: SpeechTalker, config: MaskPredictorConfig) -> MaskPredictor:
    """An untrained network for the codes and states of ``talker``."""
    return MaskPredictor(
        talker.codes_per_step, talker.config.num_codes, talker.config.hidden_size, config.hidden_size,
        config.num_layers, intermediate_size=config.intermediate_size, order_noise=config.order_noise,
        target=fingerprint(talker),
    )  # fmt: skip


def train(config: MaskPredictorConfig) -> Path:
    """Train the network and save it with its measurements; returns its folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
    """
    torch.manual_seed(config.seed)
    reading, material, held_out = open_talker(config.data, config.quantizer, config.talker)
    states, codes = frozen_states(reading, material, config.corrupted, config.seed)
    trainer = MaskPredictorTrainer(build_network(reading.talker, config))

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        return trainer.loss(*draw_states(states, codes, config.batch_size, generator), generator)

    seconds = fit(trainer, loss_of, config)
    report = {
        "minutes": seconds / 60, "parameters": sum(p.numel() for p in trainer.parameters()),
        "trained": evaluate(trainer, *frozen_states(reading, material[:60], (0.0,), 0)),
        "held_out": evaluate(trainer, *frozen_states(reading, held_out, (0.0,), 0)),
    }  # fmt: skip
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("maskgit: %s", report)
    trainer.network.eval().save_pretrained(config.output / "mask_predictor")
    return config.output / "mask_predictor"


@torch.no_grad()
def evaluate(trainer: MaskPredictorTrainer, states: Tensor, codes: Tensor) -> dict[str, float]:
    """Mean cross-entropy in nats of masked ``codes`` (M, G), masks drawn as in training, behind ``states`` (1, M, D)."""
    loss, parts = trainer.loss(states[0], codes, step_generator(0, -1))
    return {"masked_code_loss": loss.item(), **parts}
