"""Text of new tokens: where a stop string ends it, and how much of it further tokens cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Finds the first of several strings in the text of a row; a :data:`mmspec.core.stopping.EndFinder`.

    The end depends on the tokens of the row alone, not on how many of them a round commits, so speculation cannot move
    it.

    Args:
        tokenizer: Of the model.
        strings: What ends a row.

    Raises:
        TypeError, ValueError: If one is no string, or empty.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        for string in strings:
            if not isinstance(string, str):
                raise TypeError(f"A stop string must be a string, got {string!r}.")
            if not string:
                raise ValueError("A stop string must not be empty.")
        self.tokenizer, self.strings = tokenizer, tuple(strings)

    def __call__(self, past: list[int], run: list[int]) -> int | None:
        if self.cut(decode(self.tokenizer, past + run)) is None:
            return None
        for place in range(len(run)):  # the first token whose text holds a stop string
            if self.cut(decode(self.tokenizer, past + run[: place + 1])) is not None:
                return place
        return None

    def cut(self, text: str) -> int | None:
        """Where the first stop string begins in ``text``; ``None`` without one."""
        found = [place for string in self.strings if (place := text.find(string)) >= 0]
        return min(found) if found else None

    def shorten(self, text: str) -> str:
        """``text`` up to the first stop string."""
        place = self.cut(text)
        return text if place is None else text[:place]

    def settled(self, text: str) -> str:
        """The part of ``text`` that cannot become a stop string, nor another character, when it goes on."""
        text = self.shorten(text).rstrip("\ufffd")
        longest = max((len(string) for string in self.strings), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-size:]) for string in self.strings):
                return text[:-size]
        return text


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Text of ``tokens`` without special ones."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def token_texts(tokenizer: Any, vocab_size: int) -> list[str | None]:
    """What each token adds to a text; ``None`` for special tokens, parts of characters, and numbers without a token."""
    [anchor] = tokenizer.encode("a", add_special_tokens=False)[-1:]  # the first token of a text may lose its space
    before = decode(tokenizer, [anchor])
    special, known = set(tokenizer.all_special_ids), min(vocab_size, len(tokenizer))
    texts: list[str | None] = [None] * vocab_size
    joined = tokenizer.batch_decode(
        [[anchor, token] for token in range(known)], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    for token, text in enumerate(joined):
        added = text.removeprefix(before)
        if token not in special and added and "\ufffd" not in added:
            texts[token] = added
    return texts
