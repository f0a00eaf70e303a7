"""The speech part of ``mmspec demo``: shipped recordings, transcribed plainly and drafted by CTC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from mmspec.cli.loading import load_recogniser, samples_of
from mmspec.cli.output import say, show
from mmspec.cli.transcribe import DEFAULT_SPEECH_MODEL


@dataclass
class Heard:
    """One recording: its name, what is said in it, and the outputs of plain and drafted decoding."""

    name: str
    said: str
    plain: Any
    drafted: Any

    @property
    def speculative(self) -> Any:
        return self.drafted

    @property
    def equal(self) -> bool:
        return bool(self.plain.texts == self.drafted.texts and self.plain.tokens == self.drafted.tokens)


def transcribe_samples(count: int, device: str = "auto", model: str = DEFAULT_SPEECH_MODEL) -> bool:
    """Transcribe ``count`` of the recordings that come with ``model`` and show the texts; returns whether all are equal.

    Raises:
        ValueError: If ``model`` comes without recordings.
    """
    return show_transcripts(hear_samples(count, device, model))


def hear_samples(count: int, device: str = "auto", model: str = DEFAULT_SPEECH_MODEL) -> list[Heard]:
    """``count`` of the recordings that come with ``model``, transcribed both ways.

    Raises:
        ValueError: If ``model`` comes without recordings.
    """
    from mmspec.bench.asr import read_items

    items = read_items(samples_of(model))
    step = max(1, len(items) // count)
    pipe = load_recogniser(model, device)
    for speculate in (False, True):  # warm-up
        pipe(items[0].file, speculate=speculate)
    return [
        Heard(item.file.name, item.text, pipe(item.file, speculate=False), pipe(item.file))
        for item in items[::step][:count]
    ]


def show_transcripts(heard: list[Heard]) -> bool:
    """Print the transcripts and the verdict; returns whether all are equal."""
    show(table_of(heard))
    same, stats = sum(one.equal for one in heard), heard[0].drafted.stats
    say(
        f"{same} of {len(heard)} transcripts are equal; {stats.method} promises {stats.guarantee.value}.",
        style="green" if same == len(heard) else "red",
    )
    return same == len(heard)


def table_of(heard: list[Heard]) -> Table:
    """The table that the demo prints."""
    table = Table(title="transcripts, plain and drafted by CTC")
    for column in ("recording", "said", "heard"):
        table.add_column(column)
    for column in ("plain forwards", "drafted", "ratio", "equal"):
        table.add_column(column, justify="right")
    for one in heard:
        forwards = one.plain.stats.forwards, one.drafted.stats.forwards
        # a recording that is silent, or that a checkpoint's gate accepts, costs none
        ratio = f"{forwards[0] / forwards[1]:.2f}" if forwards[1] else "-"
        equal = "[green]yes[/]" if one.equal else "[red]no[/]"
        table.add_row(
            one.name, Text(one.said), Text(one.drafted.texts[0]), str(forwards[0]), str(forwards[1]), ratio, equal
        )
    return table
