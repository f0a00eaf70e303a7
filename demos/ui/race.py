"""Plain and speculative decoding side by side, on one machine, without one slowing the other down.

Each lane is a stream of a pipeline. Lanes take turns: the next step goes to the lane that has decoded for the shorter time
so far, by its own clock. So at any moment both show what they would show after the same number of seconds alone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec import DecodeStats

FRESH_SEEDS = 2**31


@dataclass
class Lane:
    """One way to decode a request.

    Attributes:
        name: ``plain`` or ``speculative``.
        parts: The stream of a pipeline.
        seen: Its parts so far.
    """

    name: str
    parts: Iterator[Any]
    seen: list[Any] = field(default_factory=list)

    @property
    def stats(self) -> DecodeStats:
        """Figures so far; empty before the first part."""
        return (self.seen[-1].stats if self.seen else None) or DecodeStats()

    @property
    def seconds(self) -> float:
        """Seconds of decoding so far."""
        return self.stats.seconds.get("total", 0.0)

    @property
    def output(self) -> Any:
        """The complete output of the pipeline; ``None`` before the end."""
        return self.seen[-1].output if self.finished else None

    @property
    def finished(self) -> bool:
        return bool(self.seen) and self.seen[-1].finished

    def advance(self) -> None:
        """Decode up to the next part."""
        self.seen.append(next(self.parts))

    def close(self) -> None:
        """Stop decoding; what was seen stays."""
        close = getattr(self.parts, "close", None)
        if close is not None:
            close()


def open_lanes(stream: Callable[[bool], Iterator[Any]], plain: bool) -> list[Lane]:
    """The speculative lane, and with ``plain`` one of plain decoding before it.

    Args:
        stream: Opens the stream of the request; takes ``speculate``.
    """
    lanes = [Lane("plain", stream(False))] if plain else []
    return [*lanes, Lane("speculative", stream(True))]


def race(
    lanes: Sequence[Lane],
    cancelled: Callable[[], bool] = lambda: False,
    every: float = 0.15,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Decode all ``lanes`` to their ends; yield whenever there is something to show, also at the end.

    Args:
        cancelled: Asked before every step; once true, nothing more is decoded.
        every: Least seconds between two yields before the end.
        clock: Seconds.
    """
    running, shown = list(lanes), float("-inf")
    try:
        while running and not cancelled():
            lane = min(running, key=lambda one: one.seconds)
            lane.advance()
            if lane.finished:
                running.remove(lane)
            if clock() - shown >= every or not running:
                shown = clock()
                yield
    finally:
        for lane in lanes:
            lane.close()
    if running:
        yield


def same_tokens(one: Any, other: Any) -> bool:
    """Whether two outputs of a pipeline hold the same tokens: tensors, lists of tensors, or lists of numbers."""
    mine, theirs = one.tokens, other.tokens
    if isinstance(mine, torch.Tensor):
        return torch.equal(mine, theirs)
    if mine and isinstance(mine[0], torch.Tensor):
        return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))
    return bool(mine == theirs)


def as_number(name: str, given: float | str | None) -> float | None:
    """What was written in a box, whole numbers as such; ``None`` for an empty one.

    Raises:
        ValueError: If it is no number.
    """
    if given is None or isinstance(given, (int, float)):
        return given
    text = given.strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}.") from None


def seed_of(given: float | str | None) -> int:
    """The seed of a call: the one that was ``given``, or a fresh one to be shown.

    Raises:
        ValueError: If it is no whole number.
    """
    seed = as_number("The seed", given)
    if seed is None:
        return secrets.randbelow(FRESH_SEEDS)
    if isinstance(seed, float) and not seed.is_integer():
        raise ValueError(f"The seed must be a whole number, got {given}.")
    return int(seed)


class Cancels:
    """Who has asked to stop, by session: one person's button stops no other person's work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: set[str] = set()

    def arm(self, session: str) -> None:
        """Forget what ``session`` asked before; called when its next request is made, before it waits for its turn."""
        with self._lock:
            self._asked.discard(session)

    def cancel(self, session: str) -> None:
        """Stop what ``session`` runs or waits for."""
        with self._lock:
            self._asked.add(session)

    def asked(self, session: str) -> bool:
        """Whether ``session`` wants to stop."""
        with self._lock:
            return session in self._asked
