"""From texts to the pieces that are spoken one by one, each with its tokens, seed and budget.

A long text is cut at pauses; its pieces are independent rows with seeds of their own, and their frames are joined before they are decoded, so that
the waveform has no seam in it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.speech.speakable import ALPHABET

LONGEST_PIECE = 110
"""Characters of a piece; training documents are not much longer."""

_TOKENS = {character: index + 1 for index, character in enumerate(ALPHABET)}
_STEP = 0x9E3779B97F4A7C15  # an odd number far from simple ratios: seeds of pieces do not meet those of other rows
_LIMIT = 1 << 63


@dataclass(frozen=True)
class Piece:
    """What one row says.

    Attributes:
        utterance: Number of the utterance that it belongs to.
        text: Its speakable text.
        seed: Its seed.
        budget: Most frames.
    """

    utterance: int
    text: str
    seed: int
    budget: int


def text_tokens(text: str) -> Tensor:
    """Tokens (L,) of a speakable text; 0 is kept for frames."""
    return torch.tensor([_TOKENS[character] for character in text])


def cut(text: str, longest: int = LONGEST_PIECE) -> list[str]:
    """Pieces of a speakable text of at most ``longest`` characters: whole sentences where they fit, else clauses, else words."""
    for separators in (r"(?<=\.) ", r"(?<=[.,]) ", " "):
        parts = re.split(separators, text)
        if max(map(len, parts)) <= longest:
            return _joined(parts, longest)
    return [part[place : place + longest] for part in parts for place in range(0, len(part), longest)]


def _joined(parts: list[str], longest: int) -> list[str]:
    pieces = [parts[0]]
    for part in parts[1:]:
        if len(pieces[-1]) + 1 + len(part) <= longest:
            pieces[-1] += " " + part
        else:
            pieces.append(part)
    return pieces


def make_pieces(text: str, utterance: int, seed: int, frame_rate: float, max_frames: int | None = None) -> list[Piece]:
    """The pieces of a speakable ``text``; the first one has the seed of the utterance itself."""
    pieces = []
    for number, part in enumerate(cut(text)):
        budget = frames_for(part, frame_rate)
        if max_frames is not None:
            budget = min(budget, max_frames)
        pieces.append(Piece(utterance, part, (seed + number * _STEP) % _LIMIT, budget))
    return pieces


def frames_for(text: str, frame_rate: float) -> int:
    """Frames that no reading of ``text`` needs: a second and a half, and a fifth of a second a character."""
    return math.ceil(frame_rate * (1.5 + 0.2 * len(text)))
