"""Where the language model leaves the hypothesis, the rest of it is found again."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.speech.ctc import Posterior
from mmspec.speech.guided import make_hypothesis
from mmspec.speech.hypotheses import AcousticHypothesis, Hypothesis, TextHypothesis
from mmspec.speech.vocabulary import CharacterVocabulary, TokenizerVocabulary
from tests.oracles.speech import posterior_of, tiny_tokenizer

LABELS = CharacterVocabulary(["", *" 'abcdefghijklmnopqrstuvwxyz"])
HEARD = "press tor to tlase an outgoing call"


def acoustic(text: str = HEARD, sure: float = 0.9) -> AcousticHypothesis:
    return AcousticHypothesis(posterior_of(text, LABELS, 150, sure), LABELS)


KINDS = {"acoustic": acoustic, "text": lambda text=HEARD: TextHypothesis(text)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("written", "rest"),
    [
        ("", HEARD),
        ("p", HEARD[1:]),
        ("press", " tor to tlase an outgoing call"),
        ("press four", " to tlase an outgoing call"),  # another word
        ("press four to place", " an outgoing call"),
        ("press four to place an", " outgoing call"),
        ("press to", "r to tlase an outgoing call"),  # by its letters a part of the next word
        ("press tor to", " tlase an outgoing call"),
        ("press a tor", " to tlase an outgoing call"),  # a word put in
        ("press tor to tlase an outgoing call", ""),
        ("Press, tor", " to tlase an outgoing call"),  # case and punctuation do not count
        ("press tor ", "to tlase an outgoing call"),
    ],
)
def test_the_rest_is_found(kind: str, written: str, rest: str) -> None:
    assert KINDS[kind]().after(written) == rest


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_kept_and_may_be_taken_back(kind: str) -> None:
    row = KINDS[kind]()
    written = "press four to place an outgoing call"
    grown = [row.after(written[:end]) for end in range(len(written) + 1)]
    fresh = [KINDS[kind]().after(written[:end]) for end in range(len(written) + 1)]
    assert grown == fresh
    assert row.after("press") == KINDS[kind]().after("press")  # shorter than before
    assert row.after("") == HEARD


def test_posteriors_know_more_than_the_hypothesis() -> None:
    """The head hesitated between t and f; once f is written, the audio behind it goes on with the letter after."""
    posterior = posterior_of("press tor", LABELS, 40)
    probs = posterior.log_probs.exp()
    place = next(run for run in posterior.runs()[6:] if LABELS.text[run.label] == "t")
    probs[place.first : place.last + 1, LABELS.label("f")] = 0.9
    unsure = AcousticHypothesis(Posterior((probs / probs.sum(-1, keepdim=True)).log(), 0, 0.04), LABELS)
    assert unsure.text == "press tor"
    assert unsure.after("press f") == "or"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.text(alphabet="abc xyz,A", max_size=30))
def test_any_text_on_any_posterior_has_a_rest(seed: int, written: str) -> None:
    logits = 3 * torch.randn(25, 29, generator=torch.Generator().manual_seed(seed))
    row = make_hypothesis(Posterior(logits.log_softmax(-1), 0, 0.04), LABELS)
    assert isinstance(row, AcousticHypothesis)
    rest = row.after(written)
    assert isinstance(rest, str)
    assert len(rest) <= 25
    assert TextHypothesis(row.text).after(written) in row.text or written.strip() == ""


def test_clips_without_frames_and_without_labels() -> None:
    empty = make_hypothesis(Posterior(torch.zeros(0, 29), 0, 0.04), LABELS)
    assert (empty.text, empty.after("anything"), empty.after("")) == ("", "", "")
    silent = acoustic("")
    assert (silent.text, silent.after("made up")) == ("", "")
    other: Hypothesis = make_hypothesis(
        Posterior(torch.zeros(3, 63), 0, 0.04), TokenizerVocabulary(tiny_tokenizer(), 0)
    )
    assert isinstance(other, TextHypothesis)


def test_a_round_costs_little() -> None:
    """A minute of speech: the text grows by a token a round, and finding the rest takes well under a millisecond each."""
    text = " ".join([HEARD] * 20)
    row = AcousticHypothesis(posterior_of(text, LABELS, 2400), LABELS)
    row.after(text[:300])
    start = time.process_time()
    for end in range(301, 401):
        row.after(text[:end])
    assert (time.process_time() - start) / 100 < 5e-3
