"""Between text and the tokens of a language model: drafts in the form that the model itself would write.

A draft continues what is committed already, and its tokens should be the ones that the model would choose for that
text. They are those of the whole text's tokenisation behind the committed part; where the committed tokens end inside
one of them, the rest of that token is spelt out with pieces that do not begin a word.
"""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmspec.speech.hypotheses import Hypothesis

_BYTE_SPACE = "Ġ"  # space in the alphabet of byte-level tokenizers
_PIECE_SPACE = "▁"  # space in SentencePiece vocabularies
_SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


class TextCodec:
    """Text to tokens of a verifier and back.

    Args:
        tokenizer: A transformers tokenizer.
        prefix: What the model writes before a transcript, as a space for Whisper.
        marker: End of a preface that is no part of the transcript, as ``<asr_text>`` for Qwen3-ASR; the prefix then
            ends with it.
    """

    def __init__(self, tokenizer: Any, prefix: str = "", marker: str = "") -> None:
        self.tokenizer, self.prefix, self.marker = tokenizer, prefix, marker

    def beginning_with(self, prefix: str, marker: str | None = None) -> TextCodec:
        """This codec for transcripts that begin with ``prefix``; what it worked out is shared."""
        other = copy.copy(self)
        other.prefix, other.marker = prefix, self.marker if marker is None else marker
        return other

    def draft(self, hypothesis: Hypothesis, committed: Sequence[int]) -> list[int]:
        """Tokens that ``hypothesis`` expects behind the tokens ``committed``."""
        written, preface = self._written(committed)
        if preface is not None:
            return self.continuation(committed, preface + hypothesis.text)
        return self.continuation(committed, hypothesis.after(written) if committed else hypothesis.text)

    def branches(self, hypothesis: Hypothesis, committed: Sequence[int], count: int) -> list[list[int]]:
        """Alternatives of what ``hypothesis`` expects behind ``committed``, of about ``count`` characters together."""
        written, preface = self._written(committed)
        if preface is not None:
            return [self.continuation(committed, preface + hypothesis.text)]
        tails = hypothesis.branches(written, count)
        return [ids for tail in tails if (ids := self.continuation(committed, tail))]

    def _written(self, committed: Sequence[int]) -> tuple[str, str | None]:
        """The transcript among ``committed`` tokens, and what is left of a preface that has not ended."""
        text = self.decode(committed)
        if not committed or not self.marker:
            return text, None
        if self.marker in text:
            return text.rpartition(self.marker)[2], None
        return "", self.prefix[len(text) :] if self.prefix.startswith(text) else ""

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text`` without special ones."""
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens`` without special ones."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def continuation(self, committed: Sequence[int], tail: str) -> list[int]:
        """Tokens of ``tail`` as they follow the tokens ``committed``."""
        if not tail:
            return []
        if committed and self._letters is not None:
            ids = [self._letters.get(character, -1) for character in tail]
            return ids[: ids.index(-1)] if -1 in ids else ids
        before = self.decode(committed)
        whole = before + tail if committed else self.prefix + tail
        ids, ends = self._encode_with_ends(whole)
        shared = len(committed)
        if ids[:shared] == list(committed):
            return ids[shared:]
        boundary = len(before)
        first = next((place for place, end in enumerate(ends) if end > boundary), len(ids))
        start = ends[first - 1] if first else 0
        if first == len(ids) or start >= boundary:
            return ids[first:]
        return self.spell(whole[boundary : ends[first]]) + ids[first + 1 :]

    def _encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """Tokens of ``text``, and where in it each one ends."""
        if getattr(self.tokenizer, "is_fast", False):
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return list(encoded["input_ids"]), [int(end) for _, end in encoded["offset_mapping"]]
        ids, ends, done = self.encode(text), [], 0
        for count in range(1, len(ids) + 1):
            prefix = self.decode(ids[:count])
            if text.startswith(prefix):  # a token that ends inside a character adds nothing yet
                done = max(done, len(prefix))
            ends.append(done)
        return ids, ends

    def spell(self, text: str) -> list[int]:
        """Tokens of ``text`` inside a word: the longest pieces first; characters without a piece end the spelling."""
        tokens, place = [], 0
        while place < len(text):
            for end in range(min(len(text), place + self._longest), place, -1):
                if (token := self._inner.get(text[place:end])) is not None:
                    tokens.append(token)
                    place = end
                    break
            else:
                return tokens
        return tokens

    @cached_property
    def _pieces(self) -> list[str]:
        """Text of every token, with a leading space where it begins a word; empty for special and partial ones."""
        size = len(self.tokenizer)
        special = {int(token) for token in self.tokenizer.all_special_ids}
        raw = self.tokenizer.convert_ids_to_tokens(list(range(size)))
        pieces = []
        byte_level = any((token or "").startswith(_BYTE_SPACE) for token in raw)
        for index, token in enumerate(raw):
            if index in special or not token:
                pieces.append("")
            elif byte_level:
                text = self.tokenizer.convert_tokens_to_string([token])
                pieces.append("" if "�" in text else text)
            else:
                pieces.append(token.replace(_PIECE_SPACE, " "))
        return pieces

    @cached_property
    def _letters(self) -> dict[str, int] | None:
        """Token of each character, for tokenizers of single characters: what is behind a text has one tokenisation."""
        added = set(self.tokenizer.get_added_vocab().values())
        letters = {piece: index for index, piece in enumerate(self._pieces) if piece and index not in added}
        if not letters or max(map(len, letters)) > 1:
            return None
        sample = "".join(sorted(letters, reverse=True))  # the space comes last
        ids = [letters[character] for character in sample]
        first = self.encode(sample)
        return letters if self.encode(sample + sample) == first + ids and first[-len(ids) :] == ids else None

    @cached_property
    def _inner(self) -> dict[str, int]:
        return {piece: index for index, piece in reversed(list(enumerate(self._pieces))) if piece and piece[0] != " "}

    @cached_property
    def _longest(self) -> int:
        return max((len(piece) for piece in self._inner), default=1)

    @cached_property
    def begins_word(self) -> Tensor:
        """Which tokens begin a word (V,): those with a leading space, and all of scripts that write none."""
        return torch.tensor([piece[:1] == " " or _without_spaces(piece) for piece in self._pieces])


def _without_spaces(piece: str) -> bool:
    first = piece.strip()[:1]
    return bool(first) and unicodedata.name(first, "").startswith(_SCRIPTS_WITHOUT_SPACES)


def fold(text: str) -> str:
    """``text`` for comparison: lower case, without accents and punctuation, single spaces."""
    plain = unicodedata.normalize("NFD", text.casefold())
    kept = (c if c.isalnum() or c == "'" else " " if c.isspace() else "" for c in plain)
    return " ".join("".join(kept).split())
