"""From CTC labels to text and back, for any label set: characters, or pieces of a tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

from mmspec.speech.ctc import Run


class CTCVocabulary(Protocol):
    """What the labels of a CTC head mean."""

    blank: int
    cased: bool
    """Whether text may hold capital letters."""
    punctuated: bool
    """Whether text may hold sentence punctuation."""
    characters: bool
    """Whether each label is one character, so that any prefix of a text has its own labels."""

    def pieces(self, runs: Sequence[Run]) -> list[str]:
        """Text that each emitted label adds; joined and stripped they are the hypothesis."""
        ...

    def labels(self, text: str) -> list[tuple[int, int]]:
        """Labels of ``text`` with the index of the character that each begins at; what has no label is left out."""
        ...


class CharacterVocabulary:
    """Labels that are characters.

    Args:
        labels: Character of each label; special labels are the empty string.
        blank: The blank label.

    Raises:
        ValueError: If a label is longer than a character, or the blank is none of them.
    """

    characters = True

    def __init__(self, labels: Sequence[str], blank: int = 0) -> None:
        if not 0 <= blank < len(labels):
            raise ValueError(f"The blank {blank} is none of {len(labels)} labels.")
        if long := [label for i, label in enumerate(labels) if len(label) > 1 and i != blank]:
            raise ValueError(f"Labels must be single characters, or empty for special ones, got {long[0]!r}.")
        self.blank = blank
        self.text = ["" if index == blank else label for index, label in enumerate(labels)]
        self.index = {character: i for i, character in reversed(list(enumerate(self.text))) if character}
        self.cased = any(character.lower() != character for character in self.text) and any(
            character.upper() != character for character in self.text
        )
        self.punctuated = not {".", ","}.isdisjoint(self.text)

    def pieces(self, runs: Sequence[Run]) -> list[str]:
        return [self.text[run.label] for run in runs]

    def label(self, character: str) -> int | None:
        """The label of ``character``: its own, that of its other case, or of its base letter; ``None`` without one."""
        space = " " if character.isspace() else character
        for candidate in (space, space.lower(), space.upper(), *unicodedata.normalize("NFD", space)[:1]):
            for form in (candidate, candidate.lower(), candidate.upper()):
                if form in self.index:
                    return self.index[form]
        return None

    def labels(self, text: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        space = self.index.get(" ")
        for place, character in enumerate(text):
            label = self.label(character)
            # the hypothesis never begins with a space nor holds two in a row
            if label is None or (label == space and (not found or found[-1][0] == space)):
                continue
            found.append((label, place))
        return found


class TokenizerVocabulary:
    """Labels that are ids of a tokenizer (Parakeet, GraniteSpeech5, wav2vec2 with its own tokenizer, ...).

    Args:
        tokenizer: A transformers tokenizer; its special tokens have no text.
        blank: The blank label.
        offset: Label of token 0; 1 where label 0 is the blank of a head over a language model's vocabulary.
    """

    characters = False

    def __init__(self, tokenizer: Any, blank: int, offset: int = 0) -> None:
        self.tokenizer, self.blank, self.offset = tokenizer, blank, offset
        self.special = {int(token) for token in tokenizer.all_special_ids}
        sample = "".join(tokenizer.get_vocab())
        self.cased = sample.lower() != sample.upper() and any(character.isupper() for character in sample)
        self.punctuated = {".", ","} <= set(sample)

    def _ids(self, runs: Sequence[Run]) -> list[int]:
        return [run.label - self.offset for run in runs]

    def pieces(self, runs: Sequence[Run]) -> list[str]:
        done, texts = "", []
        ids = self._ids(runs)
        for count in range(1, len(ids) + 1):
            text = self.decode(ids[:count])
            texts.append(text[len(done) :] if text.startswith(done) else "")
            done = text if text.startswith(done) else done
        return texts

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ``ids``, which are collapsed already."""
        kept = [token for token in ids if 0 <= token < len(self.tokenizer) and token not in self.special]
        tokens = self.tokenizer.convert_ids_to_tokens(kept)
        text: str = self.tokenizer.convert_tokens_to_string(tokens) if kept else ""
        return text

    def labels(self, text: str) -> list[tuple[int, int]]:
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [(int(token) + self.offset, int(start)) for token, (start, _) in pairs if token not in self.special]


def hypothesis_text(pieces: Sequence[str]) -> str:
    """The text of emitted ``pieces``: joined, with single spaces and none at the ends."""
    return " ".join("".join(pieces).split())


def word_spans(pieces: Sequence[str], runs: Sequence[Run]) -> list[tuple[str, int, int]]:
    """Words of a hypothesis with their first and last frame."""
    words: list[tuple[str, int, int]] = []
    open_word = False
    for piece, run in zip(pieces, runs, strict=True):
        for character in piece:
            if character.isspace():
                open_word = False
            elif open_word:
                word, first, _ = words[-1]
                words[-1] = (word + character, first, run.last)
            else:
                words.append((character, run.first, run.last))
                open_word = True
    return words
