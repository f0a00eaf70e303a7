"""What speech recognition returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from diffusers.utils import BaseOutput

from mmspec.core.stats import DecodeStats
from mmspec.speech.words import Word

DECISIONS = ("ctc", "drafted", "plain", "resumed", "silence", "verified")


@dataclass(frozen=True)
class TranscribedSegment:
    """A piece of a recording that was transcribed by itself.

    Attributes:
        start, end: Its place, in seconds.
        seam: How it ends: ``end`` of the recording, ``pause``, or ``forced`` where the recording did not pause; a
            forced seam may lie inside a word.
        text: Its transcript.
        decision: ``silence``: no speech; ``ctc``: the CTC hypothesis was sure enough; ``verified``: the language model
            accepted the whole hypothesis; ``resumed``: it left the hypothesis at ``resumed_at``; ``drafted``: another
            drafter helped; ``plain``: no draft.
        resumed_at: Number, from 1, of the first word that the first verification did not settle.
        confidence: 0..1, how well the text fits the audio, by the CTC head; ``None`` without one.
        tokens: New tokens of the language model, the stop token included; none where it was not asked.
        words: With their times.
    """

    start: float
    end: float
    seam: str
    text: str
    decision: str
    resumed_at: int | None
    confidence: float | None
    tokens: list[int]
    words: list[Word]

    @property
    def described(self) -> str:
        """The decision in words."""
        return f"resumed at word {self.resumed_at}" if self.decision == "resumed" else self.decision


@dataclass
class SpeechOutput(BaseOutput):
    """Transcripts of recordings.

    Attributes:
        texts: One text per recording.
        words: Words of each recording, with times in seconds.
        confidences: Of each recording, the mean of its segments' weighted by their length; ``None`` without a CTC head.
        segments: Pieces of each recording, one unless it was split.
        seconds: Measured length of each recording.
        stats: Forwards, seconds and guarantee of the call; its rows are the segments in order.
    """

    texts: list[str]
    words: list[list[Word]]
    confidences: list[float | None]
    segments: list[list[TranscribedSegment]]
    seconds: list[float]
    stats: DecodeStats

    def facts(self, number: int) -> dict[str, Any]:
        """Everything about the transcript of recording ``number``, as plain values."""
        return {
            "seconds": self.seconds[number],
            "text": self.texts[number],
            "confidence": self.confidences[number],
            "decision": self.decisions[number],
            "segments": [asdict(segment) for segment in self.segments[number]],
        }

    @property
    def decisions(self) -> list[str]:
        """How each recording was decided, in words; segments are joined by semicolons."""
        return ["; ".join(segment.described for segment in pieces) for pieces in self.segments]

    @property
    def tokens(self) -> list[list[int]]:
        """New tokens of each recording, segment after segment."""
        return [[token for segment in pieces for token in segment.tokens] for pieces in self.segments]

    @property
    def decision_counts(self) -> dict[str, int]:
        """How many segments were decided which way."""
        return dict(Counter(segment.decision for pieces in self.segments for segment in pieces))


@dataclass
class PartialTranscript(BaseOutput):
    """A transcript while it is made. Text that was given out once never changes.

    Attributes:
        text: All text so far.
        delta: What is new in it.
        seconds: How much of the recording is settled.
        finished: Whether this is all.
        output: The complete :class:`SpeechOutput` once ``finished``.
        tokens: New tokens of each segment so far, as they were decoded; the last may not show in ``text`` yet.
        stats: Figures so far, which go on changing; its rows are the segments.
    """

    text: str
    delta: str
    seconds: float
    finished: bool = False
    output: SpeechOutput | None = None
    tokens: list[list[int]] = field(default_factory=list)
    stats: DecodeStats | None = None


def join_segments(segments: list[list[TranscribedSegment]], seconds: list[float], stats: DecodeStats) -> SpeechOutput:
    """The output of recordings whose ``segments`` are done."""
    confidences = []
    for pieces in segments:
        known = [(piece.confidence, piece.end - piece.start) for piece in pieces if piece.confidence is not None]
        weight = sum(length for _, length in known)
        confidences.append(sum(c * length for c, length in known) / weight if weight else None)
    return SpeechOutput(
        texts=[" ".join(piece.text for piece in pieces if piece.text) for pieces in segments],
        words=[[word for piece in pieces for word in piece.words] for pieces in segments],
        confidences=confidences,
        segments=segments,
        seconds=seconds,
        stats=stats,
    )
