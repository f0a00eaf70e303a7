"""Text as the embedded voice reads it: lower-case letters, apostrophes, spaces and the pauses ``,`` and ``.``.

Numbers and a few symbols are spelt out. What cannot be read is refused, never dropped.
"""

from __future__ import annotations

import re
import unicodedata

ALPHABET = (" ", "'", ",", ".", *(chr(97 + index) for index in range(26)))
"""Characters of a speakable text, in the order of their tokens."""

MAX_CHARACTERS = 2000
"""Longest text of one call, as spoken."""

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SYMBOLS = {"*": " star ", "#": " pound ", "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "%": " percent ",
            "$": " dollars ", "/": " slash ", "_": " "}  # fmt: skip
_PAUSES = str.maketrans({"?": ".", "!": ".", ":": ",", ";": ",", "…": ".", "\n": ". ", "\r": " ", "\t": " "})
_SILENT = frozenset('"()[]{}<>-–—“”«»`')
_LEFT = 6  # digits that are read as one number; longer ones are read digit by digit


def number_words(value: int) -> str:
    """``value`` from 0 to 999,999 in English words."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        return _TENS[value // 10] + (f" {_ONES[value % 10]}" if value % 10 else "")
    unit, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    rest = f" {number_words(value % unit)}" if value % unit else ""
    return f"{number_words(value // unit)} {name}{rest}"


def speakable(text: str, strict: bool = True) -> str:
    """``text`` in :data:`ALPHABET`, with single spaces and no pause at the start.

    Args:
        text: Any text; line breaks are pauses, accents of Latin letters are dropped.
        strict: Raise for characters that cannot be read; otherwise leave them out.

    Raises:
        TypeError: If ``text`` is no string.
        ValueError: If it holds nothing to say, characters of other scripts or emoji, or is too long.
    """
    if not isinstance(text, str):
        raise TypeError(f"`text` must be a string, got {type(text).__name__}.")
    plain = unicodedata.normalize("NFKD", text.replace("’", "'").replace("‘", "'").translate(_PAUSES).lower())
    plain = re.sub(r"\d+(?:,\d{3})+", lambda number: number.group().replace(",", ""), plain)
    plain = re.sub(r"\b([ap])\.m\b", r"\1 m", plain)
    plain = re.sub(r"(?<=\w)\.(?=\w)", " dot ", plain)
    plain = re.sub(r"[0-9]+", lambda digits: f" {_digits(digits.group())} ", plain)
    plain = "".join(_SYMBOLS.get(c, c) for c in plain if not unicodedata.combining(c))
    plain = "".join(" " if c in _SILENT else c for c in plain)
    if strict and (unknown := sorted({c for c in plain if c not in ALPHABET})):
        named = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in unknown[:5])
        raise ValueError(f"`text` holds characters that this voice cannot read: {named}; it reads English letters.")
    plain = "".join(c for c in plain if c in ALPHABET)
    plain = re.sub(r"\s+", " ", plain)
    plain = re.sub(r" ?([,.])[ ,.]*", lambda pause: ("." if "." in pause.group() else ",") + " ", plain)
    plain = re.sub(r"(?<![a-z])'|'(?![a-z])", "", plain).strip().lstrip(",. ")
    if strict and not re.search("[a-z]", plain):
        raise ValueError(f"`text` is {text[:40]!r}, which holds nothing to say; give words or digits.")
    if strict and len(plain) > MAX_CHARACTERS:
        raise ValueError(f"`text` has {len(plain)} characters as spoken; the most is {MAX_CHARACTERS}: split it.")
    return plain


def _digits(digits: str) -> str:
    if len(digits) <= _LEFT and (digits == "0" or not digits.startswith("0")):
        return number_words(int(digits))
    return " ".join(_ONES[int(digit)] for digit in digits)
