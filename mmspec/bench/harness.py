"""Run methods interleaved in one process, so that whatever else the machine does slows them all alike.

Every item is decoded by every method before the next item; the order rotates from item to item, so that no method
always runs first. A warm-up of every method comes first and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from mmspec.core.stats import DecodeStats, merge_stats

T = TypeVar("T")

PARTS = ("draft", "accept", "commit")


@dataclass(frozen=True)
class Sample:
    """What one method made of one item: tokens (B, N) and the stats of the call."""

    tokens: Tensor
    stats: DecodeStats


@dataclass
class Outcome:
    """All samples of one method.

    Attributes:
        name: Name of the method.
        samples: One per item, in the order of the items.
        peak_memory: Bytes at the peak, if measured.
        bits: Bits per token of the samples under the target, if measured; ``untruncated_bits`` without top-k and top-p.
        solo_equal: Whether every row equals the same row decoded alone, if checked.
        distances: How far the set of all outputs is from plain decoding's, by name, if measured.
    """

    name: str
    samples: list[Sample] = field(default_factory=list)
    peak_memory: int | None = None
    bits: float | None = None
    untruncated_bits: float | None = None
    solo_equal: bool | None = None
    distances: dict[str, float] = field(default_factory=dict)

    @property
    def stats(self) -> DecodeStats:
        """The stats of all items, as if they were micro-batches of one call."""
        return merge_stats([sample.stats for sample in self.samples])

    @property
    def forwards(self) -> int:
        """Sequential target forwards over all items."""
        return sum(sample.stats.forwards for sample in self.samples)

    @property
    def seconds(self) -> float:
        """Wall time of the decoding loop over all items."""
        return sum(sample.stats.seconds["total"] for sample in self.samples)

    def equals(self, other: Outcome) -> bool:
        """Whether the tokens of every item are equal."""
        pairs = zip(self.samples, other.samples, strict=True)
        return all(a.tokens.shape == b.tokens.shape and bool((a.tokens == b.tokens).all()) for a, b in pairs)

    def overhead(self) -> dict[str, float]:
        """Milliseconds per round spent outside the model, by part; the prefill is not a round."""
        rounds = max(1, self.forwards - len(self.samples))
        seconds = self.stats.seconds
        parts = {part: seconds.get(part, 0.0) for part in PARTS}
        parts["other"] = seconds["total"] - seconds.get("model", 0.0) - sum(parts.values())
        return {part: 1e3 * value / rounds for part, value in parts.items()}


def run_interleaved(
    methods: Mapping[str, Callable[[T], Sample]],
    items: Sequence[T],
    on_item: Callable[[int], Any] | None = None,
) -> dict[str, Outcome]:
    """Run every method on every item.

    Args:
        methods: Name to a function that decodes one item.
        items: What to decode, at least one.
        on_item: Told the number of finished items.

    Raises:
        ValueError: If there is nothing to run.
    """
    if not methods or not items:
        raise ValueError(f"A bench needs methods and items, got {len(methods)} and {len(items)}.")
    names = list(methods)
    for name in names:
        methods[name](items[0])
    outcomes = {name: Outcome(name) for name in names}
    for number, item in enumerate(items):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            outcomes[name].samples.append(methods[name](item))
        if on_item is not None:
            on_item(number + 1)
    return outcomes
