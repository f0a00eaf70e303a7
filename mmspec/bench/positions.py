"""Where drafts are accepted: by row of a picture, by frame of a clip, by codebook of speech."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from mmspec.bench.harness import Outcome
from mmspec.core.stats import RowStats
from mmspec.core.trace import from_draft


def accepted_shares(rows: Iterable[RowStats], group_of: Callable[[int], int]) -> list[float]:
    """Share of the tokens that were accepted drafts, by group.

    Args:
        rows: Counts of decoded rows.
        group_of: Group of the token at a position, from 0.

    Returns:
        One share a group, from group 0 to the last one that has tokens; 0 for groups without any.
    """
    accepted: Counter[int] = Counter()
    emitted: Counter[int] = Counter()
    for row in rows:
        for position, drafted in enumerate(from_draft(row.trace)):
            group = group_of(position)
            emitted[group] += 1
            accepted[group] += drafted
    return [
        accepted[group] / emitted[group] if emitted[group] else 0.0 for group in range(max(emitted, default=-1) + 1)
    ]


def accepted_by(outcomes: Mapping[str, Outcome], group_of: Callable[[int], int]) -> dict[str, list[float]]:
    """:func:`accepted_shares` of every method that drafts and decodes in raster order."""
    return {
        name: accepted_shares(outcome.stats.rows, group_of)
        for name, outcome in outcomes.items()
        if any(outcome.stats.drafted_at_depth)
    }
