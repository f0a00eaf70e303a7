"""What happened to the drafts of one row, round by round: the data behind a heat map of accepted and rejected tokens.

A round that drafted d tokens from place p on, of which a were accepted, emits the a accepted tokens and one that the
target drew itself. Of the drafted ones, those for the places p + a .. p + d - 1 were rejected; the same places may be
drafted again in the next rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Round(NamedTuple):
    """One forward of the target, as one row saw it.

    Attributes:
        drafted: Draft tokens that were judged, along the deepest path of the draft.
        accepted: How many of them were accepted and emitted.
        emitted: Tokens that became final: the accepted ones and, unless the row ended within them, the target's own.
    """

    drafted: int
    accepted: int
    emitted: int


def from_draft(trace: Sequence[Round]) -> list[bool]:
    """For each emitted token in order, whether it was drafted; ``False`` where the target drew it itself."""
    return [place < one.accepted for one in trace for place in range(one.emitted)]


def rejections(trace: Sequence[Round], length: int) -> list[int]:
    """How many draft tokens were rejected at each of the first ``length`` places, while the row was decoded."""
    counts, first = [0] * length, 0
    for one in trace:
        for place in range(first + one.accepted, min(first + one.drafted, length)):
            counts[place] += 1
        first += one.emitted
    return counts
