"""Fewer slots for the pictures in a drafter's context: a picture has many, and a drafter needs less of it than its target
(as in Huang et al., 2025, "SpecVLM: Fast Speculative Decoding in Vision-Language Models", arXiv 2509.11815).

What a picture's n slots hold becomes ceil(n / ratio) rows, each a mix of them:

    kind        row j of a picture
    prune       the slot with the j-th place among the best by a learnt score; the score scales it, so that it learns
    pool        the mean of the slots j * ratio, ..., j * ratio + ratio - 1
    conv        a learnt kernel over these slots and as many around them, one for all channels
    resampler   a learnt attention of the mean of these slots to all slots of the picture

Rows keep places in the stream: that of the slot that is kept, or the last one of those that a row begins with. Text is left as
it is. Drafts change, and what is accepted of them; the target reads every slot, so its tokens do not.

Symbols: R rows, S slots, N slots that are left, n slots of a picture, k rows of it, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

KINDS = ("conv", "pool", "prune", "resampler")


@dataclass
class Shortened:
    """A context with fewer slots.

    Attributes:
        parts: What the slots hold, each (R, N, ...).
        places: Slot of the whole context that each stands for (R, N), ascending; beyond ``count`` the last one again.
        count: Slots of each row (R,).
    """

    parts: list[Tensor]
    places: Tensor
    count: Tensor


class VisualCompressor(nn.Module):
    """Mixes the slots of every picture into fewer.

    Args:
        kind: One of :data:`KINDS`.
        ratio: Slots for which one row remains, at least 2.
        hidden_size: Width of the states that decide how they are mixed.

    Raises:
        TypeError, ValueError: For an unknown kind or a ratio out of range.
    """

    def __init__(self, kind: str, ratio: int, hidden_size: int) -> None:
        super().__init__()
        check_compression(kind, ratio)
        self.kind, self.ratio = kind, ratio
        if kind == "prune":
            self.score = nn.Linear(hidden_size, 1, bias=False)
        elif kind == "conv":
            self.kernel = nn.Parameter(torch.ones(3 * ratio) / (3 * ratio))
        elif kind == "resampler":
            self.query, self.key = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))

    def forward(self, parts: Sequence[Tensor], visual: Tensor, count: Tensor) -> Shortened:
        """Shorten a context.

        Args:
            parts: What the slots hold, each (R, S, ...); the first decides how slots are mixed.
            visual: Which slots belong to pictures (R, S); those that touch are of one.
            count: Real slots of each row (R,).
        """
        rows = zip(visual.tolist(), count.tolist(), strict=True)
        made = [self._row([part[row] for part in parts], seen[:length]) for row, (seen, length) in enumerate(rows)]
        joined = [pad_sequence([row[number] for row, _ in made], batch_first=True) for number in range(len(parts))]
        lengths = torch.tensor([len(places) for _, places in made], device=visual.device)
        longest = int(joined[0].shape[1])
        places = torch.stack([torch.cat([p, p[-1:].expand(longest - len(p))]) for _, p in made])
        return Shortened(joined, places, lengths)

    def _row(self, parts: list[Tensor], visual: list[bool]) -> tuple[list[Tensor], Tensor]:
        """What is left of one row (N, ...), and the places of it (N,)."""
        pieces: list[list[Tensor]] = [[] for _ in parts]
        places, begin = [], 0
        for seen, group in itertools.groupby(visual):
            end = begin + len(list(group))
            here = torch.arange(begin, end, device=parts[0].device)
            if seen:
                mix, kept = self.mix(parts[0][begin:end])
                here = here[kept]
            for piece, part in zip(pieces, parts, strict=True):
                piece.append(mix.to(part.dtype) @ part[begin:end] if seen else part[begin:end])
            places.append(here)
            begin = end
        return [torch.cat(piece) for piece in pieces], torch.cat(places)

    def mix(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """How the ``states`` (n, D) of a picture's slots are mixed (k, n), and the slots that the rows stand for (k,)."""
        size = len(states)
        first = torch.arange(0, size, self.ratio, device=states.device)  # (k,)
        last = (first + self.ratio - 1).clamp_max(size - 1)
        place = torch.arange(size, device=states.device)
        inside = (place >= first[:, None]) & (place <= last[:, None])  # (k, n)
        if self.kind == "pool":
            return inside / inside.sum(-1, keepdim=True), last
        if self.kind == "prune":
            score = self.score(states)[:, 0].float()
            kept = score.topk(len(first)).indices.sort().values
            return torch.nn.functional.one_hot(kept, size) * 2 * score.sigmoid(), kept
        if self.kind == "conv":
            tap = place - first[:, None] + self.ratio
            there = (tap >= 0) & (tap < len(self.kernel))
            return self.kernel[tap.clamp(0, len(self.kernel) - 1)] * there, last
        means = (inside / inside.sum(-1, keepdim=True)).to(states.dtype) @ states
        scores = self.query(means) @ self.key(states).T * states.shape[-1] ** -0.5
        return scores.float().softmax(-1), last


def check_compression(kind: str, ratio: int) -> None:
    """Raise TypeError or ValueError for an unknown kind, or a ratio that is no integer of at least 2."""
    if kind not in KINDS:
        raise ValueError(f"Unknown `compression` {kind!r}; choose one of {', '.join(KINDS)}, or None.")
    if isinstance(ratio, bool) or not isinstance(ratio, int):
        raise TypeError(f"`compression_ratio` must be an integer, got {ratio!r}.")
    if ratio < 2:
        raise ValueError(f"`compression_ratio` must be at least 2, got {ratio}.")


def compressor_of(kind: str | None, ratio: int, hidden_size: int) -> VisualCompressor | None:
    """The compressor of these settings; ``None`` without a kind."""
    return None if kind is None else VisualCompressor(kind, ratio, hidden_size)
