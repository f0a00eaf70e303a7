"""The law of the next token under a rule, enumerated through the functions that the sampler itself uses."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from mmspec.acceptance.recursive import walk_tree
from mmspec.acceptance.relaxed import Relaxation
from mmspec.core.draft import Draft, DraftLaw


def random_laws(count: int, size: int, seed: int, zeros: bool = False, flat: float = 0.7) -> Tensor:
    """Random float64 laws (count, V); a high ``flat`` makes them uniform."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch._standard_gamma(torch.full((count, size), flat, dtype=torch.float64), generator)
    if zeros:
        weights *= torch.rand(count, size, generator=generator) > 0.3
        weights[:, seed % size] += 0.1
    return weights / weights.sum(-1, keepdim=True)


def chain_law(p: Tensor, q: Tensor, relaxation: Relaxation, depth: int = 1) -> Tensor:
    """Law (V,) of the token that a test of one token drawn from ``q`` (V,) commits, by summing over that token."""
    law = torch.zeros_like(p)
    at = torch.tensor([depth])
    for token in (q > 0).nonzero()[:, 0]:
        accept, correction = one_test(p, q, token[None], relaxation, at)
        law += q[token] * (1 - accept) * correction
        law[token] += q[token] * accept
    return law


def one_test(p: Tensor, q: Tensor, token: Tensor, relaxation: Relaxation, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of accepting ``token`` (1,), and the law of what replaces it (V,)."""
    accept = (relaxation.weigh(p[None], q[None], token, depth)[0] / q[token[0]]).clamp_max(1)
    weights = relaxation.correct(p[None], q[None], token, depth)[0][0]
    return accept, weights / weights.sum()


class _Recorder(Relaxation):
    """Passes everything on and notes the probability of accepting each child."""

    def __init__(self, inner: Relaxation) -> None:
        self.inner = inner
        self.accept: list[Tensor] = []

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        weight = self.inner.weigh(p, q, tokens, depth)
        drawn_from = q.gather(1, tokens[:, None])[:, 0]
        self.accept.append(torch.where(drawn_from > 0, (weight / drawn_from).clamp_max(1), 0.0))
        return weight

    def correct(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.correct(p, q, tokens, depth)


def sibling_laws(
    p: Tensor, q: Tensor, siblings: Tensor, law: DraftLaw, relaxation: Relaxation
) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of ``siblings`` (n, R), tried at the root: law of the committed token (n, V), P(accept) and TV spent."""
    rows, count = siblings.shape
    root = torch.zeros(rows, 1, dtype=torch.long)
    draft = Draft(
        torch.cat([root, siblings], dim=1), law, parent=torch.zeros(rows, count + 1, dtype=torch.long),
        log_q=None if law is DraftLaw.DETERMINISTIC else q.log().expand(rows, count + 1, -1),
    )  # fmt: skip
    recorder = _Recorder(relaxation)
    reject_all = torch.full((rows, count + 1), torch.inf, dtype=p.dtype)
    walk = walk_tree(draft, p.expand(rows, count + 1, -1), reject_all, recorder)
    emitted, left = torch.zeros(rows, len(p), dtype=p.dtype), torch.ones(rows, dtype=p.dtype)
    for place, accept in enumerate(recorder.accept):
        emitted.scatter_add_(1, siblings[:, place : place + 1], (left * accept)[:, None])
        left = left * (1 - accept)
    total = emitted + left[:, None] * walk.weights / walk.weights.sum(-1, keepdim=True)
    return total, 1 - left, walk.step_tv[:, 0]


def ordered_draws(q: Tensor, count: int, replace: bool) -> tuple[Tensor, Tensor]:
    """All ordered draws of ``count`` tokens from ``q`` (V,): tokens (n, count) and probabilities (n,).

    Without replacement, draws beyond the support are anything.
    """
    tokens = torch.tensor([t for t in itertools.product(range(len(q)), repeat=count) if replace or len({*t}) == count])
    weight, left = torch.ones(len(tokens), dtype=q.dtype), torch.ones(len(tokens), dtype=q.dtype)
    for place in range(count):
        mass = q[tokens[:, place]]
        weight = weight * torch.where(left > 1e-12, mass / left.clamp_min(1e-12), 1.0)
        left = left if replace else left - mass
    return tokens[weight > 0], weight[weight > 0] / weight.sum()
