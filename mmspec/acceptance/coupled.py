"""Coupled match, the default: keep the draft as far as it equals what plain decoding would have drawn.

The target's token at order index t is argmax(log p + g_t) with Gumbel noise g_t that depends on (row seed, t) alone.
Plain decoding uses the same noise, so the output equals plain decoding token for token, whatever the drafter, the
tree, the window or the batch. A drafter that draws with the same noise agrees with probability at least
(1 - TV) / (1 + TV) (Daliri et al., 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding").
"""

from __future__ import annotations

from dataclasses import replace

from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.core.draft import Draft
from mmspec.core.sampling import draw_token
from mmspec.core.verify import Guarantee, RoundContext, Verdict, follow_target


def target_choice(draft: Draft, logits: Tensor, context: RoundContext) -> Tensor:
    """The token (B, N) that plain decoding draws after each node."""
    if context.sampling.greedy:
        return logits.argmax(-1)
    if draft.is_chain:
        gumbel = context.target_noise(draft.num_nodes)
    else:  # nodes of one depth share an order index, hence their noise
        by_depth = context.target_noise(draft.num_nodes)
        gumbel = by_depth.gather(1, draft.depth[..., None].expand(-1, -1, by_depth.shape[-1]))
    return draw_token(logits, context.sampling, gumbel)


class CoupledAcceptance(Acceptance):
    """Accept what equals the target's own draw under position-keyed noise. Exact for every drafter and every tree."""

    guarantee = Guarantee.SAME_TOKENS

    @register_to_config
    def __init__(self) -> None:
        pass

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        chosen = target_choice(draft, logits, context)
        return replace(follow_target(draft, chosen), chosen=chosen)
