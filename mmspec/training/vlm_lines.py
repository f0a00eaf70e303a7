"""Lines of text as pictures: what they say, and how they are drawn.

Words come from Debian's ``wamerican`` (public domain word lists), between them are numbers, prices, dates, times, codes
and addresses, so that reading a line takes reading its letters. Fonts are the Debian packages of DejaVu (Bitstream Vera
licence), Liberation, Open Sans and Lato (all OFL or Apache-2.0). One word in twenty and one font are kept for evaluation.
"""

from __future__ import annotations

import random
import shutil
import string
import subprocess
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PACKAGES = ("fonts-dejavu-core", "fonts-liberation", "fonts-open-sans", "fonts-lato", "wamerican")

FONTS: dict[str, str] = {
    "dejavu-sans": "dejavu/DejaVuSans.ttf",
    "dejavu-mono": "dejavu/DejaVuSansMono.ttf",
    "dejavu-serif": "dejavu/DejaVuSerif.ttf",
    "liberation-sans": "liberation/LiberationSans-Regular.ttf",
    "liberation-serif": "liberation/LiberationSerif-Regular.ttf",
    "open-sans": "open-sans/OpenSans-Regular.ttf",
    "lato": "lato/Lato-Regular.ttf",
}
"""Name of a font -> its file below ``usr/share/fonts/truetype``."""

HELD_OUT_FONT = "lato"

CELL, HEIGHT = 16, 32
"""Of the place of one character in pixels."""

MAX_CHARACTERS = 24
WIDTH = CELL * MAX_CHARACTERS
"""Of a line in pixels."""
_SIZES = (14, 20)  # of the letters in pixels


def fetch(data: Path) -> Path:
    """Download and unpack the Debian packages once; returns the folder that stands for ``/``.

    Raises:
        FileNotFoundError: If apt-get or dpkg is missing.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise FileNotFoundError(f"The program {program!r} is missing: fonts and words are Debian packages.")
    root = data / "root"
    for package in PACKAGES:
        mark = data / "packages" / f"{package}.done"
        if mark.is_file():
            continue
        mark.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=mark.parent, check=True, capture_output=True)
        (archive,) = mark.parent.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
        mark.touch()
    return root


@dataclass(frozen=True)
class LineMaterial:
    """Words and fonts; ``held_out`` ones are for evaluation only. A font ``None`` is the one that PIL brings along."""

    words: tuple[str, ...]
    held_out_words: tuple[str, ...]
    fonts: dict[str, Path | None]

    @property
    def training_fonts(self) -> list[Path | None]:
        known = [path for name, path in self.fonts.items() if name != HELD_OUT_FONT]
        return known or list(self.fonts.values())


def read_material(root: Path) -> LineMaterial:
    """Words and fonts below ``root``, as :func:`fetch` left them.

    Raises:
        FileNotFoundError: Naming what is missing.
    """
    path = root / "usr/share/dict/american-english"
    fonts: dict[str, Path | None] = {name: root / "usr/share/fonts/truetype" / file for name, file in FONTS.items()}
    if missing := [str(file) for file in (path, *fonts.values()) if file and not file.is_file()]:
        raise FileNotFoundError(f"Missing {', '.join(missing)}; run `mmspec train vlm data` first.")
    return split_words(path.read_text().split(), fonts)


def split_words(words: list[str], fonts: dict[str, Path | None]) -> LineMaterial:
    """Plain words of 2 to 12 letters, one in twenty of them, by a hash of the word, held out."""
    usable = sorted({word for word in words if word.isascii() and word.isalpha() and 2 <= len(word) <= 12})
    held_out = {word for word in usable if zlib.crc32(word.lower().encode()) % 20 == 0}
    return LineMaterial(tuple(w for w in usable if w not in held_out), tuple(sorted(held_out)), fonts)


def random_text(words: tuple[str, ...], rng: random.Random) -> str:
    """A line of at most :data:`MAX_CHARACTERS` characters."""
    wanted = rng.randint(4, MAX_CHARACTERS)
    pieces: list[str] = []
    while True:
        piece = _piece(words, rng)
        if pieces and len(" ".join([*pieces, piece])) > wanted:
            break
        pieces.append(piece[:MAX_CHARACTERS])
        if len(" ".join(pieces)) >= wanted:
            break
    text = " ".join(pieces)
    if rng.random() < 0.15 and len(text) < MAX_CHARACTERS:
        text += rng.choice(".,!?:;")
    return text[:MAX_CHARACTERS].strip()


def _piece(words: tuple[str, ...], rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.72:
        word = rng.choice(words)
        return rng.choices((word, word.capitalize(), word.upper()), (0.6, 0.25, 0.15))[0]
    if kind < 0.80:
        return str(rng.randint(0, 10 ** rng.randint(1, 5)))
    if kind < 0.84:
        return f"${rng.randint(1, 999)}.{rng.randint(0, 99):02d}"
    if kind < 0.88:
        return f"{rng.randint(1, 28):02d}/{rng.randint(1, 12):02d}/{rng.randint(1950, 2039)}"
    if kind < 0.91:
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind < 0.96:
        return (
            "".join(rng.choices(string.ascii_uppercase + string.digits + "-", k=rng.randint(4, 8))).strip("-") or "7"
        )
    if kind < 0.98:
        return f"{rng.choice(words).lower()}@{rng.choice(words).lower()}.com"
    return f"({rng.choice(words)})"


@lru_cache(maxsize=256)
def _font(path: Path | None, size: int) -> ImageFont.FreeTypeFont:
    if path is not None:
        return ImageFont.truetype(str(path), size)
    own = ImageFont.load_default(size)
    assert isinstance(own, ImageFont.FreeTypeFont)
    return own


def draw_line(text: str, font: Path | None, rng: random.Random) -> np.ndarray:
    """Draw ``text`` as a grey picture (32, 384) uint8: dark on light, one character in each place, as in forms.

    Size, height, shades, noise and a small shift are random.
    """
    size = rng.randint(*_SIZES)
    chosen = _font(font, size)
    _, top, _, bottom = chosen.getbbox("Agjl")
    paper, ink = rng.randint(200, 255), rng.randint(0, 90)
    image = Image.new("L", (WIDTH, HEIGHT), paper)
    pen = ImageDraw.Draw(image)
    shift, y = rng.uniform(-1.5, 1.5), rng.randint(0, max(0, HEIGHT - int(bottom - top))) - top
    for place, character in enumerate(text):
        x = (place + 0.5) * CELL + shift - chosen.getlength(character) / 2
        pen.text((x, y), character, fill=ink, font=chosen)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, 8), (HEIGHT, WIDTH))
    return np.clip(np.asarray(image, dtype=np.float32) + noise, 0, 255).astype(np.uint8)
