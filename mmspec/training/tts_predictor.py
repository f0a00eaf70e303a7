"""Fourth stage of the embedded voice: the code predictor alone.

The talker learns code 0 long before the predictor knows the seven others. Its states, frozen now, are computed once, with pasts that are corrupted to
several degrees, and the predictor goes on learning from them: an epoch costs a third of one with the talker. The losses are
those of the stage before.

Symbols: M frames, V variants of the past, G codes a frame, D talker width.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.speech.talker import SpeechTalker
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.tts_documents import Spoken, pack
from mmspec.training.tts_talker import (
    TalkerConfig,
    TalkerTrainer,
    corrupt,
    evaluate,
    load_encoder,
    read_material,
    reader,
    specials,
)

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


@torch.no_grad()
def frozen_states(talker: SpeechTalker, material: list[Spoken], config: PredictorConfig) -> tuple[Tensor, Tensor]:
    """Talker states (V, M, D) before every frame, and the frames' codes (M, G)."""
    base = TalkerConfig(data=config.data, quantizer=config.quantizer, output=config.output, steps=1)
    trainer = reader(talker, base)
    states: list[list[Tensor]] = [[] for _ in config.corrupted]
    codes = []
    for start in range(0, len(material), 40):
        packed = pack(material[start : start + 40], base.row_width, specials(talker))
        before = packed.is_frame.flatten().nonzero()[:, 0] - 1
        codes.append(packed.codes.flatten(0, 1)[before + 1])
        for variant, share in enumerate(config.corrupted):
            generator = step_generator(config.seed + 1 + variant, start)
            past = corrupt(packed, share, talker.config.num_codes, generator)
            states[variant].append(trainer.states(packed, past).flatten(0, 1)[before])
    return torch.stack([torch.cat(parts) for parts in states]), torch.cat(codes)


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
    talker = SpeechTalker.from_pretrained(config.talker / "talker").eval()
    base = TalkerConfig(data=config.data, quantizer=config.quantizer, output=config.output, steps=1)
    material, held_out = read_material(base, load_encoder(config.quantizer))
    states, codes = frozen_states(talker, material, config)
    losses = reader(talker, base)
    trainer = PredictorTrainer(losses, config)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        rows = torch.randint(len(codes), (config.batch_size,), generator=generator)
        variants = torch.randint(len(states), (config.batch_size,), generator=generator)
        return trainer.loss(states[variants, rows], codes[rows])

    seconds = fit(trainer, loss_of, config)
    report = {
        "minutes": seconds / 60, "parameters": sum(p.numel() for p in talker.parameters()),
        "trained": evaluate(losses, material[:60]), "held_out": evaluate(losses, held_out),
    }  # fmt: skip
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("predictor: %s", report)
    talker.save_pretrained(config.output / "talker")
    return config.output / "talker"
