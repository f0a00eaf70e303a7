"""What the parts of ``mmspec demo`` have in common: outputs in pairs, and a table with a row for each modality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

KINDS = ("image", "asr", "tts", "vlm", "video")
"""The parts, in the order in which they run."""


@dataclass(frozen=True)
class Twice:
    """One input decoded both ways with one seed: what it was, the two outputs of the pipeline, whether they are equal."""

    name: str
    plain: Any
    speculative: Any
    equal: bool


@dataclass(frozen=True)
class Row:
    """One modality.

    Attributes:
        name: Of the modality.
        count, same: Inputs, and those of them with equal outputs.
        forwards, seconds: Plain and speculative.
        note: Why there is nothing to show, if there is not.
    """

    name: str
    count: int = 0
    same: int = 0
    forwards: tuple[int, int] = (0, 0)
    seconds: tuple[float, float] = (0.0, 0.0)
    note: str = ""

    @classmethod
    def of(cls, name: str, pairs: Sequence[Any]) -> Row:
        """The row of ``pairs``: objects with ``plain`` and ``speculative`` outputs, and ``equal``."""
        ways = [[pair.plain.stats for pair in pairs], [pair.speculative.stats for pair in pairs]]
        forwards = [sum(stats.forwards for stats in way) for way in ways]
        seconds = [sum(stats.seconds.get("total", 0.0) for stats in way) for way in ways]
        return cls(
            name, len(pairs), sum(pair.equal for pair in pairs), (forwards[0], forwards[1]), (seconds[0], seconds[1])
        )

    @property
    def equal(self) -> bool:
        """Whether no pair differs."""
        return self.same == self.count


def summary(rows: Sequence[Row]) -> Table:
    """The table at the end of the demo."""
    table = Table(title="all modalities, plain and speculative")
    table.add_column("modality")
    for column in ("equal", "plain forwards", "spec. forwards", "ratio", "plain s", "spec. s", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        if row.note:
            table.add_row(row.name, Text(row.note, style="yellow"))
            continue
        equal = Text(f"{row.same} of {row.count}", style="green" if row.equal else "red")
        table.add_row(
            row.name, equal, str(row.forwards[0]), str(row.forwards[1]), _ratio(*row.forwards),
            f"{row.seconds[0]:.2f}", f"{row.seconds[1]:.2f}", _ratio(*row.seconds),
        )  # fmt: skip
    return table


def _ratio(plain: float, speculative: float) -> str:
    return f"{plain / speculative:.2f}" if speculative else "-"
