"""Captions for the emoji model: the mix of what a sample is conditioned on, the tokenizer, and LlamaGen's layout."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.training.emoji import (
    NAME_AND_STYLE,
    NAME_CLASS_STYLE,
    NAME_ONLY,
    STYLE_AND_CLASS,
    STYLES,
    caption,
    class_of_names,
    plain_names,
)

PAD, END = "<pad>", "</s>"

CAPTION_KINDS = {NAME_AND_STYLE: 0.44, NAME_ONLY: 0.24, NAME_CLASS_STYLE: 0.09, STYLE_AND_CLASS: 0.05}
CLASS_SHARE, NULL_CLASS_SHARE = 0.08, 0.02
"""The rest of all samples, 8 %, see the null caption under the mask of a caption they would have had."""


@dataclass(frozen=True)
class Condition:
    """What one sample is conditioned on: ``text`` (dropped, if ``null``) or a class id, -1 for none."""

    text: str = ""
    null: bool = False
    label: int = -1


def draw_condition(name: str, label: int, style: str, classes: tuple[str, ...], rng: random.Random) -> Condition:
    """Draw the condition of a sample: captions in the shares of :data:`CAPTION_KINDS`, classes, or nothing."""
    point = rng.random()
    if point < CLASS_SHARE:
        return Condition(label=label)
    if point < CLASS_SHARE + NULL_CLASS_SHARE:
        return Condition(label=len(classes))
    null = point > CLASS_SHARE + NULL_CLASS_SHARE + sum(CAPTION_KINDS.values())
    kinds = list(CAPTION_KINDS)
    kind = rng.choices(kinds, weights=[CAPTION_KINDS[k] for k in kinds])[0]
    return Condition(text=caption(kind, name, classes[label], style, rng), null=null)


def all_captions(classes: tuple[str, ...]) -> Iterator[str]:
    """Every caption that training can draw."""
    for name, label in class_of_names(classes).items():
        for plain in plain_names(name):
            for style in STYLES:
                for kind in CAPTION_KINDS:
                    for template in dict.fromkeys(kind):
                        yield template.format(name=plain, label=classes[label], style=style)


def train_tokenizer(classes: tuple[str, ...], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the captions of ``classes``, see :func:`train_bpe`."""
    return train_bpe(all_captions(classes), vocab_size, max_length)


def train_bpe(corpus: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over captions: any text encodes, case and punctuation do not matter.

    Args:
        corpus: The captions.
        vocab_size: Number of pieces, at least 258 (all bytes, padding and the end).
        max_length: Tokens a caption is cut to, the end token included.

    Raises:
        ValueError: If ``vocab_size`` is too small for the bytes.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 2:
        raise ValueError(f"`vocab_size` is {vocab_size}; all bytes and two special pieces need {len(alphabet) + 2}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[\s,.;:!?_\-]+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[PAD, END], initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=max_length,
        padding_side="right",
        truncation_side="right",
    )


def tokenize(tokenizer: PreTrainedTokenizerFast, texts: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Right-padded token ids and their mask, both (R, T), T = ``length``."""
    tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    return tokens.input_ids, tokens.attention_mask


def prefix_mask(condition_mask: Tensor, num_tokens: int) -> Tensor:
    """Attention over the condition and ``num_tokens`` image tokens.

    Causal; masked condition keys are removed; every position sees itself, so no row is empty.

    Args:
        condition_mask: Boolean mask of the condition slots (R, T).
        num_tokens: Image tokens N that follow.

    Returns:
        Boolean mask (R, 1, T + N, T + N).
    """
    rows, length = condition_mask.shape
    size = length + num_tokens
    keys = torch.cat([condition_mask, condition_mask.new_ones(rows, num_tokens)], dim=1)
    causal = torch.ones(size, size, dtype=torch.bool, device=keys.device).tril()
    diagonal = torch.eye(size, dtype=torch.bool, device=keys.device)
    return ((causal & keys[:, None]) | diagonal)[:, None]
