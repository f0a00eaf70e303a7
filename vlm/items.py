"""Questions about pictures in files: what drafters learn from and benches ask."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTIONS = "questions.jsonl"
"""Where a checkpoint keeps its own, unseen in training."""


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes:
        prompt: Text, as for a call of the pipeline.
        images: Its pictures.
        answer: The right answer, or that of a corpus; ``None`` if there is none.
        task: What kind of question it is, for reports.
    """

    prompt: str
    images: tuple[Any, ...]
    answer: str | None = None
    task: str = "all"


def read_items(path: Path) -> list[Item]:
    """Questions of a file with one JSON object a line: ``prompt``, ``images`` (paths), and perhaps
    ``answer`` and ``task``.

    Paths are relative to the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: Naming the line that has another form.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There are no questions {str(path)!r}.")
    items = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            images = tuple(str(Path(path).parent / image) for image in entry.get("images", []))
            texts = entry["prompt"], entry.get("answer"), entry.get("task", "all")
            if not all(isinstance(text, str) for text in texts if text is not None):
                raise TypeError("`prompt`, `answer` and `task` must be strings")
            items.append(Item(texts[0], images, texts[1], texts[2]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"Line {number} of {path} is no question with `prompt` and `images`: {error!r}."
            ) from error
    if not items:
        raise ValueError(f"{path} holds no questions.")
    return items
