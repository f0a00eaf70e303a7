"""Greedy verification: at temperature 0, keep the draft as far as it equals the arg-max (Stern et al., 2018)."""

from __future__ import annotations

from dataclasses import replace

from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee, RoundContext, Verdict, follow_target


class GreedyAcceptance(Acceptance):
    """Accept what equals the most likely token; legal at ``temperature=0`` only."""

    guarantee = Guarantee.SAME_TOKENS

    @register_to_config
    def __init__(self) -> None:
        pass

    def check(self, law: DraftLaw, sampling: SamplingParams, drafter: str) -> None:
        super().check(law, sampling, drafter)
        if not sampling.greedy:
            raise ValueError(
                f"GreedyAcceptance is exact at `temperature=0` only, got {sampling.temperature}; use CoupledAcceptance."
            )

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        chosen = logits.argmax(-1)
        return replace(follow_target(draft, chosen), chosen=chosen)
