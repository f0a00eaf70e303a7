"""Transcripts while they are made: what was given out never changes, and in the end it is what a call returns."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.pipelines.tiny_asr import TinyASRPipeline
from mmspec.speech.ctc_drafter import CTCDrafter
from tests.oracles.speech import RATE, babble, tiny_asr
from tests.oracles.speech_families import tiny_qwen, tiny_whisper

SOUND = torch.cat([piece for seed in range(3) for piece in (babble(2.5, seed), torch.zeros(int(0.6 * RATE)))])
CALL: dict[str, Any] = {"max_new_tokens": 8, "segment_seconds": 1.5}


@pytest.fixture(autouse=True)
def without_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def pipe() -> TinyASRPipeline:
    return tiny_asr()


def blocks(size: int) -> Iterator[Tensor]:
    return (SOUND[at : at + size] for at in range(0, len(SOUND), size))


@pytest.mark.parametrize("on_fail", ["resync", "resume", "restart", None])
def test_streamed_text_only_grows_and_ends_as_the_call(pipe: TinyASRPipeline, on_fail: str | None) -> None:
    pipe.drafter = CTCDrafter(on_fail) if on_fail else None
    expected = pipe((SOUND, RATE), **CALL)
    given = list(pipe.stream((SOUND, RATE), **CALL))
    for before, after in itertools.pairwise(given):
        assert after.text.startswith(before.text)
        assert after.text == before.text + after.delta
        assert after.seconds >= before.seconds
    last = given[-1]
    assert (last.finished, last.text) == (True, expected.texts[0])
    assert "".join(part.delta for part in given) == last.text
    assert last.output.tokens == expected.tokens
    assert last.output.words == expected.words
    if on_fail != "restart":  # which may throw its first words away
        assert len({part.text for part in given}) > len(expected.segments[0])  # grows inside segments, too


@pytest.mark.parametrize("size", [400, 5_000, 16_000])
def test_a_live_stream_gives_the_same(pipe: TinyASRPipeline, size: int) -> None:
    pipe.drafter = CTCDrafter()
    [*_, last] = pipe.stream(blocks(size), sampling_rate=RATE, **CALL)
    assert last.text == pipe((SOUND, RATE), **CALL).texts[0]


def test_text_comes_before_the_recording_ends(pipe: TinyASRPipeline) -> None:
    pipe.drafter = CTCDrafter()
    read = 0

    def counted() -> Iterator[Tensor]:
        nonlocal read
        for block in blocks(1_600):
            read += len(block)
            yield block

    first = next(iter(pipe.stream(counted(), sampling_rate=RATE, **CALL)))
    assert first.text
    assert read < len(SOUND) / 2


def test_a_stream_that_is_left_disturbs_nothing(pipe: TinyASRPipeline) -> None:
    """Fault 27."""
    pipe.drafter = CTCDrafter()
    expected = pipe((SOUND, RATE), **CALL).tokens
    running = pipe.stream((SOUND, RATE), **CALL)
    next(running)
    assert pipe((SOUND, RATE), **CALL).tokens == expected
    running.close()
    assert pipe((SOUND, RATE), **CALL).tokens == expected


def test_families_stream_whole_characters_without_prefaces() -> None:
    for made in (tiny_qwen(), tiny_whisper()):
        made.set_progress_bar_config(disable=True)
        given = list(made.stream((SOUND[: 2 * RATE], RATE), max_new_tokens=10, segment_seconds=1.0))
        assert given[-1].text == made((SOUND[: 2 * RATE], RATE), max_new_tokens=10, segment_seconds=1.0).texts[0]
        assert not any("\ufffd" in part.text for part in given)


def test_bad_streams_are_refused(pipe: TinyASRPipeline) -> None:
    with pytest.raises(ValueError, match="16000"):
        next(pipe.stream(blocks(400), sampling_rate=8_000, **CALL))
    with pytest.raises(TypeError, match="speed"):
        next(pipe.stream((SOUND, RATE), speed=2))
    with pytest.raises(ValueError, match="finite"):
        list(pipe.stream(iter([torch.full((RATE,), float("nan"))]), sampling_rate=RATE))
    [silent] = pipe.stream((torch.zeros(RATE), RATE), segment_seconds=1.5)
    assert (silent.text, silent.finished, silent.output.decisions) == ("", True, ["silence"])


@pytest.mark.parametrize(("hears", "expected"), [(3.0, 1.5), (16.0, 5.0)])
def test_by_default_segments_are_shorter_than_what_the_model_hears(
    pipe: TinyASRPipeline, monkeypatch: pytest.MonkeyPatch, hears: float, expected: float
) -> None:
    """The embedded recogniser hears five seconds at once: there a default of five was refused."""
    pipe.drafter = CTCDrafter()
    monkeypatch.setattr(pipe.adapter, "max_seconds", hears)
    [*_, last] = pipe.stream((SOUND, RATE), max_new_tokens=8)
    assert last.text == pipe((SOUND, RATE), max_new_tokens=8, segment_seconds=expected).texts[0]


def test_parts_carry_tokens_and_their_origin(pipe: TinyASRPipeline) -> None:
    pipe.drafter = CTCDrafter()
    for part in pipe.stream((SOUND, RATE), **CALL):
        rows = [row for row in part.stats.rows if row.trace]
        emitted = [sum(one.emitted for one in row.trace) for row in rows]
        assert emitted == [len(tokens) for tokens in part.tokens if tokens]
    assert part.tokens == [segment.tokens for segment in part.output.segments[0]]
