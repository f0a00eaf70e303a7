"""What the embedded vision-language model learns: to name an emoji, to read a line, to describe an emoji as JSON.

One name in ten is never seen in one of its three styles, which measures whether a name is known beyond its drawings.
"""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mmspec.training.emoji import CLASSES, STYLES, EmojiConfig, EmojiSet, class_of_names, load_emoji
from mmspec.training.names import ICONIC
from mmspec.training.vlm_lines import LineMaterial, draw_line, fetch, random_text, read_material

TASKS = ("json", "name", "read")

QUESTIONS: dict[str, tuple[str, ...]] = {
    "json": ("describe it as json", "answer in json", "json"),
    "name": ("what is this?", "name the picture", "what do you see?"),
    "read": ("read the text", "what does it say?", "transcribe"),
}
"""Task -> how it is asked; the first is the documented form."""

EMOJI_SIZE = 64


@dataclass(frozen=True)
class DataConfig:
    """Where the pictures come from.

    Args:
        data: Folder of the emoji archives, the Debian packages and what is made of them.
    """

    data: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))


@dataclass(frozen=True)
class Sample:
    """A picture with a question and its answer.

    Attributes:
        task: One of :data:`TASKS`.
        image: Picture (h, w, 3) uint8.
        question, answer: Texts.
    """

    task: str
    image: np.ndarray
    question: str
    answer: str

    @property
    def picture(self) -> Image.Image:
        return Image.fromarray(self.image)


@dataclass(frozen=True)
class Material:
    """Everything that samples are drawn from: emoji for training, emoji for evaluation, and lines."""

    emoji: EmojiSet
    held_out: EmojiSet
    lines: LineMaterial


def build(config: DataConfig) -> Path:
    """Fetch the emoji and the Debian packages, rasterise the emoji, and check that all is there."""
    config.data.mkdir(parents=True, exist_ok=True)
    fetch(config.data)
    load_material(config)
    return config.data


def load_material(config: DataConfig) -> Material:
    """The material of a folder that :func:`build` filled.

    Raises:
        FileNotFoundError: Naming what is missing.
    """
    emoji = load_emoji(EmojiConfig(config.data, size=EMOJI_SIZE))
    return split_emoji(emoji, read_material(config.data / "root"))


def split_emoji(emoji: EmojiSet, lines: LineMaterial) -> Material:
    """Keep the well-known emoji, and of one name in ten one style for evaluation."""
    known = emoji.select(np.isin(emoji.names, ICONIC))
    held = np.array([_held_out(str(n), str(s)) for n, s in zip(known.names, known.styles, strict=True)], dtype=bool)
    return Material(known.select(~held), known.select(held), lines)


def _held_out(name: str, style: str) -> bool:
    number = zlib.crc32(name.encode())
    return number % 10 == 0 and style == sorted(STYLES)[number // 10 % len(STYLES)]


def draw_sample(material: Material, shares: tuple[float, ...], rng: random.Random) -> Sample:
    """A training sample; ``shares`` are those of :data:`TASKS`."""
    task = rng.choices(TASKS, shares)[0]
    question = rng.choice(QUESTIONS[task])
    if task == "read":
        text = random_text(material.lines.words, rng)
        return _line(text, rng.choice(material.lines.training_fonts), question, rng)
    return _emoji(material.emoji, rng.randrange(len(material.emoji)), task, question, rng)


def held_out_samples(
    material: Material, task: str, count: int, seed: int = 0, font: str | None = None
) -> list[Sample]:
    """``count`` samples of ``task`` that training never draws: lines of words and emoji that are held out.

    Args:
        font: Font of the lines; by default those of the training, in turn.
    """
    rng = random.Random(f"held-out-{task}-{seed}")
    question = QUESTIONS[task][0]
    if task == "read":
        fonts = [material.lines.fonts[font]] if font else material.lines.training_fonts
        texts = [random_text(material.lines.held_out_words, rng) for _ in range(count)]
        return [_line(text, fonts[number % len(fonts)], question, rng) for number, text in enumerate(texts)]
    rows = list(range(len(material.held_out)))
    rng.shuffle(rows)
    return [_emoji(material.held_out, row, task, question, None) for row in rows[:count]]


def moved_samples(material: Material, task: str, count: int, seed: int = 0) -> list[Sample]:
    """``count`` samples of ``task`` of drawings that training knows, in sizes and places of their own."""
    rng = random.Random(f"moved-{task}-{seed}")
    rows = [rng.randrange(len(material.emoji)) for _ in range(count)]
    return [_emoji(material.emoji, row, task, QUESTIONS[task][0], rng) for row in rows]


def _line(text: str, font: Path | None, question: str, rng: random.Random) -> Sample:
    grey = draw_line(text, font, rng)
    return Sample("read", np.repeat(grey[..., None], 3, axis=2), question, text)


def _emoji(emoji: EmojiSet, row: int, task: str, question: str, rng: random.Random | None) -> Sample:
    image = emoji.images[row]
    if rng is not None:
        image = _moved(image, rng)
    name, style = str(emoji.names[row]), str(emoji.styles[row])
    plain = name.replace("-", " ")
    if task == "name":
        return Sample(task, image, question, plain)
    kind = list(CLASSES)[class_of_names()[name]]
    return Sample(task, image, question, json.dumps({"name": plain, "kind": kind, "style": style}))


def _moved(image: np.ndarray, rng: random.Random) -> np.ndarray:
    """The drawing a little smaller, moved, and perhaps mirrored, on white."""
    size = image.shape[0]
    side = rng.randint(int(0.8 * size), size)
    drawing = Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR)
    if rng.random() < 0.25:
        drawing = drawing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    canvas = Image.new("RGB", (size, size), "white")
    canvas.paste(drawing, (rng.randint(0, size - side), rng.randint(0, size - side)))
    return np.asarray(canvas)
