"""The ratio test (Leviathan et al., 2023; Chen et al., 2023): accept x with probability min(1, p(x) / q(x)).

On the first rejection the next token comes from the residual [p - q]+, otherwise it is a bonus token from p.
With the laws of a Jacobi window as q this is speculative Jacobi decoding (Teng et al., 2024).
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw
from mmspec.core.verify import Guarantee, RoundContext, Verdict, chain_verdict, first_rejection, residual


def log_ratio(draft: Draft, log_p: Tensor) -> Tensor:
    """log p(x) - log q(x) of every draft token of a chain: (B, K) from ``log_p`` (B, N, V)."""
    assert draft.log_q is not None
    token = draft.tokens[:, 1:, None]
    return (log_p[:, :-1].gather(-1, token) - draft.log_q[:, :-1].gather(-1, token))[..., 0]


def draw_next(log_p: Tensor, draft: Draft, num_accepted: Tensor, context: RoundContext) -> Tensor:
    """Draw the correction from the residual, or the bonus from p where a row's whole draft was accepted: (B,)."""
    assert draft.log_q is not None
    at = num_accepted[:, None, None].expand(-1, 1, log_p.shape[-1])
    p = log_p.gather(1, at)[:, 0].exp()
    drafted = num_accepted < draft_lengths(draft)
    q = draft.log_q.gather(1, at)[:, 0].exp() * drafted[:, None]
    gumbel = context.noise.gumbel(Stream.RESIDUAL, context.rounds[:, None])[:, 0]
    return draw(residual(p, q).log(), gumbel)


def draft_lengths(draft: Draft) -> Tensor:
    """Number of draft tokens of each row of a chain (B,)."""
    if draft.valid is None:
        return torch.full_like(draft.tokens[:, 0], draft.num_nodes - 1)
    return draft.valid[:, 1:].sum(-1)


class RatioAcceptance(Acceptance):
    """Accept token by token with probability min(1, p / q). Needs chains that carry a truthful law."""

    guarantee = Guarantee.SAME_LAW
    legal_laws = frozenset({DraftLaw.SAMPLED, DraftLaw.COUPLED})
    needs_law = True

    @register_to_config
    def __init__(self) -> None:
        pass

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        _, log_p = context.laws(logits)
        nodes = torch.arange(1, draft.num_nodes, device=logits.device)
        uniform = context.noise.uniform(Stream.ACCEPT, context.rounds[:, None], nodes[None])
        # strict: a token of probability 0 is never accepted; -inf - -inf is nan, which compares False
        accepted = uniform.log() < log_ratio(draft, log_p)
        valid = None if draft.valid is None else draft.valid[:, 1:]
        num_accepted = first_rejection(accepted, valid)
        return chain_verdict(draft, num_accepted, draw_next(log_p, draft, num_accepted, context))
