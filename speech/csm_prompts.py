"""Conversations as CSM reads them: each turn is a speaker's text, and what was said in sound where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turn:
    """One turn.

    Attributes:
        speaker: Number of the speaker, at least 0.
        text: What is said.
        frames: Frames of its recording; ``None`` if there is none.
    """

    speaker: int
    text: str
    frames: int | None = None


def conversation_tokens(processor: Any, turns: Sequence[Turn]) -> Tensor:
    """Tokens (L,) of ``turns``, with a placeholder for each frame of their recordings.

    Args:
        processor: The model's ``CsmProcessor``. Its template says how turns are written; its own count of placeholders, which
            holds for the released codec only, is not used.

    Raises:
        ValueError: If the template does not place each recording once.
    """
    conversation = [{"role": str(turn.speaker), "content": _content(turn)} for turn in turns]
    written = processor.apply_chat_template(conversation, tokenize=False)
    placeholder = processor.tokenizer.convert_tokens_to_ids(processor.audio_token)
    frames = [turn.frames for turn in turns if turn.frames is not None]
    tokens = torch.tensor(processor.tokenizer(written, add_special_tokens=False).input_ids)
    places = tokens == placeholder
    if int(places.sum()) != len(frames):
        raise ValueError(
            f"The processor's chat template places {int(places.sum())} of {len(frames)} recordings; it is not CSM's."
        )
    counts = torch.ones_like(tokens).masked_scatter(places, torch.tensor(frames, dtype=torch.long))
    return tokens.repeat_interleave(counts)


def _content(turn: Turn) -> list[dict[str, str]]:
    said = [{"type": "text", "text": turn.text}]
    return said if turn.frames is None else [*said, {"type": "audio"}]


def readable(text: str, processor: Any, name: str = "`prompt`") -> str:
    """``text`` with single spaces.

    Raises:
        TypeError: If it is no string.
        ValueError: If it holds nothing to say, or tokens that steer the model.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a string, got {type(text).__name__}.")
    plain = " ".join(text.split())
    if not any(character.isalnum() for character in plain):
        raise ValueError(f"{name} is {text!r}: there is nothing to say in it.")
    if steering := sorted(token for token in processor.tokenizer.get_added_vocab() if token in plain):
        raise ValueError(f"{name} holds {', '.join(steering)}, which the model does not read as text; leave it out.")
    return plain
