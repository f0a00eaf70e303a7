"""Subtitles from timed words: SubRip and WebVTT. A cue ends at a pause, at a segment's end, or when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmspec.speech.words import Word

FORMATS = ("srt", "vtt")
_MAX_CHARACTERS = 84  # two lines of 42, as broadcasters use
_MAX_SECONDS = 6.0
_PAUSE = 0.8
_SHORTEST = 0.3  # seconds that a cue stays


@dataclass(frozen=True)
class Cue:
    """A text with its time, in seconds."""

    start: float
    end: float
    text: str


def cues(words: Sequence[Word]) -> list[Cue]:
    """Group ``words`` to cues that do not overlap.

    Raises:
        ValueError: If a word has no time.
    """
    groups: list[list[Word]] = []
    for word in words:
        if word.start is None or word.end is None:
            raise ValueError(
                f"The word {word.text!r} has no time; subtitles need a model with a CTC head, or a CTCDrafter with a model."
            )
        if groups and _joins(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    made = []
    for place, group in enumerate(groups):
        start, end = group[0].start or 0.0, group[-1].end or 0.0
        following = groups[place + 1][0].start if place + 1 < len(groups) else None
        longer = max(end, start + _SHORTEST)
        made.append(
            Cue(
                start,
                longer if following is None else min(longer, max(end, following)),
                " ".join(w.text for w in group),
            )
        )
    return made


def _joins(group: Sequence[Word], word: Word) -> bool:
    start, end = group[0].start or 0.0, group[-1].end or 0.0
    characters = sum(len(member.text) + 1 for member in group) + len(word.text)
    return (
        (word.start or 0.0) - end < _PAUSE
        and (word.end or 0.0) - start <= _MAX_SECONDS
        and characters <= _MAX_CHARACTERS
        and group[-1].text[-1:] not in ".?!"
    )


def subtitles(words: Sequence[Word], kind: str) -> str:
    """``words`` as a subtitle file of ``kind`` ``srt`` or ``vtt``.

    Raises:
        ValueError: For an unknown kind, or words without times.
    """
    if kind not in FORMATS:
        raise ValueError(f"Unknown subtitle format {kind!r}; choose one of {', '.join(FORMATS)}.")
    comma = "," if kind == "srt" else "."
    blocks = []
    for number, cue in enumerate(cues(words), start=1):
        times = f"{timestamp(cue.start, comma)} --> {timestamp(cue.end, comma)}"
        head = f"{number}\n{times}" if kind == "srt" else times
        blocks.append(f"{head}\n{cue.text}\n")
    return "\n".join(blocks) if kind == "srt" else "\n".join(["WEBVTT\n", *blocks])


def timestamp(seconds: float, comma: str) -> str:
    """``seconds`` as hours:minutes:seconds and milliseconds behind ``comma``."""
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{comma}{rest % 1000:03d}"
