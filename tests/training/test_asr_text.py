"""Texts of the recogniser: what is said, what is held out, and how it is misspelt."""

from __future__ import annotations

import random
from itertools import pairwise

import jiwer
import pytest
import torch

from mmspec.speech.tiny_asr import CTC_VOCABULARY
from mmspec.training.asr_data import alike, hold_out, unlike
from mmspec.training.asr_reader import imitate, imitated_states, misspell
from mmspec.training.asr_sets import sequence_texts
from mmspec.training.asr_text import ONES, Walker, normalise, number_words, phrase, sequence
from mmspec.training.asr_tokenizer import SPECIALS, train_tokenizer


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Press 1, or # to exit.", "press one or pound to exit"),
        ("Dial 500 or 8500 now (tone)", "dial five hundred or eight five zero zero now"),
        ("at [@] 7 A.M.", "at seven a m"),
        ("www.asterisk.org", "w w w dot asterisk dot org"),
        ("I’m the PBX's  O'Clock", "i'm the pbx's o'clock"),
        ("fourtieth <beep>", "fortieth"),
        ("Café", "cafe"),
    ],
)
def test_texts_are_written_as_said(written: str, said: str) -> None:
    assert normalise(written) == said


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "zero"), (13, "thirteen"), (40, "forty"), (99, "ninety nine"), (100, "one hundred"),
     (512, "five hundred twelve"), (70_019, "seventy thousand nineteen")],
)  # fmt: skip
def test_numbers_in_words(value: int, words: str) -> None:
    assert number_words(value) == words


def test_generated_texts_are_normalised_and_repeatable() -> None:
    for make in (phrase, sequence):
        texts = [make(random.Random(seed)) for seed in range(300)]
        assert texts == [normalise(text) for text in texts]
        assert texts == [make(random.Random(seed)) for seed in range(300)]
        assert len(set(texts)) > 200


def test_walks_use_known_neighbours_only() -> None:
    walker, rng = Walker(["press one now", "press two later", "one for all"]), random.Random(0)
    pairs = {tuple(p) for t in ("press one now", "press two later", "one for all") for p in pairwise(t.split())}
    walks = [walker.phrase(rng).split() for _ in range(200)]
    assert all(pair in pairs for walk in walks for pair in pairwise(walk))
    assert any(walk == ["press", "one", "for", "all"] for walk in walks)  # crossed over


def test_nothing_that_resembles_a_held_out_sentence_stays() -> None:
    prompts = {
        "a": "please enter your new password",
        "b": "please enter your new password now",
        "c": "hello please enter your new password followed by pound",
        "d": "the conference is locked and full",
        "e": "goodbye",
        "f": "an entirely different sentence here",
    }
    for seed in range(10):
        held = hold_out(prompts, 1, random.Random(seed))
        kept = {name: text for name, text in prompts.items() if name not in held}
        judged = unlike(held, kept)
        assert judged
        assert "e" not in held
        assert not any(alike(text, other) for text in judged.values() for other in kept.values())
    assert unlike({"a": prompts["a"]}, {"b": prompts["b"]}) == {}
    assert not alike(prompts["c"], prompts["a"])  # a part of a held-out sentence may stay


def test_sequences_are_repeatable_and_said_in_known_words() -> None:
    words = [*ONES, "oh"]
    texts = sequence_texts(words)
    assert texts == sequence_texts(reversed(words))
    assert len(set(texts)) == len(texts) == 60
    assert all(set(text.split()) <= set(words) and len(text.split()) > 3 for text in texts)


def test_tokenizer_keeps_texts() -> None:
    tokenizer = train_tokenizer(["please enter your number"], 32)
    assert len(tokenizer) == 32
    for text in ("i'm here", "w w w dot", "zyx"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(text) + 1
        assert min(ids) >= len(SPECIALS)


def read_back(probabilities: torch.Tensor) -> str:
    labels = torch.unique_consecutive(probabilities.argmax(-1)).tolist()
    return "".join(CTC_VOCABULARY[label] for label in labels if label)


@pytest.mark.parametrize("text", ["hello all", "see eel", "i'm"])
def test_an_imitated_spelling_reads_as_the_text(text: str) -> None:
    rates = [
        jiwer.cer(text, read_back(imitate(text, random.Random(s), torch.Generator().manual_seed(s))))
        for s in range(60)
    ]
    assert sum(rates) / len(rates) < 0.35
    assert sorted(rates)[15] == 0  # a quarter of them exactly


def test_misspelling_grows_with_its_rate() -> None:
    text = "please enter your agent number followed by the pound key"
    assert misspell(text, 0.0, random.Random(0)) == text
    rates = [
        sum(jiwer.cer(text, misspell(text, rate, random.Random(s))) for s in range(50)) for rate in (0.05, 0.15, 0.3)
    ]
    assert 0 < rates[0] < rates[1] < rates[2]


def test_imitated_states_have_no_encoder_part() -> None:
    states, lengths = imitated_states(["ab", "hello"], 0.2, 8, random.Random(0), torch.Generator().manual_seed(0))
    assert states.shape == (2, int(lengths.max()), 8 + len(CTC_VOCABULARY))
    assert not states[..., :8].any()
    torch.testing.assert_close(states[0, : lengths[0], 8:].sum(-1), torch.ones(int(lengths[0])))
