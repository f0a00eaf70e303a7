"""Heat maps show what the trace says, where it says it, and HTML escapes what people wrote."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from demos.ui.heat import (
    ACCEPTED,
    DOUBTED,
    OPEN,
    OWN,
    REFUSED,
    Place,
    data_url,
    draw_codes,
    draw_frames,
    draw_grid,
    draw_wave,
    mean_colour,
    places,
)
from demos.ui.html import note, words
from demos.ui.tab_asr import colours_of_words
from demos.ui.tab_vlm import pieces_of
from mmspec.core.trace import Round

TRACE = [Round(0, 0, 1), Round(4, 2, 3), Round(3, 3, 4)]


def test_places_follow_the_trace() -> None:
    assert places(TRACE) == [
        Place(False, 0), Place(True, 0), Place(True, 0), Place(False, 1), Place(True, 1), Place(True, 0),
        Place(True, 0), Place(False, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "colour"),
    [
        (Place(False, 0), OWN),
        (Place(True, 0), ACCEPTED),
        (Place(True, 6), DOUBTED),
        (Place(True, 12), REFUSED),
        (Place(True, 500), REFUSED),
        (Place(False, 12), REFUSED),
    ],
)
def test_colours(place: Place, colour: tuple[int, int, int]) -> None:
    assert place.colour == colour


def pixel(picture: Image.Image, x: int, y: int) -> tuple[int, ...]:
    found = picture.getpixel((x, y))
    assert isinstance(found, tuple)
    return found


def test_a_grid_shows_each_cell_at_its_place() -> None:
    picture = draw_grid(places(TRACE), rows=3, columns=3, side=20)
    assert picture.size == (61, 61)
    assert pixel(picture, 5, 5) == OWN
    assert pixel(picture, 25, 5) == ACCEPTED
    assert pixel(picture, 5, 25) == Place(False, 1).colour
    assert pixel(picture, 10, 30) == (255, 255, 255)  # the dot of the model's own token
    assert pixel(picture, 45, 45) == OPEN


def test_structural_tokens_are_left_out_of_a_grid() -> None:
    cells = [Place(False, 0), *[Place(True, 0)] * 2, Place(False, 0), *[Place(True, 12)] * 2, Place(False, 0)]
    picture = draw_grid(cells, rows=2, columns=2, side=10, row_length=3, first=1)
    assert [pixel(picture, x, y) for y in (3, 13) for x in (3, 13)] == [ACCEPTED] * 2 + [REFUSED] * 2


def test_frames_lie_side_by_side() -> None:
    picture = draw_frames([Place(True, 0)] * 4 + [Place(True, 12)] * 2, frames=2, rows=2, columns=2, side=10)
    assert pixel(picture, 3, 3) == ACCEPTED
    assert pixel(picture, 30, 3) == REFUSED
    assert pixel(picture, 30, 13) == OPEN


def test_codes_of_speech_are_columns() -> None:
    picture = draw_codes([Place(False, 0), Place(True, 0)] * 3, books=2, width=60, side=10)
    assert pixel(picture, 30, 3) == OWN
    assert pixel(picture, 30, 13) == ACCEPTED


def test_a_wave_is_loud_where_the_sound_is_and_coloured_by_span() -> None:
    samples = np.concatenate([np.zeros(500), np.ones(500)])
    picture = draw_wave(samples, [(0.5, 1.0, ACCEPTED)], width=100, height=50)
    assert pixel(picture, 75, 5) == ACCEPTED
    assert pixel(picture, 25, 5) == (255, 255, 255)
    assert pixel(picture, 25, 25) == OWN
    assert draw_wave(np.zeros(0), [], width=10, height=10).size == (10, 10)


def test_mean_colour() -> None:
    assert mean_colour([]) == OWN
    assert mean_colour([Place(True, 0), Place(True, 12)]) == (128, 116, 91)


def test_pictures_inside_urls() -> None:
    url = data_url(draw_grid([], 1, 2, side=4))
    assert Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size == (9, 5)


def test_what_people_wrote_is_escaped() -> None:
    assert "<script>" not in words(["<script>"], [Place(True, 0)])
    assert "<b>" not in note("<b>bold</b>")


def test_tokens_of_a_text() -> None:
    letters = dict(enumerate(["re", "d", " ap", "ple"]))
    assert pieces_of(lambda known: "".join(letters[token] for token in known), [0, 1, 2, 3]) == list(letters.values())


def test_a_character_of_several_tokens_belongs_to_the_last() -> None:
    content = "hi é".encode()
    pieces = pieces_of(lambda known: bytes(known).decode(errors="replace"), list(content))
    assert pieces == ["h", "i", " ", "", "é"]


def test_words_have_the_colours_of_their_tokens() -> None:
    cells = [Place(True, 0), Place(True, 0), Place(True, 12), Place(False, 0)]
    assert colours_of_words(["a", "b", " c", "d"], cells) == [ACCEPTED, mean_colour(cells[2:])]
    assert colours_of_words(["a", " ", "c", "d"], cells) == [ACCEPTED, mean_colour(cells[2:])]
