"""Words of a transcript with their times, from the alignment of the text with the CTC posterior.

The final text is aligned, not the hypothesis: what the language model corrected is found in the audio as it is
written. Words without any label, as digits for a head that spells numbers out, lie between their neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mmspec.speech.ctc import Posterior, Run, align, mean_confidence
from mmspec.speech.vocabulary import CTCVocabulary


@dataclass(frozen=True)
class Word:
    """A word with its place in the recording, in seconds, and how sure the CTC head is of it, 0..1.

    Times and confidence are ``None`` where no CTC head heard the recording.
    """

    text: str
    start: float | None = None
    end: float | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class _Span:
    text: str
    first: int
    last: int  # character behind the word


def timed_words(
    text: str, posterior: Posterior | None, vocabulary: CTCVocabulary | None, offset: float, seconds: float
) -> tuple[list[Word], float | None]:
    """Words of ``text`` and the confidence of the whole.

    Args:
        text: Transcript of a clip.
        posterior, vocabulary: What the CTC head says about the clip, if there is one.
        offset: Where the clip begins in its recording.
        seconds: Length of the clip.
    """
    spans = [_Span(m.group(), m.start(), m.end()) for m in re.finditer(r"\S+", text)]
    if posterior is None or vocabulary is None:
        return [Word(span.text) for span in spans], None
    labels = vocabulary.labels(text)
    runs = align(posterior, [label for label, _ in labels])
    if runs is None:  # more letters than frames, or none that the head knows
        return _spread(spans, offset, seconds), 0.0 if spans else 1.0 - _spoken(posterior)
    confidences = posterior.confidences(runs)
    words: list[Word | None] = []
    for span in spans:
        inside = [i for i, (_, place) in enumerate(labels) if span.first <= place < span.last]
        words.append(_word(span, [runs[i] for i in inside], [confidences[i] for i in inside], posterior, offset))
    return _filled(words, spans, offset, seconds), mean_confidence(confidences)


def _spoken(posterior: Posterior) -> float:
    return 1.0 - posterior.blank_share()


def _word(
    span: _Span, runs: Sequence[Run], confidences: Sequence[float], posterior: Posterior, offset: float
) -> Word | None:
    if not runs:
        return None
    step = posterior.seconds_per_frame
    start, end = offset + runs[0].first * step, offset + (runs[-1].last + 1) * step
    return Word(span.text, start, end, mean_confidence(confidences))


def _filled(words: Sequence[Word | None], spans: Sequence[_Span], offset: float, seconds: float) -> list[Word]:
    """Put every word that has no time between its neighbours."""
    filled: list[Word] = []
    for place, (word, span) in enumerate(zip(words, spans, strict=True)):
        if word is None:
            before = filled[-1].end if filled and filled[-1].end is not None else offset
            later = [w.start for w in words[place + 1 :] if w is not None and w.start is not None]
            gap = next((i for i, w in enumerate(words[place:]) if w is not None), len(words) - place)
            behind = later[0] if later else offset + seconds
            word = Word(span.text, before, before + max(0.0, behind - before) / gap, 0.0)
        filled.append(word)
    return filled


def _spread(spans: Sequence[_Span], offset: float, seconds: float) -> list[Word]:
    step = seconds / max(1, len(spans))
    return [Word(span.text, offset + i * step, offset + (i + 1) * step, 0.0) for i, span in enumerate(spans)]
