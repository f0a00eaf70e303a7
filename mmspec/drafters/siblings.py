"""Drawing the children of draft nodes without replacement, so that recursive rejection stays exact.

The R largest of log q(v) + g_v with independent Gumbel noise g are R draws from q without replacement, in order (Vieira,
2014). Stochastic beam search (Kool et al., 2019, "Stochastic Beams and Where to Find Them") does so for whole paths: a node
of log-probability phi and perturbed score G gives its child v the raw score G~_v = phi + log q(v) + g_v, and, with Z the
largest of them,

    G_v = -log(exp(-G) - exp(-Z) + exp(-G~_v)),

so that the best child inherits G. Keeping the W best of all children is legal for recursive rejection: whether the next
sibling is kept depends on earlier siblings and on a maximum whose value does not depend on which token attained it.

Symbols: B rows, n nodes, W beam width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def draw_siblings(scores: Tensor, gumbel: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Draw ``count`` children per node without replacement.

    Args:
        scores: Log-weights of the children's law (B, n, V), not necessarily normalised.
        gumbel: Noise of this round (B, n, V).

    Returns:
        Tokens in the order of the draws (B, n, count), and which of them exist (B, n, count): a law with fewer tokens
        than ``count`` has no more to give.
    """
    values, tokens = (scores + gumbel).topk(count, dim=-1)
    return tokens, values > -torch.inf


@dataclass
class Beam:
    """The nodes of one depth.

    Attributes:
        parent: Place of the parent in the beam before (B, W).
        tokens: Tokens (B, W); siblings are in the order of their draws.
        phi: Log-probability of the path (B, W).
        score: Perturbed log-probability (B, W); -inf where a node does not exist.
    """

    parent: Tensor
    tokens: Tensor
    phi: Tensor
    score: Tensor


def root_beam(rows: int, device: torch.device) -> Beam:
    """The beam that holds the root alone."""
    zeros = torch.zeros(rows, 1, device=device)
    return Beam(zeros.long(), zeros.long(), zeros, zeros)


def grow_beam(beam: Beam, log_q: Tensor, gumbel: Tensor, width: int) -> Beam:
    """Children of the nodes of ``beam``, the ``width`` best of all.

    Args:
        log_q: Normalised log-law of each node's children (B, W, V).
        gumbel: Noise of this round (B, W, V).
    """
    phi = beam.phi[..., None] + log_q
    raw = phi + gumbel
    best = raw.amax(-1, keepdim=True)
    gap = beam.score[..., None] - raw + _log1mexp(raw - best)
    score = beam.score[..., None] - gap.clamp_min(0) - torch.log1p(torch.exp(-gap.abs()))
    score = torch.where(torch.isfinite(raw) & torch.isfinite(beam.score)[..., None], score, -torch.inf)
    flat, place = score.flatten(1).topk(min(width, score[0].numel()), dim=-1)
    size = log_q.shape[-1]
    return Beam(place // size, place % size, phi.flatten(1).gather(1, place), flat)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x <= 0, stable at both ends."""
    return torch.where(x > -0.6931, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))
