"""Second stage of the recogniser: its encoder learns to spell with CTC.

Loss: connectionist temporal classification (Graves et al., 2006) on the last layer and, through the same head, on the
middle one (Nozaki and Komatsu, 2021, "Relaxing the Conditional Independence Assumption of CTC-based ASR by
Conditioning on Intermediate Predictions"). Recordings in other languages train the layers below through a head of
their own, which is thrown away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.speech.log_mel import LogMelFeatureExtractor
from mmspec.speech.tiny_asr import CTC_VOCABULARY, EncoderSizes, build_encoder
from mmspec.training.asr_batches import BatchConfig, Sources, SpeechBatch, draw_batch, sources
from mmspec.training.asr_data import CorpusConfig, Utterance, extractor, read_corpus
from mmspec.training.asr_sets import sequence_texts
from mmspec.training.loop import LoopConfig, fit, restore_average
from mmspec.training.workers import batch_number, workers

logger = logging.getLogger(__name__)

LABELS = {label: index for index, label in enumerate(CTC_VOCABULARY) if index}


@dataclass(frozen=True, kw_only=True)
class CtcConfig(LoopConfig):
    """Settings of the stage; those of every loop are in :class:`LoopConfig`.

    Args:
        data: Folder of the corpus.
        encoder: Sizes of the encoder.
        batches: How batches are drawn; they replace ``batch_size``.
        middle_weight, foreign_weight: Weights of the two additional losses.
        dropout: Of the activations between the feed-forward layers.
    """

    data: Path
    encoder: EncoderSizes = field(default_factory=EncoderSizes)
    batches: BatchConfig = field(default_factory=BatchConfig)
    middle_weight: float = 0.3
    foreign_weight: float = 0.3
    dropout: float = 0.0
    learning_rate: float = 1.5e-3
    warmup_steps: int = 300
    clip_norm: float = 5.0


class CtcNetwork(nn.Module):
    """The encoder with a second head for the letters of other languages."""

    def __init__(self, config: CtcConfig, foreign_letters: list[str]) -> None:
        super().__init__()
        self.encoder = build_encoder(extractor().feature_size, config.encoder)
        self.encoder.config.encoder_config.activation_dropout = config.dropout
        for layer in self.encoder.encoder.layers:
            layer.feed_forward1.activation_dropout = layer.feed_forward2.activation_dropout = config.dropout
            if config.compile:
                layer.compile(dynamic=True)
        self.foreign_labels = {letter: index + 1 for index, letter in enumerate(foreign_letters)}
        self.foreign_head = nn.Linear(config.encoder.hidden_size, len(foreign_letters) + 1)
        self.middle = config.encoder.layers // 2 - 1

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encoder states of the middle and the last layer (B, T', D) and their lengths (B,)."""
        mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        caught: list[Tensor] = []
        layer = self.encoder.encoder.layers[self.middle]
        # cloned: the feedback may be added in place afterwards
        hook = layer.register_forward_hook(lambda module, args, output: caught.append(output.clone()))
        try:
            output = self.encoder.encoder(features, attention_mask=mask)
        finally:
            hook.remove()
        return caught[0], output.last_hidden_state, output.attention_mask.sum(dim=1)

    def losses(self, batch: SpeechBatch, config: CtcConfig) -> tuple[Tensor, dict[str, float], Tensor, Tensor]:
        """The weighted loss, its parts, and the last states with their lengths."""
        with config.autocast:
            middle, last, lengths = self(batch.features, batch.lengths)
            own = ~batch.foreign
            logits, early = self.encoder.ctc_head(last), self.encoder.ctc_head(middle)
            foreign = self.foreign_head(last)
        texts = [
            [LABELS[letter] for letter in text]
            for text, other in zip(batch.texts, batch.foreign, strict=True)
            if not other
        ]
        loss = ctc_loss(logits[own], lengths[own], texts)
        total = loss + config.middle_weight * ctc_loss(early[own], lengths[own], texts)
        numbers = {"ctc": loss.item()}
        if batch.foreign.any():
            labels = [
                [self.foreign_labels[letter] for letter in text if letter in self.foreign_labels]
                for text, other in zip(batch.texts, batch.foreign, strict=True)
                if other
            ]
            other = ctc_loss(foreign[batch.foreign], lengths[batch.foreign], labels)
            total = total + config.foreign_weight * other * batch.foreign.float().mean() / 0.1
            numbers["foreign"] = other.item()
        return total, numbers, last, lengths


def ctc_loss(logits: Tensor, lengths: Tensor, labels: list[list[int]]) -> Tensor:
    """CTC loss a label, over the rows that are long enough for their labels; zero if there are none."""
    if not labels:
        return logits.sum() * 0
    counts = torch.tensor([len(row) for row in labels])
    flat = torch.tensor([label for row in labels for label in row])
    log_probs = logits.float().log_softmax(dim=-1).transpose(0, 1)
    losses = F.ctc_loss(log_probs, flat, lengths, counts, reduction="none", zero_infinity=True)
    return losses.sum() / counts.sum().clamp(min=1)


def letters_of(corpus: list[Utterance]) -> list[str]:
    """The letters of the other languages, marked by nothing: one label set serves them all."""
    return sorted(
        {letter for u in corpus if u.language != "en" for letter in u.text if letter.isalnum() or letter == " "}
    )


def load_sources(data: Path) -> tuple[Sources, list[str]]:
    """The corpus by kind, without what is held out, and the letters of its other languages."""
    corpus = read_corpus(CorpusConfig(data=data))
    found = sources(corpus, frozenset())
    banned = frozenset(sequence_texts(found.words))
    return Sources(found.prompts, found.words, found.synthetic, found.foreign, banned), letters_of(corpus)


def train(config: CtcConfig) -> Path:
    """Train the encoder; its checkpoint in ``config.output`` is what the last stage starts from."""
    torch.manual_seed(config.seed)
    material, letters = load_sources(config.data)
    network = CtcNetwork(config, letters).to(config.device)
    features: LogMelFeatureExtractor = extractor()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = draw_batch(material, config.batches, config.seed, batch_number(step), features.config.stack)
        loss, numbers, _, _ = network.losses(batch, config)
        return loss, numbers

    network.train()
    with workers():
        seconds = fit(network, loss_of, config)
    logger.info("encoder trained for %.1f minutes", seconds / 60)
    return config.output


def load_network(config: CtcConfig, letters: list[str]) -> CtcNetwork:
    """The averaged network of the checkpoint in ``config.output``."""
    network = CtcNetwork(config, letters)
    restore_average(network, config.output)
    return network
