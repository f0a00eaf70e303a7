"""How right answers are: shares of exact ones, and wrong characters."""

from __future__ import annotations

from collections.abc import Sequence


def correctness(texts: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """``accuracy``, the share of ``texts`` that are right, and ``cer``, wrong characters over those of ``truths``.

    Raises:
        ValueError: If there are not as many of both, or none.
    """
    if len(texts) != len(truths) or not texts:
        raise ValueError(f"There are {len(truths)} right answers for {len(texts)} texts; both need one or more.")
    pairs = list(zip(texts, truths, strict=True))
    wrong = sum(edit_distance(text, truth) for text, truth in pairs)
    right = sum(text == truth for text, truth in pairs)
    return {"accuracy": right / len(pairs), "cer": wrong / max(1, sum(map(len, truths)))}


def edit_distance(one: str, other: str) -> int:
    """Insertions, deletions and substitutions between two strings (Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        above, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (left != right))
    return row[-1]
