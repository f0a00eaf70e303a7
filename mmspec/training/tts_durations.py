"""Fourth stage of the embedded voice: how long characters last, from the text alone.

Loss: the negative log-likelihood of a Poisson law, whose optimum is the mean and which bears characters that last no time. The rest of the
talker is left as it is. It costs minutes, and it matters: a voice that was over-fitted reads best at the pace that it was
trained with.

Symbols: C documents, L characters.
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
from mmspec.training.tts_documents import Spoken, draw_documents, pack
from mmspec.training.tts_states import open_talker
from mmspec.training.tts_talker import specials

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DurationsConfig(LoopConfig):
    """Settings of the stage.

    Args:
        data: Folder of the recordings and their alignment.
        quantizer, talker: Output folders of the stages before.
        frames: Frames of a batch of documents, about; they replace ``batch_size``.
        longest: Most frames of a joined document.
    """

    data: Path
    quantizer: Path
    talker: Path
    frames: int = 600
    longest: int = 100
    learning_rate: float = 2e-3
    average_decay: float = 0.99


class DurationTrainer(nn.Module):
    """The duration predictor of a talker whose other parts are frozen."""

    def __init__(self, talker: SpeechTalker) -> None:
        super().__init__()
        if talker.text_track is None:
            raise ValueError("This talker has no text track, and so no durations.")
        self.talker, self.predictor = talker, talker.text_track.durations
        talker.requires_grad_(False)
        self.predictor.requires_grad_(True)

    def loss(self, documents: list[Spoken]) -> tuple[Tensor, dict[str, float]]:
        """The loss, and the mean error in frames of a character and of a document."""
        packed = pack(documents, 1, specials(self.talker))
        logs = self.predictor(packed.text, packed.present)
        losses = (logs.exp() - packed.durations * logs)[packed.present]
        errors = (logs.exp() - packed.durations).masked_fill(~packed.present, 0.0)
        told = {"character": errors.abs()[packed.present].mean().item(), "document": errors.sum(1).abs().mean().item()}
        return losses.mean(), told


def train(config: DurationsConfig) -> Path:
    """Train the durations and save the whole talker with their measurements; returns its folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings, or the talker has no text track.
    """
    torch.manual_seed(config.seed)
    reading, material, held_out = open_talker(config.data, config.quantizer, config.talker)
    trainer = DurationTrainer(reading.talker)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        return trainer.loss(draw_documents(material, config.frames, config.longest, generator))

    seconds = fit(trainer, loss_of, config)
    with torch.no_grad():
        report = {
            "minutes": seconds / 60, "trained": trainer.loss(material)[1], "held_out": trainer.loss(held_out)[1],
        }  # fmt: skip
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("durations: %s", report)
    trainer.talker.save_pretrained(config.output / "talker")
    return config.output / "talker"
