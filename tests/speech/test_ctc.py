"""Collapse, entropy, gate and alignment of CTC posteriors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mmspec.speech.ctc import Posterior, Run, align, collapse, mean_confidence
from mmspec.speech.gate import AGGREGATES, EntropyGate
from mmspec.speech.vocabulary import CharacterVocabulary, hypothesis_text
from mmspec.speech.words import timed_words
from tests.oracles.speech import posterior_of

LABELS = CharacterVocabulary(["", *" 'abcdefghijklmnopqrstuvwxyz"])


def random_posterior(frames: int, seed: int = 0, sharp: float = 3.0) -> Posterior:
    logits = sharp * torch.randn(frames, 29, generator=torch.Generator().manual_seed(seed))
    return Posterior(logits.log_softmax(-1), 0, 0.04)


def test_collapse_merges_neighbours_then_drops_blanks() -> None:
    assert [run.label for run in collapse([0, 3, 3, 0, 3, 5, 5], 0)] == [3, 3, 5]
    assert collapse([0, 3, 3, 0, 3, 5, 5], 0)[0] == Run(3, 1, 2)
    assert [run.label for run in collapse([7, 3, 3, 7, 3, 5, 5], 7)] == [3, 3, 5]
    assert collapse([0, 0, 0], 0) == []
    assert collapse([], 0) == []


def test_entropy_of_certainty_and_of_ignorance() -> None:
    certain = torch.full((4, 5), -torch.inf)
    certain[:, 2] = 0.0
    assert Posterior(certain, 0, 0.04).entropy().abs().max() < 1e-6
    flat = Posterior(torch.full((4, 5), -math.log(5)), 0, 0.04)
    assert torch.allclose(flat.entropy(), torch.full((4,), math.log(5)), atol=1e-5)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_an_empty_hypothesis_never_passes(aggregate: str) -> None:
    blank = posterior_of("", LABELS, 20)
    assert EntropyGate(3.0, aggregate).value(blank) == math.inf
    assert not EntropyGate(100.0, aggregate).accepts(blank)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_raising_the_threshold_never_accepts_fewer(aggregate: str) -> None:
    posteriors = [random_posterior(30, seed, sharp=1 + seed % 7) for seed in range(40)]
    before: set[int] = set()
    for threshold in (0.0, 0.1, 0.3, 0.7, 1.5, 3.0, 4.0):
        gate = EntropyGate(threshold, aggregate)
        accepted = {number for number, posterior in enumerate(posteriors) if gate.accepts(posterior)}
        assert before <= accepted
        before = accepted
    assert len(before) == 40


def test_aggregates_by_hand() -> None:
    path = [0, 3, 3, 0, 5, 0]
    probs = torch.full((6, 8), 1e-6)
    for frame, (label, sure) in enumerate(zip(path, [0.99, 0.9, 0.6, 0.8, 0.97, 0.99], strict=True)):
        probs[frame, 7] = 1 - sure - 6e-6
        probs[frame, label] = sure
    posterior = Posterior(probs.log(), 0, 0.04)
    e = posterior.entropy().tolist()
    expected = {
        "max": max(e), "max_run": max((e[1] + e[2]) / 2, e[4]), "mean_nonblank": (e[1] + e[2] + e[4]) / 3,
        "rate": 1 / 3, "topm": sum(sorted(e)[-3:]) / 3,
    }  # fmt: skip
    for aggregate, value in expected.items():
        assert EntropyGate(1.0, aggregate).value(posterior) == pytest.approx(value, abs=1e-5)
    assert min(e) < EntropyGate(1.0, "p95").value(posterior) <= max(e)
    normalised = EntropyGate(1.0, "max", normalised=True)
    assert normalised.value(posterior) == pytest.approx(max(e) / math.log(8), abs=1e-5)


def test_a_closed_gate_accepts_nothing_and_silence_needs_a_sure_blank() -> None:
    sure, silent = posterior_of("hello", LABELS, 30, sure=1 - 1e-9), posterior_of("", LABELS, 30, sure=0.999)
    assert EntropyGate(0.1).accepts(sure)
    assert not EntropyGate(0.0).accepts(sure)
    assert EntropyGate().is_silence(silent)
    assert not EntropyGate(empty="verify").is_silence(silent)
    assert not EntropyGate().is_silence(posterior_of("", LABELS, 30, sure=0.95))
    assert not EntropyGate().is_silence(sure)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": -1.0}, "-1"),
        ({"aggregate": "median"}, "max_run"),
        ({"empty": "skip"}, "verify"),
        ({"top": 0}, "top"),
    ],
)
def test_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(EntropyGate(), **settings)


def test_alignment_finds_every_letter() -> None:
    posterior = posterior_of("all balls", LABELS, 60)
    labels = [label for label, _ in LABELS.labels("all balls")]
    assert align(posterior, labels) == posterior.runs()
    assert hypothesis_text(LABELS.pieces(posterior.runs())) == "all balls"
    # a text that the head did not say still has a place, and double letters need a blank between
    other = align(posterior, [label for label, _ in LABELS.labels("al calls")])
    assert other is not None
    assert [run.label for run in other] == [label for label, _ in LABELS.labels("al calls")]
    assert align(posterior, []) is None
    assert align(random_posterior(3), [3, 3]) is not None
    assert align(random_posterior(2), [3, 3]) is None


def test_words_get_times_in_order_and_corrected_words_too() -> None:
    posterior = posterior_of("press tor to", LABELS, 60)
    words, confidence = timed_words("press four, to 5 go", posterior, LABELS, 10.0, 2.4)
    assert [word.text for word in words] == ["press", "four,", "to", "5", "go"]
    times = [time for word in words for time in (word.start, word.end)]
    assert all(time is not None for time in times)
    assert times == sorted(times)
    assert times[0] >= 10.0
    assert times[-1] <= 12.4 + 1e-6
    assert words[0].confidence > 0.9 > words[1].confidence
    assert 0 < confidence < 1
    assert timed_words("press", None, None, 0.0, 1.0)[0][0].start is None


def test_words_longer_than_the_clip_are_spread_over_it() -> None:
    words, confidence = timed_words("many more letters than frames", random_posterior(5), LABELS, 1.0, 0.2)
    assert (words[0].start, round(words[-1].end, 6), confidence) == (1.0, 1.2, 0.0)


def test_mean_confidence_is_geometric() -> None:
    assert mean_confidence([0.25, 1.0]) == pytest.approx(0.5)
    assert mean_confidence([]) == 0.0
