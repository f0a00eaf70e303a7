"""Annealed relaxation (Li et al., 2026, "Annealed Relaxation of Speculative Decoding for Faster Autoregressive Image
Generation"): accept the i-th draft token with probability min(1, omega_i p / q), omega falling with the depth i, and
correct with [p - min(q, omega_i p)]+.

The schedule is omega_i = max(1, delta exp(-nu i - mu)), with mu such that the mean over the first ``length`` depths is
delta before the maximum is taken. The emitted law is at most omega_i p everywhere, hence TV <= 1 - 1 / omega_i; an omega
below 1 would accept less without coming closer to p. How mu is chosen is our reading: the authors' code is not out.
"""

from __future__ import annotations

import math

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, check_count, check_number
from mmspec.acceptance.relaxed import DenseRelaxation, relaxed_chain
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.verify import Guarantee, RoundContext, Verdict


class Annealed(DenseRelaxation):
    """w = omega(depth) p."""

    def __init__(self, delta: float, nu: float, length: int) -> None:
        mean = sum(math.exp(-nu * depth) for depth in range(1, length + 1)) / length
        self.delta, self.nu, self.mu = delta, nu, math.log(mean)

    def omega(self, depth: int) -> float:
        """Relaxation at ``depth``, counted from 1."""
        return max(1.0, self.delta * math.exp(-self.nu * depth - self.mu))

    def weights(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        omega = (self.delta * torch.exp(-self.nu * depth.to(p.dtype) - self.mu)).clamp_min(1)
        return omega[:, None] * p


class CoolAcceptance(Acceptance):
    """The ratio test, relaxed most at the first draft token of a round.

    Args:
        delta: Mean relaxation, at least 1; with ``nu=0``, 1 is the exact ratio test.
        nu: How fast the relaxation falls with the depth, at least 0; 0 relaxes all depths alike.
        length: Depths over which ``delta`` is the mean, at least 1.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.BOUNDED_TV
    legal_laws = frozenset({DraftLaw.SAMPLED, DraftLaw.COUPLED})
    needs_law = True

    @register_to_config
    def __init__(self, delta: float = 1.1, nu: float = 0.7, length: int = 5) -> None:
        check_number("delta", delta, 1)
        check_number("nu", nu, 0)
        check_count("length", length)
        self.relaxation = Annealed(delta, nu, length)
        largest = self.relaxation.omega(1)
        self.step_tv_bound = 1 - 1 / largest
        if largest == 1:
            self.guarantee = Guarantee.SAME_LAW

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        return relaxed_chain(draft, context.laws(logits)[0], context, self.relaxation)
