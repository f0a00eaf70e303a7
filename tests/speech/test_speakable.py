"""What the embedded voice can read, and what it refuses."""

from __future__ import annotations

import pytest

from mmspec.speech.speakable import ALPHABET, MAX_CHARACTERS, number_words, speakable
from mmspec.speech.utterances import LONGEST_PIECE, cut, frames_for, make_pieces, text_tokens


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello, World!", "hello, world."),
        ("a", "a"),
        ("42", "forty two"),
        ("1,000 calls", "one thousand calls"),
        ("007", "zero zero seven"),
        ("12345678", "one two three four five six seven eight"),
        ("line one\nline two", "line one. line two"),
        ("Café “naïve”", "cafe naive"),
        ("don't 'quote' it", "don't quote it"),
        ("10 a.m.", "ten a m."),
        ("example.com", "example dot com"),
        ("...and then?!", "and then."),
        ("press * or #", "press star or pound"),
        ("two  spaces\tand a tab", "two spaces and a tab"),
    ],
)
def test_texts(text: str, spoken: str) -> None:
    assert speakable(text) == spoken
    assert set(spoken) <= set(ALPHABET)


@pytest.mark.parametrize("text", ["", "   ", "\n", "?!...", ",", "-"])
def test_nothing_to_say(text: str) -> None:
    with pytest.raises(ValueError, match="nothing to say"):
        speakable(text)


@pytest.mark.parametrize(("text", "named"), [("привет", "U+043F"), ("日本", "U+65E5"), ("hi 🙂", "U+1F642")])
def test_other_scripts_are_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read") as caught:
        speakable(text)
    assert named in str(caught.value) or "U+" in str(caught.value)


def test_length_and_type() -> None:
    assert len(speakable("a" * MAX_CHARACTERS)) == MAX_CHARACTERS
    with pytest.raises(ValueError, match="2001 characters"):
        speakable("a" * (MAX_CHARACTERS + 1))
    with pytest.raises(TypeError, match="NoneType"):
        speakable(None)  # type: ignore[arg-type]


def test_number_words() -> None:
    assert [number_words(n) for n in (0, 19, 20, 71, 100, 305, 999_999)] == [
        "zero", "nineteen", "twenty", "seventy one", "one hundred", "three hundred five",
        "nine hundred ninety nine thousand nine hundred ninety nine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["short.", "a sentence. " * 30, "one clause, " * 40, "words and words " * 50, "x" * 500]
)
def test_pieces_hold_every_character(text: str) -> None:
    spoken = speakable(text)
    pieces = cut(spoken)
    assert all(0 < len(piece) <= LONGEST_PIECE for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(spoken.split())


def test_pieces_have_seeds_of_their_own() -> None:
    pieces = make_pieces(speakable("a sentence of some words. " * 20), 3, seed=5, frame_rate=12.5)
    assert pieces[0].seed == 5
    assert len({piece.seed for piece in pieces}) == len(pieces) > 2
    assert all(piece.utterance == 3 and piece.budget == frames_for(piece.text, 12.5) for piece in pieces)
    assert text_tokens("a z").tolist() == [5, 1, 30]
