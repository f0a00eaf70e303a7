"""On-policy training data of image drafters: pictures sampled from the target itself, as codes, kept in the run folder.

A drafter has to know what its target draws, not what the target was trained on; so no data set is needed. Sampling is
speculative, resumes after a kill, and is a function of the seed alone.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.pipelines.outputs import ImageOutput
from mmspec.training.captions import draw_condition
from mmspec.training.emoji import CLASSES, STYLES, class_of_names
from mmspec.training.names import ICONIC


@dataclass(frozen=True)
class Subject:
    """What a picture shows: a caption, or a class (-1 for none)."""

    caption: str = ""
    label: int = -1


@dataclass
class Pictures:
    """Sampled pictures of one kind of condition.

    Attributes:
        subjects: What each shows.
        seeds: Row seed of each (n,), from which its noise follows.
        codes: Image codes (n, N).
    """

    subjects: list[Subject]
    seeds: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.subjects)

    def select(self, rows: list[int]) -> Pictures:
        """The pictures at ``rows``."""
        return Pictures([self.subjects[row] for row in rows], self.seeds[rows], self.codes[rows])

    def split(self) -> tuple[Pictures, Pictures]:
        """Those of captions, and those of classes."""
        by_class = [row for row, subject in enumerate(self.subjects) if subject.label >= 0]
        by_caption = [row for row, subject in enumerate(self.subjects) if subject.label < 0]
        return self.select(by_caption), self.select(by_class)


def emoji_subjects(count: int, seed: int, held_out: set[str]) -> list[Subject]:
    """``count`` subjects in the shares that mmspec/emoji-t2i was trained with, without the captions ``held_out``."""
    rng = random.Random(seed)
    classes = tuple(CLASSES)
    labels = class_of_names(classes)
    subjects: list[Subject] = []
    while len(subjects) < count:
        name = rng.choice(ICONIC)
        drawn = draw_condition(name, labels[name], rng.choice(list(STYLES)), classes, rng)
        if drawn.null or drawn.label == len(classes) or drawn.text in held_out:
            continue  # the null condition has no pictures of its own: it is the other branch of every picture
        subjects.append(Subject(drawn.text, drawn.label))
    return subjects


def listed_subjects(count: int, seed: int, captions: list[str] | None, num_classes: int | None) -> list[Subject]:
    """``count`` subjects drawn from a list of captions, or from all classes where there is none.

    Raises:
        ValueError: If there is neither.
    """
    if captions:
        kinds = [Subject(caption=caption) for caption in captions]
    elif num_classes:
        kinds = [Subject(label=label) for label in range(num_classes)]
    else:
        raise ValueError("The target takes captions only; give a file of them as `prompts`.")
    rng = random.Random(seed)
    return [rng.choice(kinds) for _ in range(count)]


def sample_pictures(
    pipe: LlamaGenPipeline, subjects: list[Subject], folder: Path, seed: int, chunk_size: int = 32, batch: int = 16
) -> Pictures:
    """Sample a picture of every subject at the checkpoint's own settings; what ``folder`` holds already is read.

    Args:
        pipe: The target.
        subjects: What to draw.
        folder: Where finished chunks are kept.
        seed: Picture i has the seed ``seed * 1_000_003 + i``.
        chunk_size: Pictures of a file.
        batch: Pictures decoded together.

    Raises:
        ValueError: If ``folder`` holds pictures of other subjects.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for first in tqdm(range(0, len(subjects), chunk_size), desc="pictures"):
        asked = subjects[first : first + chunk_size]
        path = folder / f"{first:06d}.safetensors"
        if not path.is_file():
            seeds = [seed * 1_000_003 + first + row for row in range(len(asked))]
            _write(path, asked, seeds, _draw(pipe, asked, seeds, batch))
        part = _read(path)
        if part.subjects != asked:
            raise ValueError(f"{path} holds pictures of other subjects; choose another output folder.")
        parts.append(part)
    return Pictures(subjects, torch.cat([p.seeds for p in parts]), torch.cat([p.codes for p in parts]))


def _draw(pipe: LlamaGenPipeline, subjects: list[Subject], seeds: list[int], batch: int) -> Tensor:
    """Codes (n, N); a call takes captions or classes, so there are two."""
    codes = torch.zeros(len(subjects), pipe.grid[0] * pipe.grid[1], dtype=torch.long)
    for by_class in (False, True):
        rows = [row for row, subject in enumerate(subjects) if (subject.label >= 0) == by_class]
        if not rows:
            continue
        output = pipe(
            None if by_class else [subjects[row].caption for row in rows],
            class_labels=[subjects[row].label for row in rows] if by_class else None,
            seed=[seeds[row] for row in rows],
            micro_batch_size=batch,
            output_type="tokens",
        )
        assert isinstance(output, ImageOutput)
        codes[rows] = torch.as_tensor(output.tokens)
    return codes


def _write(path: Path, subjects: list[Subject], seeds: list[int], codes: Tensor) -> None:
    words = json.dumps([[subject.caption, subject.label] for subject in subjects])
    partial = path.with_suffix(".tmp")
    save_file({"codes": codes, "seeds": torch.tensor(seeds)}, partial, metadata={"subjects": words})
    partial.replace(path)  # a kill leaves whole files only


def _read(path: Path) -> Pictures:
    from safetensors import safe_open

    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        words = json.loads(file.metadata()["subjects"])
    return Pictures([Subject(caption, label) for caption, label in words], tensors["seeds"], tensors["codes"])
