"""First stage of the recogniser: its language model learns text alone.

Next-token cross-entropy on sentences in the layout that recognition uses, with no audio between the marks.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.speech.tiny_asr import build_decoder
from mmspec.training.asr_data import CorpusConfig, Texts, texts_of
from mmspec.training.asr_tokenizer import train_tokenizer
from mmspec.training.loop import LoopConfig, fit, restore_average

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(LoopConfig):
    """Settings of the stage; those of every loop are in :class:`LoopConfig`.

    Args:
        data: Folder of the corpus.
        vocab_size: Pieces of the tokenizer.
        hidden_size, num_layers, num_heads, feed_forward: Sizes of the decoder.
        shares: Parts of a batch that are training prompts, sentences to be spoken, and other written text.
    """

    data: Path
    vocab_size: int = 512
    hidden_size: int = 192
    num_layers: int = 6
    num_heads: int = 6
    feed_forward: int = 512
    shares: tuple[float, float, float] = (0.1, 0.5, 0.4)
    batch_size: int = 96
    learning_rate: float = 2e-3
    average_decay: float = 0.995


def corpus_texts(data: Path) -> Texts:
    """The texts of the default corpus in ``data``."""
    return texts_of(CorpusConfig(data=data))


def tokenizer_for(data: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """The tokenizer, a function of the corpus."""
    texts = corpus_texts(data)
    return train_tokenizer([*texts.spoken[:20_000], *list(texts.prompts.values()) * 10], vocab_size)


def new_decoder(config: LanguageModelConfig) -> LlamaForCausalLM:
    """The untrained decoder."""
    return build_decoder(
        config.vocab_size, config.hidden_size, config.num_layers, config.num_heads, config.feed_forward
    )  # fmt: skip


def text_batch(tokenizer: PreTrainedTokenizerFast, texts: list[str], config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Tokens ``[bos][text] pieces [eos]`` (B, L) and targets (B, L), -100 where none is wanted."""
    pieces = tokenizer(texts, add_special_tokens=False)["input_ids"]
    rows = [torch.tensor([config.bos_token_id, config.text_token_id, *row, config.eos_token_id]) for row in pieces]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id)
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == config.pad_token_id, -100)
    targets[:, 0] = -100  # the mark is given
    return tokens[:, :-1], targets


def pick_texts(pools: Sequence[Sequence[str]], config: LanguageModelConfig, step: int) -> list[str]:
    """The texts of a step: one of four batches that were drawn together and sorted by length, to waste no padding."""
    rng = random.Random(config.seed * 1_000_003 + step // 4)
    drawn = [rng.choice(rng.choices(pools, config.shares)[0]) for _ in range(4 * config.batch_size)]
    drawn.sort(key=len)
    part = rng.sample(range(4), 4)[step % 4]
    return drawn[part * config.batch_size : (part + 1) * config.batch_size]


def train(config: LanguageModelConfig) -> Path:
    """Train the language model; its checkpoint in ``config.output`` is what the last stage starts from."""
    torch.manual_seed(config.seed)
    texts = corpus_texts(config.data)
    tokenizer = tokenizer_for(config.data, config.vocab_size)
    prompts = list(texts.prompts.values())
    decoder = new_decoder(config).to(config.device)
    pools = (prompts, texts.spoken, texts.written)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        tokens, targets = text_batch(tokenizer, pick_texts(pools, config, step), decoder.config)
        tokens, targets = tokens.to(config.device), targets.to(config.device)
        with config.autocast:
            logits = decoder(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100), {}

    seconds = fit(decoder, loss_of, config)
    logger.info("language model trained for %.1f minutes", seconds / 60)
    return config.output


def load_language_model(config: LanguageModelConfig) -> LlamaForCausalLM:
    """The averaged decoder of the checkpoint in ``config.output``."""
    decoder = new_decoder(config)
    restore_average(decoder, config.output)
    return decoder
