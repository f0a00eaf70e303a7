"""Decoders that hold the rotary angles of all their positions.

Symbols: R rows of the model batch, N positions of a forward, P head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffusers import ConfigMixin
from torch import Tensor

from mmspec.models.strict import StrictModelMixin


class RotaryModel(StrictModelMixin, ConfigMixin):
    """A decoder with its angles in the buffer ``rotary`` (positions, 2, P), cosines and signed sines.

    They stay float32 in a half-precision model, as in training.
    """

    rotary: Tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        exact = self.rotary
        super()._apply(fn, recurse)
        if self.rotary.dtype != exact.dtype:
            self.rotary = exact.to(self.rotary.device)
        return self

    def rotary_at(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of ``position_ids`` (R, N), each (R, N, 1, P), the same for all heads."""
        table = self.rotary[position_ids]  # (R, N, 2, P)
        return table[:, :, 0, None], table[:, :, 1, None]
