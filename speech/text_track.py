"""Text laid beside the frames: each character lasts as long as it is said, and a frame reads the characters that it overlaps.

A talker that finds its place in the text by attention needs hours of speech to learn that. Here the place is given: durations are predicted
from the text (Ren et al., 2019, "FastSpeech"), and characters become a second input of every frame, as the text does in the dual track of
Qwen3-TTS (2026). RALL-E (Xin et al., 2024) steadies codec language models with durations in much the same way.

Symbols: R texts, L characters of the longest, T frames, D width of the talker, W width inside.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TrackBlock(nn.Module):
    """Depthwise convolution over characters, then a feed-forward layer, with a residual path (Liu et al., 2022)."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """Map ``x`` (R, L, W), which is zero where ``present`` (R, L, 1) is."""
        mixed = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return (x + self.down(F.gelu(self.up(self.norm(mixed))))) * present


def through(blocks: nn.ModuleList, embedded: Tensor, present: Tensor | None) -> Tensor:
    """``embedded`` characters (R, L, W) behind ``blocks``; those that are not ``present`` (R, L) are and stay zero."""
    real = embedded.new_ones(embedded.shape[:2]) if present is None else present.to(embedded.dtype)
    x = embedded * real[..., None]
    for block in blocks:
        x = block(x, real[..., None])
    return x


class DurationPredictor(nn.Module):
    """How many frames each character lasts. It shares nothing with the talker, so that it can be trained by itself.

    Args:
        vocab_size: Text tokens.
        width: Width of its own text embedding, W.
        blocks: Convolution blocks.
        kernel: Characters that a convolution sees, odd.
    """

    def __init__(self, vocab_size: int, width: int, blocks: int, kernel: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(TrackBlock(width, kernel) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, text: Tensor, present: Tensor | None = None) -> Tensor:
        """Logarithms of durations (R, L), float32, of characters of ``text`` (R, L) that are ``present`` (R, L)."""
        return self.out(self.norm(through(self.blocks, self.embedding(text), present)))[..., 0].float()


class TextTrack(nn.Module):
    """Reads texts and spreads them over frames.

    Args:
        vocab_size: Text tokens.
        text_width: Width of the text embedding, W.
        hidden_size: D.
        blocks: Convolution blocks.
        kernel: Characters that a convolution sees, odd.
    """

    def __init__(self, vocab_size: int, text_width: int, hidden_size: int, blocks: int, kernel: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TrackBlock(text_width, kernel) for _ in range(blocks))
        self.norm = nn.LayerNorm(text_width)
        self.durations = DurationPredictor(vocab_size, text_width, blocks, kernel)
        self.still = nn.Linear(text_width, hidden_size)
        self.moving = nn.Linear(text_width, hidden_size, bias=False)

    def forward(self, embedded: Tensor, present: Tensor | None = None) -> Tensor:
        """States (R, L, W) of ``embedded`` characters (R, L, W), of which those are real that are ``present`` (R, L)."""
        return self.norm(through(self.blocks, embedded, present))

    def spread(self, states: Tensor, durations: Tensor, frames: int) -> Tensor:
        """What each of ``frames`` frames reads (R, T, D), zero behind the text.

        Args:
            states: Of the characters (R, L, W).
            durations: Their frames (R, L), fractions allowed; 0 for padding.
            frames: T.
        """
        end = durations.cumsum(1)[:, None]  # (R, 1, L)
        start = end - durations[:, None]
        left = torch.arange(frames, device=states.device, dtype=durations.dtype)[None, :, None]
        first, last = torch.maximum(start, left), torch.minimum(end, left + 1)
        overlap = (last - first).clamp_min(0)  # (R, T, L), sums to 1 inside the text
        place = (0.5 * (first + last) - start) / durations[:, None].clamp_min(1e-6)  # 0 to 1 within the character
        return overlap @ self.still(states) + (overlap * (2 * place - 1)) @ self.moving(states)
