"""Fuzzy speculative decoding (Holsman et al., 2025): where the two laws are close, take the draft as it is.

The target's law p is replaced by p~ = q where Div(p, q) <= threshold, and p~ = p elsewhere. The decision does not look at
the token, so the output has exactly the law p~; per step TV(p, p~) is TV(p, q) or 0, at most sqrt(KL / 2) by Pinsker.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, check_choice, check_number
from mmspec.acceptance.relaxed import DenseRelaxation, relaxed_chain
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.verify import Guarantee, RoundContext, Verdict

DIVERGENCES = ("js", "kl", "tv")
FALLBACKS = ("ratio", "reject")
_TINY = torch.finfo(torch.float32).tiny


def divergence(kind: str, p: Tensor, q: Tensor) -> Tensor:
    """Divergence of laws (..., V) in nats: Jensen-Shannon (at most log 2), KL(p || q), or total variation (...)."""
    if kind == "tv":
        return (p - q).abs().sum(-1) / 2
    if kind == "kl":
        return kl_divergence(p, q)
    middle = ((p + q) / 2).clamp_min(_TINY)
    return (_kl_inside(p, middle) + _kl_inside(q, middle)) / 2


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of laws (..., V) in nats: (...); infinite where q lacks a token of p."""
    return torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)


def _kl_inside(p: Tensor, middle: Tensor) -> Tensor:
    """KL(p || middle) (...) for a ``middle`` (..., V) that is nowhere 0: one logarithm a token, no comparison."""
    return torch.einsum("...v,...v->...", p, (p / middle).clamp_min_(_TINY).log_())


class Fuzzy(DenseRelaxation):
    """w = q where the laws are close, so that everything is accepted; p or nothing elsewhere."""

    def __init__(self, threshold: float, kind: str, fallback: str) -> None:
        self.threshold, self.kind, self.fallback = threshold, kind, fallback

    def weights(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        return self._mix(self._close(p, q)[:, None], p, q)

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        p_token, q_token = (law.gather(1, tokens[:, None])[:, 0] for law in (p, q))
        return self._mix(self._close(p, q), p_token, q_token)

    def _close(self, p: Tensor, q: Tensor) -> Tensor:
        return divergence(self.kind, p, q) <= self.threshold

    def _mix(self, close: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """w from probabilities; twice q, since a uniform close to 1 times q may round up to q."""
        return torch.where(close, 2 * q, p if self.fallback == "ratio" else torch.zeros_like(p))


class FuzzyAcceptance(Acceptance):
    """Accept every draft token where target and draft model nearly agree.

    Args:
        threshold: Largest divergence, at least 0, at which the draft's law replaces the target's.
        divergence: ``js`` (at most log 2 = 0.69), ``kl`` (target to draft) or ``tv``.
        fallback: What happens where the laws are further apart: ``ratio`` accepts with probability min(1, p / q),
            ``reject`` draws from p at once, as published. The law of the output is the same; ``ratio`` accepts more.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.LAW_OF_TRANSFORM
    legal_laws = frozenset({DraftLaw.SAMPLED, DraftLaw.COUPLED})
    needs_law = True

    @register_to_config
    def __init__(self, threshold: float = 0.1, divergence: str = "js", fallback: str = "ratio") -> None:
        check_number("threshold", threshold, 0)
        check_choice("divergence", divergence, DIVERGENCES)
        check_choice("fallback", fallback, FALLBACKS)
        self.relaxation = Fuzzy(threshold, divergence, fallback)
        if divergence == "tv":
            self.step_tv_bound = min(1.0, threshold)
        elif divergence == "kl":
            self.step_tv_bound = min(1.0, (threshold / 2) ** 0.5)

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        return relaxed_chain(draft, context.laws(logits)[0], context, self.relaxation)
