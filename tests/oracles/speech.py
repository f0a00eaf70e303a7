"""Tiny recognisers of the real classes, their tokenizers, sounds that a test can make, and a CTC head that knows the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.pipelines.tiny_asr import TinyASRPipeline
from mmspec.speech.ctc import Posterior
from mmspec.speech.tiny_asr import TinyAsrModel
from mmspec.speech.vocabulary import CharacterVocabulary

RATE = 16_000
LETTERS = "abcdefghijklmnopqrstuvwxyz'"
MERGES = [
    ("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("i", "n"), ("▁", "a"), ("e", "r"), ("o", "n"), ("▁", "s"), ("r", "e"),
    ("▁", "w"), ("a", "n"), ("e", "n"), ("▁", "c"), ("o", "u"), ("▁", "b"), ("i", "s"), ("a", "t"), ("▁", "f"),
    ("▁", "p"), ("o", "r"), ("e", "s"), ("▁", "m"), ("e", "d"), ("i", "t"), ("▁", "d"), ("in", "g"), ("▁a", "n"),
    ("▁", "h"), ("▁f", "ou"), ("▁fou", "r"), ("▁", "o"),
]  # fmt: skip
SPECIAL = ["<pad>", "<s>", "</s>", "<text>"]
VOCAB_SIZE = len(SPECIAL) + 1 + len(LETTERS) + len(MERGES)


def tiny_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A SentencePiece-like BPE of letters and a few pieces; ``extra`` special tokens come last."""
    pieces = [*SPECIAL, "▁", *LETTERS, *(a + b for a, b in MERGES)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(list(extra))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=["<text>", *extra],
    )  # fmt: skip


def tiny_asr(seed: int = 0, **changes: Any) -> TinyASRPipeline:
    """The embedded recogniser with random weights."""
    model = TinyAsrModel.tiny(seed, VOCAB_SIZE)
    pipe = TinyASRPipeline(
        model.encoder, model.projector, model.decoder, tiny_tokenizer(), model.feature_extractor, **changes
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def babble(seconds: float, seed: int = 0, rate: int = RATE) -> Tensor:
    """Speech-like sound: a tone whose pitch and loudness move from syllable to syllable."""
    generator = torch.Generator().manual_seed(seed)
    count = int(seconds * rate)
    knots = max(4, int(seconds * 8))
    control = torch.rand(2, knots, generator=generator)
    pitch, level = torch.nn.functional.interpolate(control[None], size=count, mode="linear", align_corners=True)[0]
    phase = (2 * torch.pi * (120 + 900 * pitch) / rate).cumsum(0)
    harmonics = phase.sin() + 0.5 * (3 * phase).sin() + 0.25 * (7 * phase).sin()
    return 0.3 * level.square() * harmonics + 0.002 * torch.randn(count, generator=generator)


def posterior_of(text: str, labels: CharacterVocabulary, frames: int, sure: float = 0.95, seed: int = 0) -> Posterior:
    """A posterior whose greedy hypothesis is ``text``: every character on two frames, blanks between."""
    generator = torch.Generator().manual_seed(seed)
    path = [labels.blank]
    for label, _ in labels.labels(text):
        path += [label, label, labels.blank]
    path += [labels.blank] * max(0, frames - len(path))
    size = len(labels.text)
    probs = torch.rand(len(path), size, generator=generator)
    probs[torch.arange(len(path)), path] = 0
    probs = (1 - sure) * probs / probs.sum(-1, keepdim=True)
    probs[torch.arange(len(path)), path] = sure
    return Posterior(probs.log(), labels.blank, 0.04)


class OracleCTC:
    """A CTC head that looks the text of a clip up by its number of samples; others are empty."""

    sampling_rate = RATE

    def __init__(self, texts: Mapping[int, str], labels: str = " '" + LETTERS[:-1], sure: float = 0.95) -> None:
        self.texts, self.sure = dict(texts), sure
        self.vocabulary = CharacterVocabulary(["", *labels], blank=0)

    def posterior(self, samples: Tensor) -> Posterior:
        return posterior_of(self.texts.get(len(samples), ""), self.vocabulary, len(samples) // 640, self.sure)
