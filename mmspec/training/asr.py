"""Last stage of the recogniser: encoder, projector and language model learn to transcribe together.

The language model reads ``[bos] audio [text]`` and is trained on the transcript that follows, while the CTC losses of
:mod:`mmspec.training.asr_ctc` go on. Some of the words that it reads back are replaced, so that it listens rather than
completes (compare Bengio et al., 2015, "Scheduled Sampling for Sequence Prediction").
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.speech.tiny_asr import TinyAsrModel
from mmspec.training.asr_batches import BatchConfig, SpeechBatch, draw_batch
from mmspec.training.asr_ctc import CtcConfig, CtcNetwork, load_network, load_sources
from mmspec.training.asr_data import extractor
from mmspec.training.asr_reader import (
    Reader,
    ReaderConfig,
    corpus_texts,
    corrupted,
    imitated_states,
    load_reader,
    new_reader,
    tokenizer_for,
)
from mmspec.training.loop import LoopConfig, fit, read_progress, restore_average, restore_weights, step_generator
from mmspec.training.workers import batch_number, workers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AsrConfig(LoopConfig):
    """Settings of the stage; those of every loop are in :class:`LoopConfig`.

    Args:
        data: Folder of the corpus.
        reader, ctc: Folders of the stages before.
        start_from: Folder of an earlier run of this stage to go on from, instead of those two.
        batches: How batches are drawn; they replace ``batch_size``.
        written: Sentences a step that are read from imitated CTC probabilities.
        slips: Their largest part of misspelt letters.
        ctc_weight: Weight of the CTC losses.
        corruption: Part of the text tokens that are replaced in the input.
        label_smoothing: Of the cross-entropy.
    """

    data: Path
    reader: Path
    ctc: Path
    start_from: Path | None = None
    batches: BatchConfig = field(
        default_factory=lambda: BatchConfig(seconds=45.0, shares=(0.26, 0.1, 0.6, 0.04), synthetic_strength=0.35)
    )
    written: int = 8
    slips: float = 0.3
    ctc_weight: float = 0.5
    corruption: float = 0.12
    label_smoothing: float = 0.05
    learning_rate: float = 1.2e-3
    warmup_steps: int = 200
    clip_norm: float = 5.0
    average_decay: float = 0.99

    def ctc_settings(self) -> CtcConfig:
        """Settings of the CTC stage, in this stage's precision."""
        return CtcConfig(data=self.data, output=self.ctc, minutes=1, precision=self.precision, device=self.device)

    def reader_settings(self) -> ReaderConfig:
        """Settings of the reader's stage."""
        return ReaderConfig(data=self.data, output=self.reader, minutes=1)


class AsrNetwork(nn.Module):
    """All that is trained: the networks of :class:`TinyAsrModel` and the additional head."""

    def __init__(self, ctc: CtcNetwork, reader: Reader) -> None:
        super().__init__()
        self.ctc, self.reader = ctc, reader

    def states(self, last: Tensor, generator: torch.Generator) -> Tensor:
        """States (B, T, D + C) of encoder output (B, T, D); some rows lack one of the two parts."""
        probabilities = self.ctc.encoder.ctc_head(last).float().softmax(dim=-1).detach().to(last.dtype)
        draw = torch.rand(len(last), 1, 1, generator=generator).to(last.device)
        return torch.cat((last * (draw > 0.12), probabilities * (draw < 0.93)), dim=-1)


def asr_loss(
    network: AsrNetwork,
    batch: SpeechBatch,
    written: list[str],
    tokenizer: PreTrainedTokenizerFast,
    config: AsrConfig,
    step: int,
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of the transcripts and of ``written`` read from imitated states, plus the weighted CTC losses."""
    total, numbers, last, lengths = network.ctc.losses(batch, config.ctc_settings())
    own = ~batch.foreign
    texts = [text for text, foreign in zip(batch.texts, batch.foreign.tolist(), strict=True) if not foreign]
    generator = step_generator(config.seed, step)
    imitated, imitated_lengths = imitated_states(
        written, config.slips, last.shape[2], random.Random(f"{config.seed}-{step}"), generator
    )
    pieces = tokenizer(texts + written, add_special_tokens=False)["input_ids"]
    targets = [torch.tensor([*row, network.reader.decoder.config.eos_token_id]) for row in pieces]
    vocab_size = network.reader.decoder.config.vocab_size
    inputs = [corrupted(row, config.corruption, vocab_size, generator) for row in targets]
    with config.autocast:  # apart, so that neither is padded to the length of the other
        logits = network.reader(imitated, imitated_lengths, inputs[len(texts) :])
        if texts:
            states = network.states(last[own], generator)
            logits = torch.cat((network.reader(states, lengths[own], inputs[: len(texts)]), logits))
    wanted = torch.cat(targets)
    loss = F.cross_entropy(logits.float(), wanted, label_smoothing=config.label_smoothing)
    heard = sum(len(row) for row in targets[: len(texts)])
    right = (logits.detach().argmax(dim=-1) == wanted).float()
    numbers |= {"text": loss.item(), "heard": right[:heard].mean().item(), "read": right[heard:].mean().item()}
    return loss + config.ctc_weight * total, numbers


def build(config: AsrConfig, letters: list[str]) -> AsrNetwork:
    """The network as the stages before left it."""
    sizes = config.ctc_settings()
    encoder = load_network(sizes, letters)
    return AsrNetwork(encoder, load_reader(config.reader_settings(), sizes.encoder))


def load_model(
    config: AsrConfig, averaged: bool = True
) -> tuple[TinyAsrModel, PreTrainedTokenizerFast, dict[str, float]]:
    """The model of the running or finished training in ``config.output``, its tokenizer, steps and minutes.

    Args:
        config: The training.
        averaged: The running average of the weights, which lags behind in a short training, or the last ones.
    """
    language, sizes = config.reader_settings(), config.ctc_settings()
    letters = load_sources(config.data)[1]
    network = AsrNetwork(CtcNetwork(sizes, letters), new_reader(language, sizes.encoder))
    if averaged:
        restore_average(network, config.output)
    else:
        restore_weights(network, config.output)
    model = TinyAsrModel(network.ctc.encoder, network.reader.projector, network.reader.decoder, extractor())
    return model.eval(), tokenizer_for(config.data, language.vocab_size), read_progress(config.output)


def train(config: AsrConfig) -> Path:
    """Train all parts; the checkpoint in ``config.output`` is what is exported."""
    torch.manual_seed(config.seed)
    material, letters = load_sources(config.data)
    network = build(config, letters)
    if config.start_from is not None:
        restore_weights(network, config.start_from)
    language, stack = config.reader_settings(), extractor().config.stack
    tokenizer, texts = tokenizer_for(config.data, language.vocab_size), corpus_texts(config.data)
    pools = (list(texts.prompts.values()), texts.spoken, texts.written)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        step = batch_number(step)
        batch = draw_batch(material, config.batches, config.seed + 1, step, stack)
        rng = random.Random(f"written-{config.seed}-{step}")
        drawn = [rng.choice(rng.choices(pools, language.shares)[0]) for _ in range(4 * config.written)]
        first = rng.randint(0, 3) * config.written  # of similar lengths, to waste no padding
        written = sorted(drawn, key=len)[first : first + config.written]
        return asr_loss(network, batch, written, tokenizer, config, step)

    network.train()
    with workers():
        seconds = fit(network, loss_of, config)
    logger.info("recogniser trained for %.1f minutes", seconds / 60)
    return config.output
