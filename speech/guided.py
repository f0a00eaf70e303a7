"""A CTC posterior read together with a character model: what the language model will write, rather than what was heard.

Shallow fusion (Hannun et al., 2014), one character at a time. For a text y with the alignment scores d_n(t), d_b(t) of
:mod:`mmspec.speech.hypotheses`,

    score(y) = max_t [ max(d_n(t), d_b(t)) + sum_(s>t) max_c ln P_s(c) ] + w * sum_l ln p(y_l | y_<l)

The likeliest extensions of a text are those with the largest score, the end included, whose audio score has no frames
left: max(d_n(T), d_b(T)). Extended by the best one each time this is a hypothesis; extended wherever the product of the
extensions' probabilities, softmax(score / spread), is largest, it is a tree of alternatives (as EAGLE-2 grows its own,
Li et al., 2024). The written text is always taken as given, so a correction changes what is expected behind it.

Symbols: T frames, K characters.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmspec.speech.char_ngram import CharacterNGram
from mmspec.speech.ctc import Posterior
from mmspec.speech.hypotheses import AcousticHypothesis, Hypothesis, TextHypothesis
from mmspec.speech.vocabulary import CharacterVocabulary, CTCVocabulary, hypothesis_text

Array = NDArray[np.float64]
_FLOOR = -12.0
_NEVER = -1e9
_MARGIN = 15.0  # ends of a text that are this many nats behind its best one are forgotten
_LONGEST = 400  # characters of a continuation
_COSTLY = -math.log(0.04)  # a character that is less likely to be written than this makes a draft dearer, not better
_FRINGE = -math.log(0.055)  # behind one that is less likely than this hardly any is likely enough
_REACH = 16  # frames behind those where a text may end, in which the next character is looked for at first


@dataclass
class _State:
    """Alignment scores of a text over the frames where it may end: entry i is about ``first + i`` frames.

    ``best`` is the larger of d_n and d_b, ``in_blank`` is d_b.
    """

    first: int
    best: Array
    in_blank: Array
    last: int | None


class GuidedHypothesis:
    """Continue a text by posterior and character model.

    Args:
        posterior: Of the clip.
        vocabulary: Its character labels.
        language: The character model; its characters are those of the labels.
        weight: What it counts.
        spread: Temperature of the extensions' probabilities.
    """

    def __init__(
        self,
        posterior: Posterior,
        vocabulary: CharacterVocabulary,
        language: CharacterNGram,
        weight: float = 1.0,
        spread: float = 1.7,
    ) -> None:
        self.vocabulary, self.language = vocabulary, language
        self.weight, self.spread = weight, spread
        self._characters: str = language.config.characters
        self._places = {vocabulary.index[character]: place for place, character in enumerate(self._characters)}
        log_probs: Array = np.maximum(posterior.log_probs.double().numpy(), _FLOOR)
        self._ahead: Array = np.append(np.cumsum(log_probs.max(-1)[::-1])[::-1], 0.0)  # (T + 1,)
        summed: Array = np.concatenate([np.zeros((1, log_probs.shape[1])), np.cumsum(log_probs, axis=0)])
        self._blank: Array = summed[:, posterior.blank].copy()  # (T + 1,)
        self._summed: Array = summed[:, list(self._places)].T.copy()  # (K, T + 1)
        #: score of a character in frame t and the best labels behind it
        self._from: Array = log_probs[:, list(self._places)] + self._ahead[1:, None]  # (T, K)
        self._written: list[int] = []
        self._state = self._start()

    @cached_property
    def text(self) -> str:
        """The likeliest text of the clip."""
        return self._greedy(self._start(), "")

    def _start(self) -> _State:
        return self._trimmed(0, self._blank, self._blank, None)[0]

    def after(self, written: str) -> str:
        """The most plausible continuation of ``written``, with the space that separates them, if any."""
        return _joined(written, self._greedy(self._given(written), written))

    def branches(self, written: str, count: int) -> list[str]:
        """Continuations of ``written`` whose common tree has about ``count`` characters, the likeliest first."""
        leaves: dict[str, bool] = {}  # path to whether nothing follows it
        heap: list[tuple[float, str, _State, int]] = []
        self._push(heap, 0.0, "", self._given(written), written)
        while heap and len(leaves) < count:
            cost, path, state, place = heapq.heappop(heap)
            leaves[path], leaves[path[:-1]] = True, False
            if cost < _FRINGE and len(leaves) < count:
                self._push(heap, -cost, path, self._extended(state, place), written)
        return [joined for path, leaf in leaves.items() if leaf and (joined := _joined(written, path))]

    def _push(
        self, heap: list[tuple[float, str, _State, int]], base: float, path: str, state: _State, written: str
    ) -> None:
        """Add the likeliest extensions of ``path``, whose log-probability is ``base``."""
        scores, end = self._extensions(state, written + path)
        scores, end = scores / self.spread, end / self.spread
        most = max(float(scores.max()), end)
        scores += base - most - math.log(float(np.exp(scores - most).sum()) + math.exp(end - most))
        likely = np.flatnonzero(scores > -_COSTLY).tolist() or ([] if path else [int(scores.argmax())])
        for place in likely:
            heapq.heappush(heap, (-float(scores[place]), path + self._characters[place], state, place))

    def _given(self, written: str) -> _State:
        """The state of the text that is written."""
        labels = (label for label, _ in self.vocabulary.labels(written))
        places = [self._places[label] for label in labels if label in self._places]
        if places[: len(self._written)] != self._written:
            self._written, self._state = [], self._start()
        for place in places[len(self._written) :]:
            self._state = self._extended(self._state, place)
            self._written.append(place)
        return self._state

    def _greedy(self, state: _State, written: str) -> str:
        text = ""
        while len(text) < _LONGEST:
            scores, end = self._extensions(state, written + text)
            place = int(scores.argmax())
            if end >= scores[place]:
                break
            text, state = text + self._characters[place], self._extended(state, place)
        return text.rstrip()

    def _extensions(self, state: _State, text: str) -> tuple[Array, float]:
        """Scores of the characters (K,) that may follow ``text``, and of its end.

        A path that stays in a label, or in the blank behind it, never gains on the best labels, so the first frame of a
        character decides its score.
        """
        law = self.weight * self.language.log_law(text)
        best, end = state.best, _NEVER
        if state.first + len(best) == len(self._ahead):  # the text may take all frames
            end, best = float(best[-1] + law[-1]), best[:-1]
        if not len(best):  # no frame is left, so only the text says what may follow
            return law[:-1] + (float(state.best[-1]) - _MARGIN), end
        ahead = self._from[state.first : state.first + len(best)]
        scores = (best[:, None] + ahead).max(0)
        if state.last is not None:  # a double letter needs a blank between
            scores[state.last] = (state.in_blank[: len(best)] + ahead[:, state.last]).max()
        return scores + law[:-1], end

    def _extended(self, state: _State, place: int) -> _State:
        """The state of a text and the character at ``place``."""
        enter = state.in_blank if place == state.last else state.best
        first, size, reach = state.first, len(enter), _REACH
        frames = len(self._ahead)
        if first + 1 == frames:  # no frame is left
            return _State(first, enter, enter, place)
        entered = np.maximum.accumulate(enter - self._summed[place, first : first + size])
        while True:
            stop = min(first + size + reach, frames)
            in_label = self._summed[place, first + 1 : stop].copy()
            in_label[:size] += entered[: len(in_label)]
            in_label[size:] += entered[-1]
            blank = self._blank[first + 1 : stop]
            in_blank = np.empty_like(in_label)
            in_blank[0] = _NEVER
            np.maximum.accumulate(in_label[:-1] - blank[:-1], out=in_blank[1:])
            in_blank += blank
            made, cut = self._trimmed(first + 1, np.maximum(in_label, in_blank), in_blank, place)
            if stop == frames or not cut:
                return made
            reach *= 2

    def _trimmed(self, first: int, best: Array, in_blank: Array, last: int | None) -> tuple[_State, bool]:
        """The state of a text in the frames where it may well end, and whether it may also end behind the last one."""
        ends = best + self._ahead[first : first + len(best)]
        likely = ends >= ends.max() - _MARGIN
        start, stop = int(likely.argmax()), len(ends) - int(likely[::-1].argmax())
        return _State(first + start, best[start:stop], in_blank[start:stop], last), stop == len(ends)


def _joined(written: str, tail: str) -> str:
    return tail.lstrip() if not written.strip() or written[-1:].isspace() else tail


def make_hypothesis(
    posterior: Posterior, vocabulary: CTCVocabulary, language: CharacterNGram | None = None, weight: float = 1.0
) -> Hypothesis:
    """The hypothesis of ``posterior``: guided or acoustic for character labels, by text for all others."""
    if not isinstance(vocabulary, CharacterVocabulary):
        return TextHypothesis(hypothesis_text(vocabulary.pieces(posterior.runs())))
    if language is None or not posterior.num_frames:
        return AcousticHypothesis(posterior, vocabulary)
    return GuidedHypothesis(posterior, vocabulary, language, weight)
