"""First stage of the recogniser: its language model learns, from text alone, to read what a CTC head would say.

A sentence is spelt into imitated CTC probabilities, with the slips that such heads make (sounds spelt another way,
letters lost or doubled), and the language model writes down what was meant. So it learns the whole vocabulary of the
texts, not only that of the recordings (compare Renduchintala et al., 2018, "Multi-Modal Data Augmentation for
End-to-end ASR").
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.speech.tiny_asr import CTC_VOCABULARY, AudioProjector, EncoderSizes, build_decoder
from mmspec.training.asr_data import CorpusConfig, Texts, texts_of
from mmspec.training.asr_tokenizer import SPECIALS, train_tokenizer
from mmspec.training.loop import LoopConfig, fit, restore_average, step_generator

logger = logging.getLogger(__name__)

ALIKE = ("aeiouy", "ckqsx", "szc", "dt", "bp", "fv", "mn", "gj", "lr", "wu", "td", "iey", "ou", "ae", "th", "hw")
"""Letters that stand for similar sounds."""

STACK = 3
"""CTC frames of 40 ms that make one audio embedding."""


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(LoopConfig):
    """Settings of the stage; those of every loop are in :class:`LoopConfig`.

    Args:
        data: Folder of the corpus.
        vocab_size: Pieces of the tokenizer; 32 are the letters alone.
        hidden_size, num_layers, num_heads, feed_forward: Sizes of the language model.
        shares: Parts of a batch that are training prompts, sentences to be spoken, and other written text.
        slips: Largest part of the letters that are misspelt; each sentence has its own, from zero to this.
        clean_steps: Steps over which misspelling grows from nothing.
        corruption: Part of the text tokens that are replaced in the input.
    """

    data: Path
    vocab_size: int = 32
    hidden_size: int = 192
    num_layers: int = 6
    num_heads: int = 6
    feed_forward: int = 512
    shares: tuple[float, float, float] = (0.2, 0.5, 0.3)
    slips: float = 0.3
    clean_steps: int = 800
    corruption: float = 0.12
    batch_size: int = 32
    learning_rate: float = 1.5e-3
    average_decay: float = 0.995


def corpus_texts(data: Path) -> Texts:
    """The texts of the default corpus in ``data``."""
    return texts_of(CorpusConfig(data=data))


def tokenizer_for(data: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """The tokenizer, a function of the corpus."""
    texts = corpus_texts(data)
    return train_tokenizer([*texts.spoken[:20_000], *list(texts.prompts.values()) * 10], vocab_size)


def pick_texts(pools: Sequence[Sequence[str]], config: ReaderConfig, step: int) -> list[str]:
    """The texts of a step: one of four batches that were drawn together and sorted by length, to waste no padding."""
    rng = random.Random(config.seed * 1_000_003 + step // 4)
    drawn = [rng.choice(rng.choices(pools, config.shares)[0]) for _ in range(4 * config.batch_size)]
    drawn.sort(key=len)
    part = rng.sample(range(4), 4)[step % 4]
    return drawn[part * config.batch_size : (part + 1) * config.batch_size]


class Reader(nn.Module):
    """Projector and language model."""

    def __init__(self, projector: AudioProjector, decoder: LlamaForCausalLM) -> None:
        super().__init__()
        self.projector, self.decoder = projector, decoder

    def forward(self, states: Tensor, lengths: Tensor, tokens: list[Tensor]) -> Tensor:
        """Logits (sum of lengths, V) of each token of ``tokens`` (``pieces [eos]``) given states and those before."""
        audio, counts = self.projector(states, lengths)
        embed, config = self.decoder.get_input_embeddings(), self.decoder.config
        begin, mark = embed(torch.tensor([[config.bos_token_id], [config.text_token_id]], device=states.device))
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


def new_reader(config: ReaderConfig, encoder: EncoderSizes) -> Reader:
    """An untrained projector and language model."""
    projector = AudioProjector(encoder.hidden_size + len(CTC_VOCABULARY), config.hidden_size, STACK)
    sizes = (config.hidden_size, config.num_layers, config.num_heads, config.feed_forward)
    return Reader(projector, build_decoder(config.vocab_size, *sizes))


def corrupted(tokens: Tensor, rate: float, vocab_size: int, generator: torch.Generator) -> Tensor:
    """``tokens`` (n,) with some replaced by random pieces; the last one, which is no input, is kept."""
    random_pieces = torch.randint(len(SPECIALS), vocab_size, tokens.shape, generator=generator)
    chosen = torch.rand(tokens.shape, generator=generator) < rate
    chosen[-1] = False
    return torch.where(chosen, random_pieces, tokens)


def misspell(text: str, rate: float, rng: random.Random) -> str:
    """``text`` with letters replaced by similar ones, lost, added, or swapped for any, at ``rate``."""
    letters: list[str] = []
    for letter in text:
        draw = rng.random() / rate if rate else 1.0
        if draw >= 1 or (letter == " " and rng.random() < 0.7):
            letters.append(letter)
        elif draw < 0.55:
            letters.append(rng.choice(rng.choice([group for group in ALIKE if letter in group] or [letter])))
        elif draw < 0.75:
            continue
        elif draw < 0.85:
            letters += [letter, rng.choice(CTC_VOCABULARY[1:])]
        else:
            letters.append(rng.choice(CTC_VOCABULARY[1:]))
    return "".join(letters) or text


def imitate(text: str, rng: random.Random, generator: torch.Generator) -> Tensor:
    """Imitated CTC probabilities (T, C) of a spelling: a peak a letter, between blanks, never quite certain."""
    path: list[int] = [0] * rng.randint(1, 5)
    pace = rng.uniform(0.3, 1.6)
    for letter in text:
        label = CTC_VOCABULARY.index(letter)
        repeated = bool(path) and path[-1] == label
        path += [0] * max(int(rng.expovariate(1 / pace)), int(repeated))
        path += [label] * (1 if rng.random() < 0.8 else 2)
    path += [0] * rng.randint(1, 5)
    logits = torch.randn(len(path), len(CTC_VOCABULARY), generator=generator) * 1.5
    logits[range(len(path)), path] += rng.uniform(4.5, 10)
    logits[:, 0] += rng.uniform(0, 2)
    return logits.softmax(dim=-1)


def imitated_states(
    texts: list[str], slips: float, hidden_size: int, rng: random.Random, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """States (B, T, hidden_size + C) whose encoder part is zero, and their lengths (B,)."""
    rows = [imitate(misspell(text, rng.uniform(0, slips), rng), rng, generator) for text in texts]
    probabilities = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return F.pad(probabilities, (hidden_size, 0)), torch.tensor([len(row) for row in rows])


def train(config: ReaderConfig) -> Path:
    """Train projector and language model; their checkpoint is what the last stage starts from."""
    torch.manual_seed(config.seed)
    texts = corpus_texts(config.data)
    tokenizer = tokenizer_for(config.data, config.vocab_size)
    pools = (list(texts.prompts.values()), texts.spoken, texts.written)
    sizes = EncoderSizes()
    reader = new_reader(config, sizes)
    eos = reader.decoder.config.eos_token_id

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        slips = config.slips * min(1.0, step / config.clean_steps)
        picked = pick_texts(pools, config, step)
        rng, generator = random.Random(f"{config.seed}-{step}"), step_generator(config.seed, step)
        states, lengths = imitated_states(picked, slips, sizes.hidden_size, rng, generator)
        targets = [torch.tensor([*row, eos]) for row in tokenizer(picked, add_special_tokens=False)["input_ids"]]
        inputs = [corrupted(row, config.corruption, config.vocab_size, generator) for row in targets]
        with config.autocast:
            logits = reader(states, lengths, inputs)
        wanted = torch.cat(targets)
        accuracy = (logits.detach().argmax(dim=-1) == wanted).float().mean().item()
        return F.cross_entropy(logits.float(), wanted), {"accuracy": accuracy}

    seconds = fit(reader, loss_of, config)
    logger.info("reader trained for %.1f minutes", seconds / 60)
    return config.output


def load_reader(config: ReaderConfig, encoder: EncoderSizes) -> Reader:
    """The averaged reader of the checkpoint in ``config.output``."""
    reader = new_reader(config, encoder)
    restore_average(reader, config.output)
    return reader
