"""Silence and noise hold no speech, sounds that move may; recordings are cut in pauses, the same way bit by bit."""

from __future__ import annotations

import pytest
import torch

from mmspec.speech.activity import PauseSplitter, holds_speech, split
from tests.oracles.speech import RATE, babble


def noise(seconds: float, colour: str, seed: int = 0) -> torch.Tensor:
    white = torch.randn(int(seconds * RATE), generator=torch.Generator().manual_seed(seed))
    spectrum = torch.fft.rfft(white)
    power = {"white": 0.0, "pink": 0.5, "brown": 1.0}[colour]
    shaped = torch.fft.irfft(spectrum / torch.arange(1, len(spectrum) + 1) ** power, n=len(white))
    return 0.1 * shaped / shaped.std()


@pytest.mark.parametrize("seconds", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("colour", ["white", "pink", "brown"])
@pytest.mark.parametrize("level", [1e-3, 1.0])
def test_noise_holds_no_speech(colour: str, seconds: float, level: float) -> None:
    assert not holds_speech(level * noise(seconds, colour), RATE)


@pytest.mark.parametrize(
    "samples",
    [torch.zeros(0), torch.zeros(1), torch.zeros(RATE * 2), torch.full((RATE,), 0.3), 1e-4 * babble(1.0),
     0.5 * (2 * torch.pi * 100 * torch.arange(RATE) / RATE).sin(), babble(0.03)],
    ids=["empty", "one sample", "zeros", "constant", "too quiet", "hum", "30 ms"],
)  # fmt: skip
def test_nothing_there(samples: torch.Tensor) -> None:
    assert not holds_speech(samples, RATE)


@pytest.mark.parametrize("seconds", [0.2, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_moving_sounds_may_be_speech(seconds: float, seed: int) -> None:
    sound = babble(seconds, seed)
    assert holds_speech(sound, RATE)
    assert holds_speech((5 * sound).clamp(-1, 1), RATE)
    assert holds_speech(sound + 0.1 * sound.std() * noise(seconds, "white") / 0.1, RATE)


def speech_with_pauses(lengths: list[float], pause: float = 0.6) -> torch.Tensor:
    parts = []
    for seed, length in enumerate(lengths):
        parts += [
            babble(length, seed) + 0.3 * (torch.arange(int(length * RATE)) / 40).sin(),
            torch.zeros(int(pause * RATE)),
        ]
    return torch.cat(parts[:-1])


def test_short_recordings_stay_whole() -> None:
    [segment] = split(babble(10.0), RATE, 16.0, 8.0)
    assert (segment.first, segment.last, segment.seam) == (0, 10 * RATE, "end")


def test_long_recordings_are_cut_in_pauses() -> None:
    sound = speech_with_pauses([5.0] * 7)
    segments = split(sound, RATE, 16.0, 8.0)
    assert [s.seam for s in segments[:-1]] == ["pause"] * (len(segments) - 1)
    assert segments[-1].seam == "end"
    for segment in segments[:-1]:
        assert not sound[segment.last - 800 : segment.last + 800].any()


def test_without_pauses_the_cut_is_forced_and_said_so() -> None:
    segments = split(babble(40.0) + 0.3 * (torch.arange(40 * RATE) / 40).sin(), RATE, 16.0, 8.0)
    assert {s.seam for s in segments[:-1]} == {"forced"}
    assert all(4 * RATE < s.last - s.first <= 16 * RATE for s in segments[:-1])


@pytest.mark.parametrize("block", [37, 1_600, 16_000, 10**6])
def test_segments_cover_everything_once_whatever_the_blocks(block: int) -> None:
    """Fault 47: nothing is lost at a seam, a last tiny piece is kept, and streaming cuts where a whole recording is cut."""
    sound = speech_with_pauses([3.0, 9.0, 20.0, 2.0, 0.1])
    whole = split(sound, RATE, 10.0, 2.0)
    assert [s.first for s in whole[1:]] == [s.last for s in whole[:-1]]
    assert (whole[0].first, whole[-1].last) == (0, len(sound))
    splitter, found = PauseSplitter(RATE, 10.0, 2.0), []
    for start in range(0, len(sound), block):
        found += splitter.feed(sound[start : start + block])
    assert [*found, *splitter.finish()] == whole


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.4, 20\.0 and 10\.0"):
        PauseSplitter(RATE, 10.0, 20.0)
