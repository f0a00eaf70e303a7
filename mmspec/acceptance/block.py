"""Block verification (Sun et al., 2024, "Block Verification Accelerates Speculative Decoding").

The whole block is judged jointly, so a rejection early in the block no longer kills later tokens; it never accepts
fewer tokens than the ratio test. With S_i the summed log-ratios, log pi_i = S_i - max_{j <= i} S_j.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.ratio import draft_lengths, log_ratio
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw
from mmspec.core.verify import Guarantee, RoundContext, Verdict, chain_verdict


def block_survival(log_ratios: Tensor) -> Tensor:
    """pi_0 .. pi_K (B, K + 1) from the log-ratios (B, K) of the draft tokens."""
    steps = log_ratios.nan_to_num(nan=-80.0).clamp(-80.0, 80.0).cumsum(-1)
    sums = torch.cat([steps.new_zeros(len(steps), 1), steps], dim=-1)
    return (sums - sums.cummax(-1).values).exp()


def block_acceptance(pi: Tensor, p: Tensor, q: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Acceptance probability of each block length and the weights of the token that would follow it.

    Args:
        pi: Survival (B, K + 1).
        p, q: Laws after each node (B, K + 1, V).
        lengths: Draft tokens of each row (B,).

    Returns:
        ``h`` (B, K + 1), 0 beyond a row's length, and ``weights`` (B, K + 1, V), equal to p at the full length.
    """
    place = torch.arange(pi.shape[1], device=pi.device)
    full = place == lengths[:, None]
    weights = (pi[..., None] * p - q).clamp_min(0)
    mass = weights.sum(-1)
    slack = mass + 1 - pi
    h = torch.where(slack > 0, mass / slack, torch.ones_like(slack))
    h = torch.where(full, pi, h) * (place <= lengths[:, None])
    weights = torch.where(full[..., None] | (mass <= 0)[..., None], p, weights)
    return h, weights


class BlockAcceptance(Acceptance):
    """Accept the longest prefix that survives a joint test. Needs drafts whose noise belongs to this round alone."""

    guarantee = Guarantee.SAME_LAW
    # the decision to stop looks at later tokens, so noise that outlives the round would no longer be fresh
    legal_laws = frozenset({DraftLaw.SAMPLED})
    needs_law = True

    @register_to_config
    def __init__(self) -> None:
        pass

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        assert draft.log_q is not None
        p, log_p = context.laws(logits)
        lengths = draft_lengths(draft)
        h, weights = block_acceptance(block_survival(log_ratio(draft, log_p)), p, draft.log_q.exp(), lengths)
        nodes = torch.arange(1, draft.num_nodes, device=logits.device)
        uniform = context.noise.uniform(Stream.ACCEPT, context.rounds[:, None], nodes[None])
        survives = uniform < h[:, 1:]  # (B, K)
        num_accepted = (survives * nodes).amax(-1) if draft.num_nodes > 1 else torch.zeros_like(lengths)
        at = num_accepted[:, None, None].expand(-1, 1, logits.shape[-1])
        gumbel = context.noise.gumbel(Stream.RESIDUAL, context.rounds[:, None])[:, 0]
        next_token = draw(weights.gather(1, at)[:, 0].log(), gumbel)
        return chain_verdict(draft, num_accepted, next_token)
