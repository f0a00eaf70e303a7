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
from dataclasses import dataclass

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
_CANDIDATES = 6  # characters of a step that may become branches
_LONGEST = 400  # characters of a continuation


@dataclass
class _State:
    """Alignment scores of a text over the frames from ``first`` on; entry i is about ``first + i`` frames."""

    first: int
    in_label: Array
    in_blank: Array
    last: int | None


@dataclass
class _Extensions:
    """A text by one more character: scores (K,) and alignments (K, T') of all, and the score of the end."""

    scores: Array
    end: float
    in_label: Array
    in_blank: Array
    first: int


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
        self.blank = posterior.blank
        self._log_probs: Array = np.maximum(posterior.log_probs.double().numpy(), _FLOOR)
        frames, labels = self._log_probs.shape
        best = self._log_probs.max(-1) if frames else np.zeros(0)
        self._ahead: Array = np.concatenate([np.cumsum(best[::-1])[::-1], [0.0]])
        self._summed: Array = np.concatenate(
            [np.zeros((1, labels)), np.cumsum(self._log_probs, axis=0)]
        ).T  # (C, T + 1)
        self._characters: str = language.config.characters
        self._labels = np.array([vocabulary.index[c] for c in self._characters], dtype=np.int64)
        self._written: list[int] = []
        self._state = self._start()
        self.text = self._greedy(self._state, "")

    def _start(self) -> _State:
        blank = self._summed[self.blank]
        return _State(0, np.full(len(blank), _NEVER), blank.copy(), None)

    def after(self, written: str) -> str:
        """The most plausible continuation of ``written``, with the space that separates them, if any."""
        return _joined(written, self._greedy(self._given(written), written))

    def branches(self, written: str, count: int) -> list[str]:
        """Continuations of ``written`` whose common tree has about ``count`` characters, the likeliest first."""
        leaves: dict[str, bool] = {}  # path to whether nothing follows it
        heap: list[tuple[float, str, _Extensions, int]] = []
        self._push(heap, 0.0, "", self._given(written), written)
        while heap and len(leaves) < count:
            cost, path, extensions, place = heapq.heappop(heap)
            leaves[path], leaves[path[:-1]] = True, False
            self._push(heap, -cost, path, self._child(extensions, place), written)
        return [joined for path, leaf in leaves.items() if leaf and (joined := _joined(written, path))]

    def _push(
        self, heap: list[tuple[float, str, _Extensions, int]], base: float, path: str, state: _State, written: str
    ) -> None:
        extensions = self._extensions(state, written + path)
        logits = np.append(extensions.scores, extensions.end) / self.spread
        logits -= logits.max()
        log_q = logits - np.log(np.exp(logits).sum())
        for place in np.argpartition(log_q[:-1], -_CANDIDATES)[-_CANDIDATES:].tolist():
            item = (-(base + float(log_q[place])), path + self._characters[place], extensions, place)
            heapq.heappush(heap, item)

    def _given(self, written: str) -> _State:
        """The state of the text that is written."""
        labels = [label for label, _ in self.vocabulary.labels(written)]
        if labels[: len(self._written)] != self._written:
            self._written, self._state = [], self._start()
        for label in labels[len(self._written) :]:
            in_label, in_blank = self._extend(self._state, np.array([label]))
            self._state = self._trimmed(in_label[0], in_blank[0], label, self._state.first)
            self._written.append(label)
        return self._state

    def _greedy(self, state: _State, written: str) -> str:
        text = ""
        while len(text) < _LONGEST:
            extensions = self._extensions(state, written + text)
            place = int(extensions.scores.argmax())
            if extensions.end >= extensions.scores[place]:
                break
            text, state = text + self._characters[place], self._child(extensions, place)
        return text.rstrip()

    def _extensions(self, state: _State, text: str) -> _Extensions:
        """What may follow ``text``."""
        law = self.weight * self.language.log_law(text)
        end = float(max(state.in_label[-1], state.in_blank[-1]) + law[-1])
        in_label, in_blank = self._extend(state, self._labels)
        scores = (np.maximum(in_label, in_blank) + self._ahead[state.first :]).max(-1) + law[:-1]
        return _Extensions(scores, end, in_label, in_blank, state.first)

    def _child(self, extensions: _Extensions, place: int) -> _State:
        label = int(self._labels[place])
        return self._trimmed(extensions.in_label[place], extensions.in_blank[place], label, extensions.first)

    def _extend(self, state: _State, labels: NDArray[np.int64]) -> tuple[Array, Array]:
        """Best paths for a text and one more of ``labels`` (K,): ending in it, and in a blank behind it (K, T')."""
        summed = self._summed[labels, state.first :]
        enter = np.broadcast_to(np.maximum(state.in_label, state.in_blank), summed.shape)
        if state.last is not None and (again := labels == state.last).any():
            enter = np.where(again[:, None], state.in_blank, enter)  # a double letter needs a blank between
        in_label = np.full(summed.shape, _NEVER)
        in_label[:, 1:] = np.maximum.accumulate(enter[:, :-1] - summed[:, :-1], axis=1) + summed[:, 1:]
        blank = self._summed[self.blank, state.first :]
        in_blank = np.full(summed.shape, _NEVER)
        in_blank[:, 1:] = np.maximum.accumulate(in_label[:, :-1] - blank[:-1], axis=1) + blank[1:]
        return in_label, in_blank

    def _trimmed(self, in_label: Array, in_blank: Array, label: int, first: int) -> _State:
        """The state of a text, without the frames in which it can hardly end."""
        ends = np.maximum(in_label, in_blank) + self._ahead[first:]
        skip = int((ends >= ends.max() - _MARGIN).argmax())
        return _State(first + skip, in_label[skip:], in_blank[skip:], label)


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
