"""Match with independent noise: draw from the target at every node and follow the child that equals the draw.

Lossless in one line: the token after every committed prefix *is* a draw from p. For a set S of children it descends
with probability p(S), the optimum over lossless rules for deterministic drafts.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.core.draft import Draft
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw, process
from mmspec.core.verify import Guarantee, RoundContext, Verdict, follow_target


class MatchAcceptance(Acceptance):
    """Accept what equals a fresh draw from the target, with noise keyed by (round, node)."""

    guarantee = Guarantee.SAME_LAW

    @register_to_config
    def __init__(self) -> None:
        pass

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        scores = process(logits, context.sampling)
        if context.sampling.greedy:
            return follow_target(draft, scores.argmax(-1))
        nodes = torch.arange(draft.num_nodes, device=logits.device)
        keys = context.rounds[:, None] * (1 << 20) + nodes
        return follow_target(draft, draw(scores, context.noise.gumbel(Stream.RESIDUAL, keys)))
