"""Lanes take turns by their own clocks, seeds are shown, and cancelling stops one session only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from demos.ui.race import Cancels, Lane, as_number, open_lanes, race, same_tokens, seed_of
from mmspec import DecodeStats


@dataclass
class Part:
    stats: DecodeStats
    finished: bool = False
    output: Any = None


def steps(seconds: float, count: int) -> Iterator[Part]:
    """A stream of ``count`` parts, ``seconds`` of decoding each."""
    for number in range(1, count + 1):
        yield Part(DecodeStats(seconds={"total": seconds * number}), number == count, f"output of {count}")


def test_lanes_keep_level_by_their_own_seconds() -> None:
    slow, fast = Lane("plain", steps(3.0, 10)), Lane("speculative", steps(1.0, 10))
    apart = []
    for _ in race([slow, fast], every=0):
        if not fast.finished:
            apart.append(abs(slow.seconds - fast.seconds))
    assert max(apart) <= 3.0
    assert (slow.output, fast.output) == ("output of 10", "output of 10")
    assert (slow.seconds, fast.seconds) == (30.0, 10.0)


def test_a_race_shows_as_often_as_it_may_and_always_the_end() -> None:
    now = iter(range(100))
    shown = list(race([Lane("speculative", steps(1.0, 20))], every=5, clock=lambda: next(now)))
    assert 3 <= len(shown) <= 8
    quiet = Lane("speculative", steps(1.0, 4))
    assert len(list(race([quiet], every=1e9))) == 2  # the first part and the end
    assert quiet.finished


def test_nothing_is_decoded_after_a_cancel() -> None:
    lane = Lane("speculative", steps(1.0, 10))
    for _ in race([lane], lambda: len(lane.seen) == 3, every=0):
        pass
    assert len(lane.seen) == 3
    assert not lane.finished
    with pytest.raises(StopIteration):  # the stream was closed
        next(lane.parts)


def test_leaving_a_race_closes_its_streams() -> None:
    lane = Lane("speculative", steps(1.0, 10))
    running = race([lane], every=0)
    next(running)
    running.close()
    with pytest.raises(StopIteration):
        next(lane.parts)


def test_cancelled_before_it_began_decodes_nothing() -> None:
    lane = Lane("speculative", steps(1.0, 10))
    assert len(list(race([lane], lambda: True))) == 1
    assert lane.seen == []


def test_one_session_cancels_no_other() -> None:
    cancels = Cancels()
    cancels.cancel("a")
    assert (cancels.asked("a"), cancels.asked("b")) == (True, False)
    cancels.arm("a")
    assert not cancels.asked("a")


def test_lanes_of_a_request() -> None:
    opened: list[bool] = []

    def stream(speculate: bool) -> Iterator[Any]:
        opened.append(speculate)
        return iter(())

    assert [lane.name for lane in open_lanes(stream, plain=True)] == ["plain", "speculative"]
    assert [lane.name for lane in open_lanes(stream, plain=False)] == ["speculative"]
    assert opened == [False, True, True]


def test_seeds() -> None:
    assert seed_of(7) == 7
    assert seed_of(7.0) == 7
    assert seed_of(0) == 0
    assert len({seed_of(None) for _ in range(20)}) > 15
    assert seed_of(" 7 ") == 7
    assert seed_of(str(2**62 + 1)) == 2**62 + 1
    assert seed_of("") != seed_of("  ")
    with pytest.raises(ValueError, match=r"7\.5"):
        seed_of("7.5")
    with pytest.raises(ValueError, match="seven"):
        seed_of("seven")


def test_numbers_of_boxes() -> None:
    read = [as_number("it", text) for text in ("", " ", None, "5", "-3", "0.5", "1e-3", 4)]
    assert read == [None, None, None, 5, -3, 0.5, 0.001, 4]
    assert [type(value) for value in read[3:6]] == [int, int, float]
    with pytest.raises(ValueError, match="it must be a number, got 'x'"):
        as_number("it", "x")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.tensor([[1, 2]]), torch.tensor([[1, 2]]), True),
        (torch.tensor([[1, 2]]), torch.tensor([[1, 3]]), False),
        (torch.tensor([[1, 2]]), torch.tensor([[1, 2, 3]]), False),
        ([torch.tensor([1])], [torch.tensor([1])], True),
        ([torch.tensor([1])], [torch.tensor([2])], False),
        ([torch.tensor([1])], [torch.tensor([1]), torch.tensor([1])], False),
        ([[1, 2], []], [[1, 2], []], True),
        ([[1, 2]], [[1]], False),
        ([], [], True),
    ],
)
def test_same_tokens(one: Any, other: Any, equal: bool) -> None:
    assert same_tokens(SimpleNamespace(tokens=one), SimpleNamespace(tokens=other)) is equal
