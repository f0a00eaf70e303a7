"""Drafting step by step over all places of a text at once, as EAGLE-3's training-time test does (Li et al., 2025).

Step 0 reads the target's states. In step i each row reads its own prediction of the step before; it sees the true pairs
up to its own and its own pairs of the steps between, as a drafted chain does.

Symbols: R rows of the model batch, P pairs, H heads, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


class GrowingKeys:
    """Keys and values of all steps, one behind the other; stands where a cache would."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add keys and values (R, H, P, head size) of ``layer`` and return all of it."""
        if layer in self.stored:
            keys, values = self.stored[layer]
            key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
        self.stored[layer] = key, value
        return key, value


def unrolled(
    forward: Callable[[int, Tensor, Tensor, GrowingKeys], Tensor], features: Tensor, mask: Tensor, steps: int
) -> list[Tensor]:
    """Predictions of ``steps`` steps, each (R, P, D).

    Args:
        forward: ``(step, features, mask, keys) -> predictions`` of all rows; step i reads the tokens i places on.
        features: What step 0 reads (R, P, D).
        mask: Which true pairs a row sees (R, 1, P, P).
    """
    pairs = mask.shape[-1]
    itself = torch.eye(pairs, dtype=torch.bool, device=mask.device).expand(len(mask), 1, -1, -1)
    keys, predicted = GrowingKeys(), []
    for step in range(steps):
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernel's backward pass is slow on processors
            features = forward(step, features, mask, keys)
        predicted.append(features)
        mask = torch.cat([mask, itself], dim=-1)
    return predicted
