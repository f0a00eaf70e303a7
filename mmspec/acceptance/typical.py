"""Typical acceptance (Cai et al., 2024, "Medusa"; after Hewitt et al., 2022): the flatter the law, the lower the threshold.

A child is followed if p(x) >= min(epsilon, delta exp(-H(p))), H the entropy in nats.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, check_number
from mmspec.acceptance.threshold import judge_by_threshold, target_law
from mmspec.core.draft import Draft
from mmspec.core.verify import Guarantee, RoundContext, Verdict


class TypicalAcceptance(Acceptance):
    """Accept tokens that are not untypical of the target's law.

    Args:
        epsilon: Probability in (0, 1] from which every token is typical.
        delta: Factor of exp(-entropy), above 0.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.HEURISTIC

    @register_to_config
    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        check_number("epsilon", epsilon, 0, 1)
        check_number("delta", delta, 0)

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        p = target_law(logits, context)
        theta = (self.config.delta * torch.exp(-entropy(p))).clamp_max(self.config.epsilon)
        return judge_by_threshold(draft, logits, theta[..., None], p, context)


def entropy(p: Tensor) -> Tensor:
    """Entropy in nats of laws (..., V): (...)."""
    return -torch.einsum("...v,...v->...", p, p.clamp_min(torch.finfo(p.dtype).tiny).log_())
