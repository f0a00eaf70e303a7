"""The vision-language part of ``mmspec demo``: questions about pictures, answered plainly and speculatively."""

from __future__ import annotations

from mmspec.cli.ask import DEFAULT_VISION_LANGUAGE_MODEL
from mmspec.cli.demo_rows import Row, Twice
from mmspec.cli.loading import load_reader
from mmspec.cli.output import say

NAME = "vision-language"


def answer_questions(count: int, device: str = "auto", model: str = DEFAULT_VISION_LANGUAGE_MODEL) -> Row:
    """Answer ``count`` of the questions that come with ``model`` both ways; the row says so if ``model`` is not there.

    Raises:
        FileNotFoundError: If ``model`` comes without questions.
    """
    from pathlib import Path

    from mmspec.models.loading import embedded_checkpoints, local_folder
    from mmspec.vlm.items import QUESTIONS, read_items

    if model.startswith("mmspec/") and model not in embedded_checkpoints():
        return Row(NAME, note=f"no {model} here")
    items = read_items((local_folder(model) or Path(model)) / QUESTIONS)
    step = max(1, len(items) // count)
    pipe = load_reader(model, device)
    pipe(items[0].prompt, list(items[0].images), max_new_tokens=4)  # warm-up
    pairs = []
    for item in items[::step][:count]:
        plain, fast = (pipe(item.prompt, list(item.images), max_new_tokens=96, speculate=on) for on in (False, True))
        pairs.append(Twice(item.prompt, plain, fast, plain.tokens == fast.tokens and plain.texts == fast.texts))
        say(f"{item.prompt} {fast.texts[0]}")
    return Row.of(NAME, pairs)
