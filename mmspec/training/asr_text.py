"""Texts of the speech recogniser's training: normalisation, prompts, sentences, and generated phrases."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
MONTHS = (
    ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"]
)  # fmt: skip
DAYS = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]
PHONETIC = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
    "quebec",
    "romeo",
    "sierra",
    "tango",
    "uniform",
    "victor",
    "whiskey",
    "xray",
    "yankee",
    "zulu",
]

SPELT = {"pbx", "ivr", "iax", "ip", "mgcp", "usb", "www"}
"""Words of the prompts that the speaker spells."""

CORRECTIONS = {
    "exclaimation": "exclamation",
    "fourtieth": "fortieth",
    "represenatives": "representatives",
    "umute": "unmute",
    "witheld": "withheld",
    "indentified": "identified",
}
"""Slips of the transcripts, which the speaker did not make."""


def number_words(value: int) -> str:
    """``value`` from 0 to 999,999 in English words."""
    if value < 10:
        return ONES[value]
    if value < 20:
        return TEENS[value - 10]
    if value < 100:
        return TENS[value // 10 - 2] + (f" {ONES[value % 10]}" if value % 10 else "")
    unit, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    rest = f" {number_words(value % unit)}" if value % unit else ""
    return f"{number_words(value // unit)} {name}{rest}"


def normalise(text: str) -> str:
    """English text as the model writes it: lower case words of a-z and apostrophes, numbers and symbols spelt out."""
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>", " ", text)
    text = text.replace("*", " star ").replace("#", " pound ").replace("&", " and ")
    text = re.sub(r"\b([ap])\.m\.", r"\1 m ", text, flags=re.IGNORECASE)
    text = re.sub(r"(\w)\.(?=\w)", r"\1 dot ", text)
    text = re.sub(r"\d+", lambda digits: f" {_digits(digits.group())} ", text)
    text = unicodedata.normalize("NFD", text.lower()).replace("’", "'")
    words = re.findall(r"[a-z]+(?:'[a-z]+)*", text)
    return " ".join(" ".join(word) if word in SPELT else CORRECTIONS.get(word, word) for word in words)


def _digits(digits: str) -> str:
    return number_words(int(digits)) if len(digits) < 4 else " ".join(ONES[int(d)] for d in digits)


def read_prompts(path: Path) -> dict[str, str]:
    """File name without suffix to transcript, from an Asterisk list; entries without words are left out."""
    raw = gzip.decompress(path.read_bytes())
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    entries = (re.match(r"([\w/-]+):\s*(.*\S)", line) for line in text.splitlines())
    return {match[1]: match[2] for match in entries if match and not match[1].startswith("silence/")}


def wordnet_sentences(folder: Path) -> list[str]:
    """The quoted example sentences of WordNet (Miller, 1995), normalised, of 3 to 12 words."""
    found: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            found += re.findall(r'"([^"]+)"', line.partition(" | ")[2])
    return _usable(found, 3, 12)


def wordnet_glosses(folder: Path) -> list[str]:
    """The definitions of WordNet, normalised, of 3 to 16 words."""
    found: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            gloss = line.partition(" | ")[2].split('"')[0]
            found += re.sub(r"\([^)]*\)", " ", gloss).split(";")
    return _usable(found, 3, 16)


def kjv_clauses() -> list[str]:
    """Clauses of the King James Bible as printed by the program ``bible``, normalised, of 4 to 14 words."""
    printed = subprocess.run(
        ["bible", "-f", "Genesis1:1-Revelation22:21"], capture_output=True, text=True, check=True
    ).stdout
    verses = re.sub(r"(?m)^\s*\S{2,5}\d+:\d+\s", "\n", printed)
    joined = re.sub(r"(?<=\S)\n(?=\S)", " ", verses)
    return _usable(re.split(r"[.;:?!,\n]+", joined), 4, 14)


def _usable(texts: Sequence[str], least: int, most: int) -> list[str]:
    """Normalised texts with ``least`` to ``most`` words and without digits or abbreviations, each once."""
    kept = dict.fromkeys(normalise(text) for text in texts if not re.search(r"\d|\b[A-Z]{2,}\b|[^\x00-\x7f]", text))
    return [text for text in kept if least <= text.count(" ") + 1 <= most]


class Walker:
    """New phrases that look like given ones: random walks over their word trigrams."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.next: dict[tuple[str, str], list[str]] = defaultdict(list)
        for text in texts:
            words = ["", "", *text.split(), ""]
            for first, second, third in zip(words[:-2], words[1:-1], words[2:], strict=True):
                self.next[first, second].append(third)
                self.next["*", second].append(third)

    def phrase(self, rng: random.Random, most: int = 18) -> str:
        """One phrase of at most ``most`` words."""
        state, words = ("", ""), list[str]()
        while len(words) < most:
            # now and then only the last word counts, so that sentences cross over
            choices = self.next["*", state[1]] if words and rng.random() < 0.4 else self.next[state]
            word = rng.choice(choices)
            if not word:
                break
            words.append(word)
            state = (state[1], word)
        return " ".join(words)


NOUNS = [
    "extension",
    "mailbox",
    "account",
    "number",
    "password",
    "name",
    "message",
    "address",
    "agent",
    "conference",
    "caller",
    "operator",
    "order",
    "ticket",
    "number",
    "code",
    "department",
    "balance",
    "payment",
    "appointment",
    "office",
    "manager",
    "party",
    "company",
    "line",
    "directory",
    "phone",
    "service",
    "greeting",
    "menu",
    "option",
    "recording",
    "folder",
    "channel",
    "question",
    "answer",
    "customer",
    "representative",
    "room",
    "flight",
    "reservation",
]
VERBS = [
    "hear",
    "leave",
    "delete",
    "save",
    "repeat",
    "change",
    "record",
    "enter",
    "confirm",
    "cancel",
    "review",
    "forward",
    "send",
    "check",
    "update",
    "accept",
    "reject",
    "transfer",
    "hold",
    "play",
    "skip",
    "mark",
    "erase",
    "listen",
    "find",
    "call",
    "reach",
    "dial",
    "open",
    "close",
]
ADJECTIVES = [
    "new",
    "old",
    "next",
    "last",
    "first",
    "current",
    "temporary",
    "personal",
    "urgent",
    "other",
    "busy",
    "valid",
    "correct",
    "available",
]


def phrase(rng: random.Random) -> str:
    """A generated phrase of a telephone service: menu items, requests, numbers, spellings, dates and times."""
    return rng.choice(_PATTERNS)(rng)


def sequence(rng: random.Random) -> str:
    """A sequence of digits, letters, numbers, months or code words."""
    return rng.choice((_digit_string, _letter_string, _number, _date, _time, _code_words, _mixed))(rng)


def _menu(rng: random.Random) -> str:
    items = [f"{_key(rng)} to {_action(rng)}" for _ in range(rng.randint(1, 2))]
    return "press " + rng.choice((" or ", " and ", " press ")).join(items)


def _key(rng: random.Random) -> str:
    return rng.choice([*ONES, "star", "pound", "one", "two", "three"])


def _thing(rng: random.Random) -> str:
    lead = rng.choice(("the", "your", "a", "this", "another", "the", "your"))
    return f"{lead} {rng.choice(ADJECTIVES) + ' ' if rng.random() < 0.4 else ''}{rng.choice(NOUNS)}"


def _action(rng: random.Random) -> str:
    return f"{rng.choice(VERBS)} {_thing(rng)}"


def _request(rng: random.Random) -> str:
    tail = rng.choice(
        ("", "followed by the pound key", "and then press star", "now", "and try again", "after the tone")
    )
    return f"{rng.choice(('please', 'you may', 'if you wish to', 'to'))} {_action(rng)} {tail}".strip()


def _statement(rng: random.Random) -> str:
    verb = rng.choice(("is", "is not", "has been", "was", "will be", "could not be", "is currently"))
    state = rng.choice(
        [
            "saved",
            "deleted",
            "available",
            "busy",
            "invalid",
            "correct",
            "sent",
            "closed",
            "full",
            "empty",
            "received",
            "disconnected",
        ]
    )
    return f"{_thing(rng)} {verb} {state}"


def _digit_string(rng: random.Random) -> str:
    return " ".join(rng.choice([*ONES, "oh"] if rng.random() < 0.2 else ONES) for _ in range(rng.randint(3, 8)))


def _letter_string(rng: random.Random) -> str:
    return " ".join(chr(97 + rng.randrange(26)) for _ in range(rng.randint(3, 7)))


def _number(rng: random.Random) -> str:
    value = int(10 ** rng.uniform(1, 5.99))
    return number_words(value) + (" " + rng.choice(("minutes", "seconds", "dollars")) if rng.random() < 0.3 else "")


def _date(rng: random.Random) -> str:
    return f"{rng.choice(DAYS)} {rng.choice(MONTHS)} {_ordinal(rng.randint(1, 31))}"


def _ordinal(value: int) -> str:
    special = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
    if value in special:
        return special[value]
    if value < 20:
        return number_words(value) + "th"
    if value % 10 == 0:
        return number_words(value)[:-1] + "ieth"
    return f"{number_words(value - value % 10)} {_ordinal(value % 10)}"


def _time(rng: random.Random) -> str:
    minute = rng.randint(1, 59)
    spoken = number_words(minute) if minute > 9 else f"oh {number_words(minute)}"
    past = rng.choice((spoken, spoken, "o'clock"))
    return f"{number_words(rng.randint(1, 12))} {past} {rng.choice('ap')} m"


def _code_words(rng: random.Random) -> str:
    return " ".join(rng.choice(PHONETIC) for _ in range(rng.randint(2, 6)))


def _mixed(rng: random.Random) -> str:
    letters = [chr(97 + i) for i in range(26)]
    return " ".join(rng.choice(rng.choice((ONES, TEENS, TENS, MONTHS, letters))) for _ in range(rng.randint(3, 6)))


_PATTERNS = (_menu, _request, _statement, _request, _statement, sequence)
