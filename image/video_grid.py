"""The token layout of a clip: latent frames of rows of codes in raster order, time slowest.

Symbols: B clips, M tokens, (T, H, W) latent frames, rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class VideoGrid:
    """Codes of one clip.

    Args:
        frames, rows, columns: Latent frames, and codes per column and row.
        num_codes: Number of codes.

    Raises:
        ValueError: If a size is not positive.
    """

    frames: int
    rows: int
    columns: int
    num_codes: int

    def __post_init__(self) -> None:
        if min(self.frames, self.rows, self.columns, self.num_codes) < 1:
            raise ValueError(f"A clip needs at least one latent frame, row, column and code, got {self}.")

    @property
    def frame_length(self) -> int:
        """Codes per latent frame."""
        return self.rows * self.columns

    @property
    def num_tokens(self) -> int:
        """Codes of the clip."""
        return self.frames * self.frame_length

    def complete_frames(self, length: int) -> int:
        """Latent frames whose codes are all among the first ``length``."""
        return min(length // self.frame_length, self.frames)

    def codes(self, tokens: Tensor) -> Tensor:
        """Codes (B, T', H, W) of the complete latent frames of ``tokens`` (B, M)."""
        frames = tokens.shape[1] // self.frame_length
        return tokens[:, : frames * self.frame_length].unflatten(1, (frames, self.rows, self.columns))
