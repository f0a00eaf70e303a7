"""Character model and guided drafts: laws by hand, spellings instead of sounds, trees of alternatives."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.speech.char_ngram import CharacterNGram
from mmspec.speech.ctc import Posterior
from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.guided import GuidedHypothesis, make_hypothesis
from mmspec.speech.hypotheses import AcousticHypothesis
from mmspec.speech.text import TextCodec
from mmspec.speech.vocabulary import CharacterVocabulary
from tests.oracles.speech import posterior_of, tiny_asr, tiny_tokenizer
from tests.pipelines.test_speech_recognition import CLIPS, HEARD, oracle

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
LABELS = CharacterVocabulary(["", *LETTERS])
TEXTS = ["press four to place an outgoing call", "press two for the previous message", "the call was placed"] * 3
LANGUAGE = CharacterNGram.fit(TEXTS, LETTERS, order=5)


def hesitant(text: str, other: str, share: float = 0.45) -> Posterior:
    """A posterior that says ``text``, but nearly as likely the letters of ``other`` where the two differ."""
    posterior = posterior_of(text, LABELS, 120, 0.98)
    probs = posterior.log_probs.exp()
    for run, letter in zip(posterior.runs(), other, strict=True):
        if LABELS.text[run.label] != letter:
            probs[run.first : run.last + 1] *= 1 - share
            probs[run.first : run.last + 1, LABELS.index[letter]] += share
    return Posterior(probs.log(), 0, 0.04)


def test_laws_by_hand() -> None:
    model = CharacterNGram.fit(["ab", "ab", "ac"], "abc", order=2)
    # 9 symbols follow anything, 4 different: a 3, b 2, c 1, end 3; behind `a`: b twice, c once
    unigram = {x: (n + 4 * 0.25) / (9 + 4) for x, n in {"a": 3, "b": 2, "c": 1, "end": 3}.items()}
    expected = [
        (2 * unigram["a"]) / 5,
        (2 + 2 * unigram["b"]) / 5,
        (1 + 2 * unigram["c"]) / 5,
        (2 * unigram["end"]) / 5,
    ]
    assert np.exp(model.log_law("a")) == pytest.approx(expected)
    assert np.exp(model.log_law("bca")) == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet=LETTERS + "Z9", max_size=12))
def test_laws_are_laws(history: str) -> None:
    law = np.exp(LANGUAGE.log_law(history))
    assert law.sum() == pytest.approx(1)
    assert (law > 0).all()


def test_saving_keeps_every_law(tmp_path: Path) -> None:
    LANGUAGE.save_pretrained(tmp_path)
    loaded = CharacterNGram.from_pretrained(tmp_path)
    for history in ("", "press f", "the", "qqq"):
        assert np.array_equal(loaded.log_law(history), LANGUAGE.log_law(history))
    pruned = CharacterNGram.fit(["abcde", "abcde", "abcdf"], LETTERS, order=5, least=2)
    assert math.exp(pruned.log_law("abcd")[LETTERS.index("e")]) > math.exp(pruned.log_law("abcd")[LETTERS.index("f")])
    with pytest.raises(ValueError, match="different"):
        CharacterNGram("aab")
    with pytest.raises(ValueError, match="too long"):
        CharacterNGram(LETTERS, 20)


def test_the_draft_is_what_is_spelt_rather_than_what_is_heard() -> None:
    posterior = hesitant("press four to plase an outgoing gall", "press four to place an outgoing call")
    assert AcousticHypothesis(posterior, LABELS).text == "press four to plase an outgoing gall"
    assert GuidedHypothesis(posterior, LABELS, LANGUAGE).text == "press four to place an outgoing call"
    assert GuidedHypothesis(posterior, LABELS, LANGUAGE, weight=0.0).text == "press four to plase an outgoing gall"


def test_the_rest_is_found_behind_any_text() -> None:
    row = GuidedHypothesis(posterior_of(TEXTS[0], LABELS, 150), LABELS, LANGUAGE)
    for written in ("", "p", "press", "press four to", "press four to place an outgoing call"):
        assert row.after(written) == TEXTS[0][len(written) :]
    assert row.after("press tour to") == TEXTS[0][len("press four to") :]
    assert row.after("Press four ") == "to place an outgoing call"
    assert row.after("press") == TEXTS[0][len("press") :]  # shorter than before


def test_alternatives_hold_what_was_nearly_heard() -> None:
    posterior = hesitant("press two", "press fwo")
    row = GuidedHypothesis(posterior, LABELS, LANGUAGE, weight=0.0)
    branches = row.branches("press", 12)
    assert branches[0].startswith(" t") or branches[0].startswith(" f")
    assert {branch[:2] for branch in branches} >= {" t", " f"}
    shared = {branch[:size] for branch in branches for size in range(1, len(branch) + 1)}
    assert len(shared) <= 12
    assert row.branches("press two", 5) == [] or all(len(b) <= 5 for b in row.branches("press two", 5))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.text(alphabet="abc xyz,A", max_size=20), st.integers(1, 20))
def test_any_text_on_any_posterior(seed: int, written: str, count: int) -> None:
    logits = 3 * torch.randn(25, 29, generator=torch.Generator().manual_seed(seed))
    row = GuidedHypothesis(Posterior(logits.log_softmax(-1), 0, 0.04), LABELS, LANGUAGE)
    assert set(row.after(written)) <= set(LETTERS)
    for branch in row.branches(written, count):
        assert 0 < len(branch) <= count


def test_a_long_pause_hides_nothing() -> None:
    """Only frames in which a text may end are kept; behind a pause there are none of them for a while."""
    parts = [posterior_of(text, LABELS, 10, 0.98).log_probs for text in ("press four ", "to place ", "a call")]
    pause = posterior_of("", LABELS, 150, 0.98).log_probs
    row = GuidedHypothesis(
        Posterior(torch.cat([parts[0], pause, parts[1], pause, parts[2], pause]), 0, 0.04), LABELS, LANGUAGE, 0.3
    )
    assert row.text == "press four to place a call"
    assert row.after("press four") == " to place a call"
    assert any(branch.startswith(" to") for branch in row.branches("press four", 8))


def test_behind_the_last_frame_the_text_alone_says_what_follows() -> None:
    row = GuidedHypothesis(posterior_of("press four", LABELS, 40), LABELS, LANGUAGE)
    assert row.after("press four to place an outgoing call and more") == ""
    assert row.branches("press four to place an outgoing ca", 6)[0] == "l"


def test_unlikely_characters_are_not_drafted() -> None:
    sure = GuidedHypothesis(posterior_of(TEXTS[0], LABELS, 150, 0.99), LABELS, LANGUAGE)
    assert sure.branches("press", 200) == [TEXTS[0][len("press") :]]


def test_only_character_labels_and_frames_are_guided() -> None:
    empty = Posterior(torch.zeros(0, 29), 0, 0.04)
    assert make_hypothesis(empty, LABELS, LANGUAGE).text == ""
    assert isinstance(make_hypothesis(posterior_of("a", LABELS, 9), LABELS), AcousticHypothesis)


def test_branches_become_a_tree_of_tokens() -> None:
    codec = TextCodec(tiny_tokenizer())
    row = GuidedHypothesis(hesitant("press two", "press fwo"), LABELS, LANGUAGE, weight=0.0)
    committed = codec.encode("press")
    branches = codec.branches(row, committed, 12)
    assert len(branches) > 1
    for tokens in branches:
        assert codec.decode([*committed, *tokens]).startswith("press ")


def test_guided_recognition_equals_plain_in_every_batch(tmp_path: Path) -> None:
    """Trees of every shape beside one another, sampled and greedy, and after a round trip to disk."""
    pipe = oracle(tiny_asr(), HEARD)
    pipe.drafter.ctc.sure = 0.6
    pipe.drafter.language = LANGUAGE
    CTCDrafter(language=LANGUAGE).save_pretrained(tmp_path)
    loaded = CTCDrafter.from_pretrained(tmp_path)
    loaded.ctc = pipe.drafter.ctc
    for temperature in (0.0, 1.0):
        call = {"max_new_tokens": 25, "temperature": temperature, "seed": 3}
        plain = pipe(CLIPS, speculate=False, **call)
        for drafter in (pipe.drafter, loaded):
            pipe.drafter = drafter
            output = pipe(CLIPS, **call)
            assert output.tokens == plain.tokens
            assert max(output.stats.widths) > 2
        assert [pipe(clip, **{**call, "seed": 3 + i}).tokens[0] for i, clip in enumerate(CLIPS)] == plain.tokens


def test_a_round_costs_little() -> None:
    text = " ".join(TEXTS[:3])
    row = GuidedHypothesis(posterior_of(text, LABELS, 400), LABELS, LANGUAGE)
    row.branches(text[:20], 16)
    start = time.process_time()
    for end in range(21, 61):
        row.branches(text[:end], 16)
    assert (time.process_time() - start) / 40 < 2e-2
