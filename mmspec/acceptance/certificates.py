"""Diagnostics: how far draft and target may differ before a verdict changes, and what step-wise deviations add up to.

A threshold rule rejects the tokens L = {v : p(v) < theta(p)}. The smallest KL(p || q) over all q whose arg-max can be
rejected is found by water-filling: take b, the likeliest token of L, and grow S = {b} with the largest other tokens while
the next one exceeds c = p(S) / |S|; then KL* = sum_S p log(p / c). If KL(p || q) < KL*, the draft model's most likely token
is accepted for certain.

Symbols: V vocabulary; leading dimensions are free.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rejection_radius(p: Tensor, rejected: Tensor) -> Tensor:
    """KL* of laws ``p`` (..., V) for the tokens marked in ``rejected`` (..., V): (...), infinite where there is none."""
    lowest = p.masked_fill(~rejected, -1.0).argmax(-1, keepdim=True)
    others = p.scatter(-1, lowest, -1.0).sort(dim=-1, descending=True).values[..., :-1]
    radius = _fill(p.gather(-1, lowest), others)
    return torch.where(rejected.any(-1), radius, torch.inf)


def coverage_radius(p: Tensor, count: int) -> Tensor:
    """Smallest KL(p || q) at which the target's arg-max can drop out of the draft's ``count`` likeliest tokens (...).

    The arg-max a leaves the top ``count`` once that many others are at least as likely; the ``count`` largest are the
    cheapest to raise. S is a and those of them that lie below the common level: larger ones may stay where they are.
    """
    values = p.sort(dim=-1, descending=True).values
    if count >= p.shape[-1]:
        return torch.full_like(p[..., 0], torch.inf)
    best, others = values[..., :1], values[..., 1 : count + 1].flip(-1)  # others from the smallest on
    size = torch.arange(2, count + 2, device=p.device)
    level = (best + others.cumsum(-1)) / size
    last = (others[..., 1:] < level[..., :-1]).cumprod(-1).sum(-1, keepdim=True)  # of S, as a place in `others`
    common = level.gather(-1, last)
    raised = torch.arange(count, device=p.device) <= last
    cost = others * (others.clamp_min(torch.finfo(p.dtype).tiny) / common).log()
    return (best * (best / common).log())[..., 0] + torch.where(raised, cost, 0.0).sum(-1)


def _fill(first: Tensor, others: Tensor) -> Tensor:
    """sum_S p log(p / c) for S = ``first`` (..., 1) and the leading part of the sorted ``others`` (..., V - 1)."""
    mass = torch.cat([first, first + others.cumsum(-1)], dim=-1)  # p(S) of each size
    size = torch.arange(1, mass.shape[-1] + 1, device=mass.device)
    level = mass / size
    grows = others > level[..., :-1]
    members = grows.long().cumprod(-1).sum(-1, keepdim=True)  # how many others belong to S
    level = level.gather(-1, members)
    values = torch.cat([first, others], dim=-1)
    inside = torch.arange(values.shape[-1], device=values.device) <= members
    terms = values * (values.clamp_min(torch.finfo(values.dtype).tiny) / level).log()
    return torch.where(inside & (values > 0), terms, 0.0).sum(-1)


def strict_radius(p: Tensor) -> Tensor:
    """KL* of the strict rule, which accepts the arg-max alone (...): s (log 2 + z log z + (1 - z) log(1 - z)).

    s = p1 + p2 and z = p1 / s of the two likeliest tokens; at least (p1 - p2)^2 / (2 s).
    """
    top = p.topk(2, dim=-1).values
    both = top.sum(-1)
    z = top[..., 0] / both
    return both * (torch.log(torch.tensor(2.0, dtype=p.dtype)) + torch.xlogy(z, z) + torch.xlogy(1 - z, 1 - z))


def reverse_radius(p: Tensor) -> Tensor:
    """Smallest KL(q || p) over all q with another arg-max than ``p`` (..., V): -log(1 - (sqrt p1 - sqrt p2)^2), (...)."""
    top = p.topk(2, dim=-1).values.sqrt()
    return -torch.log1p(-((top[..., 0] - top[..., 1]) ** 2))


def certified_share(p: Tensor, q: Tensor, rejected: Tensor) -> Tensor:
    """Share of the laws ``p`` (n, V) at which no rejection of the arg-max of ``q`` (n, V) is possible, a scalar."""
    divergence = torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)
    return (divergence < rejection_radius(p, rejected)).double().mean()


def sequence_bound(step_tv: float, length: int) -> float:
    """Bound on the TV of outputs of ``length`` tokens if no step exceeds ``step_tv``: 1 - (1 - step_tv)^length.

    Couple each step of the two processes maximally: they part with probability at most ``step_tv``.
    """
    if not 0 <= step_tv <= 1:
        raise ValueError(f"`step_tv` must lie in [0, 1], got {step_tv}.")
    if length < 0:
        raise ValueError(f"`length` must be at least 0, got {length}.")
    return 1 - (1 - step_tv) ** length
