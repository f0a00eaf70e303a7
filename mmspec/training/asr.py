"""Last stage of the recogniser: encoder, projector and language model learn to transcribe together.

The language model reads ``[bos] audio [text]`` and is trained on the transcript that follows, while the CTC losses of
:mod:`mmspec.training.asr_ctc` go on. Some of the words that it reads back are replaced, so that it listens rather than
completes (compare Bengio et al., 2015, "Scheduled Sampling for Sequence Prediction").
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.speech.tiny_asr import AudioProjector, TinyAsrModel
from mmspec.training.asr_batches import BatchConfig, SpeechBatch, draw_batch
from mmspec.training.asr_ctc import CtcConfig, CtcNetwork, load_network, load_sources
from mmspec.training.asr_data import extractor
from mmspec.training.asr_lm import LanguageModelConfig, load_language_model, new_decoder, tokenizer_for
from mmspec.training.asr_tokenizer import SPECIALS
from mmspec.training.loop import LoopConfig, fit, restore_average, restore_weights, step_generator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AsrConfig(LoopConfig):
    """Settings of the stage; those of every loop are in :class:`LoopConfig`.

    Args:
        data: Folder of the corpus.
        language_model, ctc: Folders of the stages before.
        start_from: Folder of an earlier run of this stage to go on from, instead of those two.
        batches: How batches are drawn; they replace ``batch_size``.
        stack: Encoder frames of 40 ms that make one audio embedding.
        ctc_weight: Weight of the CTC losses.
        corruption: Part of the text tokens that are replaced in the input.
        label_smoothing: Of the cross-entropy.
    """

    data: Path
    language_model: Path
    ctc: Path
    start_from: Path | None = None
    batches: BatchConfig = field(default_factory=lambda: BatchConfig(shares=(0.26, 0.12, 0.56, 0.06)))
    stack: int = 3
    ctc_weight: float = 0.5
    corruption: float = 0.12
    label_smoothing: float = 0.05
    learning_rate: float = 1.2e-3
    warmup_steps: int = 200
    clip_norm: float = 5.0

    def ctc_settings(self) -> CtcConfig:
        """Settings of the CTC stage, in this stage's precision."""
        return CtcConfig(data=self.data, output=self.ctc, minutes=1, precision=self.precision, device=self.device)

    def language_settings(self) -> LanguageModelConfig:
        """Settings of the language model's stage."""
        return LanguageModelConfig(data=self.data, output=self.language_model, minutes=1)


class AsrNetwork(nn.Module):
    """All that is trained: the networks of :class:`TinyAsrModel` and the additional head."""

    def __init__(self, ctc: CtcNetwork, projector: AudioProjector, decoder: LlamaForCausalLM) -> None:
        super().__init__()
        self.ctc, self.projector, self.decoder = ctc, projector, decoder

    def text_logits(self, last: Tensor, lengths: Tensor, tokens: list[Tensor]) -> Tensor:
        """Logits (sum of lengths, V) of each token of ``tokens`` (``pieces [eos]``) given audio and those before."""
        audio, counts = self.projector(last, lengths)
        embed, config = self.decoder.get_input_embeddings(), self.decoder.config
        begin, mark = embed(torch.tensor([[config.bos_token_id], [config.text_token_id]], device=last.device))
        rows = [
            torch.cat((begin, row[:count], mark, embed(pieces[:-1])))
            for row, count, pieces in zip(audio, counts.tolist(), tokens, strict=True)
        ]
        # padding comes last, so causal attention never sees it
        hidden = self.decoder.model(
            inputs_embeds=nn.utils.rnn.pad_sequence(rows, batch_first=True), use_cache=False
        ).last_hidden_state
        wanted = [h[1 + c : 1 + c + len(p)] for h, c, p in zip(hidden, counts.tolist(), tokens, strict=True)]
        return self.decoder.lm_head(torch.cat(wanted))


def corrupted(tokens: Tensor, rate: float, vocab_size: int, generator: torch.Generator) -> Tensor:
    """``tokens`` (n,) with some replaced by random pieces; the last one, which is no input, is kept."""
    random = torch.randint(len(SPECIALS), vocab_size, tokens.shape, generator=generator)
    chosen = torch.rand(tokens.shape, generator=generator) < rate
    chosen[-1] = False
    return torch.where(chosen, random, tokens)


def asr_loss(
    network: AsrNetwork, batch: SpeechBatch, tokenizer: PreTrainedTokenizerFast, config: AsrConfig, step: int
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of the transcripts plus the weighted CTC losses."""
    total, numbers, last, lengths = network.ctc.losses(batch, config.ctc_settings())
    own = ~batch.foreign
    texts = [text for text, foreign in zip(batch.texts, batch.foreign.tolist(), strict=True) if not foreign]
    if not texts:
        return config.ctc_weight * total, numbers
    pieces = tokenizer(texts, add_special_tokens=False)["input_ids"]
    targets = [torch.tensor([*row, network.decoder.config.eos_token_id]) for row in pieces]
    generator = step_generator(config.seed, step)
    vocab_size = network.decoder.config.vocab_size
    inputs = [corrupted(row, config.corruption, vocab_size, generator) for row in targets]
    with config.autocast:
        logits = network.text_logits(last[own], lengths[own], inputs)
    wanted = torch.cat(targets)
    loss = F.cross_entropy(logits.float(), wanted, label_smoothing=config.label_smoothing)
    with torch.no_grad():
        accuracy = (logits.argmax(dim=-1) == wanted).float().mean().item()
    return loss + config.ctc_weight * total, {"text": loss.item(), "accuracy": accuracy, **numbers}


def build(config: AsrConfig) -> tuple[AsrNetwork, PreTrainedTokenizerFast]:
    """The network as the stages before left it, and its tokenizer."""
    material_letters = load_sources(config.data)[1]
    language = config.language_settings()
    encoder = load_network(config.ctc_settings(), material_letters)
    decoder = load_language_model(language)
    projector = AudioProjector(config.ctc_settings().encoder.hidden_size, language.hidden_size, config.stack)
    with torch.no_grad():  # audio starts as loud as text
        projector.down.weight.mul_(0.1)
    return AsrNetwork(encoder, projector, decoder), tokenizer_for(config.data, language.vocab_size)


def load_model(config: AsrConfig) -> tuple[TinyAsrModel, PreTrainedTokenizerFast, dict[str, float]]:
    """The averaged model of the running or finished training in ``config.output``, its tokenizer, steps and minutes."""
    language = config.language_settings()
    letters = load_sources(config.data)[1]
    projector = AudioProjector(config.ctc_settings().encoder.hidden_size, language.hidden_size, config.stack)
    network = AsrNetwork(CtcNetwork(config.ctc_settings(), letters), projector, new_decoder(language))
    progress = restore_average(network, config.output)
    model = TinyAsrModel(network.ctc.encoder, network.projector, network.decoder, extractor())
    return model.eval(), tokenizer_for(config.data, language.vocab_size), progress


def train(config: AsrConfig) -> Path:
    """Train all parts; the checkpoint in ``config.output`` is what is exported."""
    torch.manual_seed(config.seed)
    material, _ = load_sources(config.data)
    network, tokenizer = build(config)
    if config.start_from is not None:
        restore_weights(network, config.start_from)
    stack = extractor().config.stack

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = draw_batch(material, config.batches, config.seed + 1, step, stack)
        return asr_loss(network, batch, tokenizer, config, step)

    network.train()
    seconds = fit(network, loss_of, config)
    logger.info("recogniser trained for %.1f minutes", seconds / 60)
    return config.output
