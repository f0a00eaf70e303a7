"""What a CTC hypothesis says comes next, given the text that the language model has written so far.

Resynchronisation: where the language model leaves the hypothesis, the rest of the hypothesis is still mostly right. Ways
to find that rest:

- :class:`AcousticHypothesis`, for character labels. The written text y is aligned with the posterior; with d_n(t), d_b(t)
  the log-probability of the best path over frames 1..t that spells y and ends in its last label or in a blank,

      d_n(t) = ln P_t(y_l) + max(d_n(t-1), d_b'(t-1), d_n'(t-1) unless y_l = y_(l-1)),   d_b(t) = ln P_t(blank) + max(d_b(t-1), d_n(t-1))

  (primes: of y without its last label), the text most plausibly ends at the t that maximises
  max(d_n(t), d_b(t)) + sum_(s>t) max_c ln P_s(c), and the greedy path behind t says what comes next.
- :class:`mmspec.speech.guided.GuidedHypothesis`, for character labels and a character model: the same, with what is
  usually written.
- :class:`TextHypothesis`, for any labels. The written text is aligned with prefixes of the hypothesis by edit distance
  (Wagner & Fischer, 1974); what follows the closest prefix comes next.

Both keep their state from call to call, so a round costs a few vector operations for each new character.

Symbols: T frames, L characters of the hypothesis.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmspec.speech.ctc import Posterior, collapse
from mmspec.speech.vocabulary import CharacterVocabulary, hypothesis_text

Array = NDArray[np.float64]
_FLOOR = -12.0  # a label that the head thinks impossible costs no more: the language model may know better
_NEVER = -1e9
_TIE = 0.1


class Hypothesis(Protocol):
    """The hypothesis of one row."""

    @property
    def text(self) -> str:
        """The likeliest text of the whole clip."""
        ...

    def after(self, written: str) -> str:
        """The most plausible continuation of ``written``, with the space that separates them, if any."""
        ...

    def branches(self, written: str, count: int) -> list[str]:
        """Continuations of ``written``, the likeliest first, whose common tree has about ``count`` characters."""
        ...


class TextHypothesis:
    """Continue by edit distance between what is written and prefixes of the hypothesis.

    Case, accents and punctuation do not count. A space pairs with a space alone, so that words are not mixed up.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._characters = [_folded(character) for character in text]
        self._spaces = np.array([character == " " for character in self._characters], dtype=bool)
        self._written = ""
        self._costs: Array = np.arange(len(text) + 1, dtype=np.float64)
        self._last_match = np.zeros(len(text) + 1, dtype=bool)

    def after(self, written: str) -> str:
        if not written.strip():
            self._reset()
            return self.text
        if not written.startswith(self._written):
            self._reset()
        for character in written[len(self._written) :]:
            self._extend(_folded(character))
        self._written = written
        # a prefix that ends with the newest character wins a tie, then the longer one: substitutions are the rule
        order = self._costs - 0.4 * self._last_match - 1e-6 * np.arange(len(self._costs))
        rest = self.text[int(order.argmin()) :]
        return rest.lstrip() if written[-1:].isspace() else rest

    def branches(self, written: str, count: int) -> list[str]:
        return [rest] if (rest := self.after(written)[:count]) else []

    def _reset(self) -> None:
        self._written = ""
        self._costs = np.arange(len(self.text) + 1, dtype=np.float64)
        self._last_match = np.zeros(len(self.text) + 1, dtype=bool)

    def _extend(self, character: str) -> None:
        """One more row of the edit distance; ``character`` is folded, empty if it does not count."""
        if not character:
            return
        same = np.array([own == character for own in self._characters], dtype=bool)
        differs = np.where(self._spaces != (character == " "), 3.0, 1.0)  # a space is never taken for a letter
        paired = self._costs[:-1] + np.where(same, 0.0, differs)
        row = np.concatenate([self._costs[:1] + 1, np.minimum(self._costs[1:] + 1, paired)])
        # characters of the hypothesis that were not written: a running minimum
        place = np.arange(len(row), dtype=np.float64)
        skipped = np.minimum.accumulate(row - place) + place
        self._last_match = np.concatenate([[False], same & (paired <= skipped[1:])])
        self._costs = skipped


def _folded(character: str) -> str:
    if character.isspace():
        return " "
    return character.casefold()[:1] if character.isalnum() or character == "'" else ""


class AcousticHypothesis:
    """Continue by aligning what is written with the posterior itself.

    Args:
        posterior: Of the clip.
        vocabulary: Its character labels.
    """

    def __init__(self, posterior: Posterior, vocabulary: CharacterVocabulary) -> None:
        self.vocabulary, self.blank = vocabulary, posterior.blank
        self._path = posterior.path()
        self.text = hypothesis_text(vocabulary.pieces(posterior.runs()))
        self._log_probs: Array = np.maximum(posterior.log_probs.double().numpy(), _FLOOR)
        frames = len(self._log_probs)
        best = self._log_probs.max(-1) if frames else np.zeros(0)
        #: sum of the best log-probabilities of all frames from t on, t = 0..T
        self._ahead: Array = np.concatenate([np.cumsum(best[::-1])[::-1], [0.0]])
        self._summed: Array = np.cumsum(self._log_probs, axis=0)
        self._labels: list[int] = []
        # entry t is about the first t frames
        self._in_label: Array = np.full(frames + 1, _NEVER)
        self._in_blank: Array = np.concatenate([[0.0], self._summed[:, self.blank]])

    def after(self, written: str) -> str:
        labels = [label for label, _ in self.vocabulary.labels(written)]
        if not labels:
            self._restart()
            return self.text
        if self._labels != labels[: len(self._labels)]:
            self._restart()
        for label in labels[len(self._labels) :]:
            self._extend(label)
        total = np.maximum(self._in_label, self._in_blank) + self._ahead
        # between equally plausible ends the last one: a head that hesitates between two letters meant one of them
        frame = int(np.flatnonzero(total >= total.max() - _TIE)[-1])
        return self._rest(frame, in_label=bool(self._in_label[frame] >= self._in_blank[frame]), written=written)

    def branches(self, written: str, count: int) -> list[str]:
        return [rest] if (rest := self.after(written)[:count]) else []

    def _restart(self) -> None:
        self._labels = []
        self._in_label = np.full(len(self._path) + 1, _NEVER)
        self._in_blank = np.concatenate([[0.0], self._summed[:, self.blank]])

    def _extend(self, label: int) -> None:
        """Best paths for the written labels and one more."""
        before = (
            self._in_blank
            if self._labels and self._labels[-1] == label
            else np.maximum(self._in_blank, self._in_label)
        )
        self._labels.append(label)
        self._in_label = self._stay(label, before)
        self._in_blank = self._stay(self.blank, self._in_label)

    def _stay(self, label: int, enter: Array) -> Array:
        """Best log-probability of being in ``label`` at frame t, entered at any frame from a path scored ``enter``.

        s(t) = P_t + max(s(t - 1), enter(t - 1)); with cumulative sums the recursion is a running maximum.
        """
        summed = np.concatenate([[0.0], self._summed[:, label]])
        entered = np.maximum.accumulate(enter[:-1] - summed[:-1])
        return np.concatenate([[_NEVER], entered + summed[1:]])

    def _rest(self, frame: int, in_label: bool, written: str) -> str:
        """Text of the greedy path from ``frame`` on, behind a path that ends ``in_label`` or in a blank."""
        path = self._path[frame:]
        if in_label and self._labels:  # frames of the last label itself add nothing
            last = self._labels[-1]
            skip = next((place for place, label in enumerate(path) if label != last), len(path))
            path = path[skip:]
        text = "".join(self.vocabulary.pieces(collapse(path, self.blank))).rstrip()
        text = "".join(c for i, c in enumerate(text) if c != " " or text[i - 1 : i] != " ")
        return text.lstrip() if written[-1:].isspace() else text


class StyledHypothesis:
    """A hypothesis of a head that knows one case, written as a verifier with both would write it.

    Args:
        inner: The hypothesis.
        sentences: Begin sentences with a capital letter.
    """

    def __init__(self, inner: Hypothesis, sentences: bool) -> None:
        self.inner, self.sentences = inner, sentences
        self.text = self._style(inner.text, "")

    def after(self, written: str) -> str:
        return self._style(self.inner.after(written), written)

    def branches(self, written: str, count: int) -> list[str]:
        return [self._style(branch, written) for branch in self.inner.branches(written, count)]

    def _style(self, tail: str, written: str) -> str:
        lower, before = tail.lower(), written.rstrip()
        if not self.sentences or (before and before[-1] not in ".?!"):
            return lower
        start = len(lower) - len(lower.lstrip())
        return lower[:start] + lower[start : start + 1].upper() + lower[start + 1 :]
