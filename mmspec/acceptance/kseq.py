"""K-SEQ (Sun et al., 2023, "SpecTr"): independent siblings, all tested against the target's law scaled down by rho.

With R children of a node drawn independently from q and

    beta(rho) = sum_v min(q(v), p(v) / rho),     P_acc = 1 - (1 - beta)^R,

each child x is accepted with probability min(1, p(x) / (rho q(x))), the first accepted one is followed, and on total failure
the next token has the weights p - min(q, p / rho) P_acc / beta. This has the law p for every rho in [1, R] with
P_acc <= rho beta; the smallest such rho accepts most, at least (1 - 1/e) of what any rule could.

Symbols: B rows, R most children of a node, V vocabulary.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.acceptance.recursive import Walk, finish_walk, walk_down
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import process
from mmspec.core.verify import Guarantee, RoundContext, Verdict

_BISECTIONS = 30


def smallest_rho(p: Tensor, q: Tensor, count: Tensor) -> Tensor:
    """Smallest legal rho (B,) for ``count`` (B,) children from ``q`` (B, V) under ``p`` (B, V)."""
    low, high = torch.ones_like(p[:, 0]), count.clamp_min(1).to(p.dtype)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        beta = torch.minimum(q, p / middle[:, None]).sum(-1)
        legal = 1 - (1 - beta) ** count <= middle * beta
        low, high = torch.where(legal, low, middle), torch.where(legal, middle, high)
    return high


def failure_weights(p: Tensor, q: Tensor, rho: Tensor, count: Tensor) -> Tensor:
    """Weights of the token (B, V) that replaces ``count`` (B,) rejected children."""
    accepted = torch.minimum(q, p / rho[:, None])
    beta = accepted.sum(-1)
    share = torch.where(beta > 0, (1 - (1 - beta) ** count) / beta.clamp_min(torch.finfo(p.dtype).tiny), 0.0)
    left = (p - accepted * share[:, None]).clamp_min(0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, p)


def walk_independent(draft: Draft, p: Tensor, uniform: Tensor) -> Walk:
    """Go down a tree of independent siblings; arguments as for ``walk_tree``."""
    rows = torch.arange(len(p), device=p.device)

    def judge(p: Tensor, node: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        assert draft.log_q is not None
        q = draft.log_q[rows, node].exp()
        children = draft.children[rows, node]  # (B, R)
        exists = children >= 0
        count = exists.sum(-1)
        rho = smallest_rho(p, q, count)
        at = children.clamp_min(0)
        token = draft.tokens.gather(1, at)
        # by product and strict: a token of probability 0 is never accepted
        accepted = exists & (uniform.gather(1, at) * rho[:, None] * q.gather(1, token) < p.gather(1, token))
        order = torch.arange(at.shape[1], device=p.device)
        first = torch.where(accepted, order, at.shape[1]).amin(-1) if at.shape[1] else torch.zeros_like(node)
        padded = torch.nn.functional.pad(torch.where(accepted, children, -1), (0, 1), value=-1)
        chosen = padded.gather(1, first[:, None])[:, 0]
        return chosen, failure_weights(p, q, rho, count), torch.zeros_like(p[:, 0])

    return walk_down(draft, p, judge)


class KSeqAcceptance(Acceptance):
    """Test independent siblings against p / rho. For chains it is :class:`RatioAcceptance`."""

    guarantee = Guarantee.SAME_LAW
    legal_laws = frozenset({DraftLaw.INDEPENDENT, DraftLaw.SAMPLED})
    needs_law = True

    @register_to_config
    def __init__(self) -> None:
        pass

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        if draft.is_chain:
            return RatioAcceptance()(draft, logits, context)
        nodes = torch.arange(draft.num_nodes, device=logits.device)
        uniform = context.noise.uniform(Stream.ACCEPT, context.rounds[:, None], nodes[None])
        p = process(logits, context.sampling).softmax(-1)
        verdict = finish_walk(draft, walk_independent(draft, p, uniform), context)
        verdict.step_tv = None
        return verdict
