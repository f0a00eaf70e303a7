"""LANTERN (Jang et al., 2025) and LANTERN++ (Park et al., 2025): a code may stand for its neighbours in the codebook.

With g the target's law at a node, reduced by rejected siblings, and n_1(y), n_2(y), ... the other codes by distance,

    C_j = g(n_1(y)) + ... + g(n_j(y)),     m = max { j <= k : C_j <= b },     w(y) = g(y) + C_m,

and y is accepted with probability min(1, w(y) / q(y)). The budget b is delta (LANTERN) or (lam - 1) g(y) (LANTERN++). After a
rejection ``residual`` says what becomes of g:

    optimal         [g - min(q, w)]+, as close to g as the acceptances allow (Li et al., 2026)
    cutset          [g without n_1 .. n_m - q]+, the paper's
    lantern_compat  the authors' code, whose deviation may far exceed delta

What a step promises: a chosen draft token (one-hot q) moves C_m <= delta of mass, so TV <= delta, and 1 - (1 - delta)^m with m
siblings. With lam the law of a single drawn token is at most lam p, so TV <= 1 - 1 / lam. For *drawn* tokens delta bounds
nothing: the sum over y of the moved mass may reach 1. The deviation of each step is measured in any case.

Structural tokens, those without a code, never stand for a neighbour and are no one's neighbour.

Symbols: n nodes, V vocabulary, K codes, k neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, RuleSetup, check_choice, check_count, check_number
from mmspec.acceptance.recursive import TREE_LAWS, RecursiveAcceptance, judge_tree
from mmspec.acceptance.relaxed import (
    CHAIN_LAWS,
    Relaxation,
    relaxed_chain,
    steps_between_measurements,
    total_variation,
)
from mmspec.core.draft import Draft
from mmspec.core.verify import AcceptanceRule, Guarantee, RoundContext, Verdict, descend, residual, tree_verdict
from mmspec.image.codes import CodeLookup
from mmspec.image.neighbours import load_table, neighbour_table

RESIDUALS = ("optimal", "cutset", "lantern_compat")
#: gathered probabilities at a time, bounds the memory of the deviation's measurement
_BLOCK = 1 << 22
#: neighbours that are looked at before the rest of the k
_STAGES = (16, 128)


class Neighbours:
    """The codes near the code of a token.

    Args:
        lookup: Codes of the tokens.
        table: Neighbours of each code (K, C).
        k: Neighbours that may be stood for; a smaller codebook has fewer.
    """

    def __init__(self, lookup: CodeLookup, table: Tensor, k: int) -> None:
        self.lookup, self.table, self.k = lookup, table.to(lookup.tokens.device), k

    def masses(self, law: Tensor, row: Tensor, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Probability of the neighbours of ``tokens`` (M,) under ``law[row]``, law (n, V): (M, k), or a part of the k."""
        code, by_code = self.lookup.code(tokens), self.lookup.by_code(law)
        near = self.table[:, start : self.k if stop is None else stop].index_select(0, code.clamp_min(0))
        place = row[:, None] * by_code.shape[-1] + near  # a flat index is looked up much faster than a pair
        masses = by_code.reshape(-1).index_select(0, place.view(-1)).view_as(near)
        return masses if self.lookup.plain else masses * (code >= 0)[:, None]

    def strike(self, law: Tensor, tokens: Tensor, struck: Tensor) -> Tensor:
        """``law`` (M, V) without the neighbours of ``tokens`` that are marked in ``struck`` (M, C)."""
        code = self.lookup.code(tokens)
        near_code = self.table[code.clamp_min(0), : struck.shape[1]].long()
        near = self.lookup.tokens[near_code]
        keep = ~(struck & (code >= 0)[:, None] & self.lookup.relaxable[near_code])
        return law.scatter(1, near, law.gather(1, near) * keep)


@dataclass(frozen=True)
class Neighbourhood(Relaxation):
    """w(y) = g(y) + the mass of as many of the nearest codes as the budget covers.

    ``chosen`` says that q is one-hot; the authors' code treats such drafts otherwise than drawn ones.
    """

    neighbours: Neighbours
    delta: float | None
    lam: float | None
    kind: str = "optimal"
    chosen: bool = False
    every: int = 1

    def borrow(self, p: Tensor, row: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """C_m and m of ``tokens`` (M,) under the laws ``p[row]``, p (n, V): two (M,)."""
        sums = self.neighbours.masses(p, row, tokens).cumsum(-1)
        return _within(sums, self._budget(p[row, tokens]))

    def _budget(self, own: Tensor) -> Tensor:
        """Mass that tokens of probability ``own`` (M,) may borrow (M,)."""
        return torch.full_like(own, self.delta or 0.0) if self.lam is None else (self.lam - 1) * own

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        row = torch.arange(len(p), device=p.device)
        return p[row, tokens] + self.borrow(p, row, tokens)[0]

    def correct(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        accepted, borrowed = torch.minimum(p, q), torch.zeros_like(p[:, 0])
        for row, token in self._support(q - p):
            raised = self._raise(p, row, token, q[row, token])
            borrowed.index_add_(0, row, raised - p[row, token])
            accepted[row, token] = raised
        if self.kind == "optimal":  # this correction adds nothing where q a > p, so TV = sum of [q a - p]+
            return residual(p, accepted), borrowed
        rows = torch.arange(len(p), device=p.device)
        correction = self._after(p, q, rows, tokens)
        return correction, total_variation(p, self._emitted(p, q, accepted))

    def _raise(self, p: Tensor, row: Tensor, tokens: Tensor, enough: Tensor) -> Tensor:
        """min(w, ``enough``) of ``tokens`` (M,) under the laws ``p[row]``: (M,).

        Looks at as many neighbours as it must, which where q is near p are few of the k.
        """
        own = p[row, tokens]
        borrowed, budget = torch.zeros_like(own), self._budget(own)
        left, start = torch.arange(len(own), device=own.device), 0
        for stop in dict.fromkeys(min(place, self.neighbours.k) for place in (*_STAGES, self.neighbours.k)):
            sums = self.neighbours.masses(p, row[left], tokens[left], start, stop).cumsum(-1)
            more, count = _within(sums, budget[left] - borrowed[left])
            borrowed[left] += more
            left = left[(count == stop - start) & (own[left] + borrowed[left] < enough[left])]
            start = stop
            if not len(left):
                break
        return torch.minimum(own + borrowed, enough)

    def _emitted(self, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
        """r (n, V) where every rejected token has a correction of its own."""
        emitted = accepted.clone()
        for row, token in self._support(q - accepted, width=p.shape[-1]):
            correction = self._after(p, q, row, token)
            rejected = (q - accepted)[row, token] / correction.sum(-1)
            emitted.index_add_(0, row, rejected[:, None] * correction)
        return emitted

    def _support(self, weights: Tensor, width: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and tokens of the positive entries of ``weights`` (n, V), in blocks of bounded memory."""
        row, token = (weights > 0).nonzero(as_tuple=True)
        size = max(1, _BLOCK // (width or self.neighbours.k))
        yield from zip(row.split(size), token.split(size), strict=True)

    def _after(self, p: Tensor, q: Tensor, row: Tensor, tokens: Tensor) -> Tensor:
        """Weights of the token that replaces each of ``tokens`` (M,), rejected at the nodes ``row`` (M,): (M, V)."""
        count = self.borrow(p, row, tokens)[1]
        g, law = p[row], q[row]
        place = torch.arange(self.neighbours.table.shape[1], device=p.device)
        if self.kind == "cutset":
            left = residual(self.neighbours.strike(g, tokens, place < count[:, None]), law)
            return torch.where(left.sum(-1, keepdim=True) > 0, left, g)
        struck = (place <= self.neighbours.k) & (count > 0)[:, None]
        if self.chosen:
            left = self.neighbours.strike(g, tokens, struck).scatter(1, tokens[:, None], 0.0)
            return torch.where(left.sum(-1, keepdim=True) > 0, left, 1.0)
        return residual(g, self.neighbours.strike(law, tokens, struck))


def _within(sums: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of the increasing ``sums`` (M, k) that ``budget`` (M,) covers, or 0, and how many it covers: two (M,)."""
    count = (sums <= budget[:, None]).sum(-1)
    largest = sums.gather(1, (count - 1).clamp_min(0)[:, None])[:, 0]
    return torch.where(count > 0, largest, 0.0), count


@dataclass(frozen=True)
class BoundLantern:
    """LANTERN for one call: the settings and the neighbours of the target's codes."""

    relaxation: Neighbourhood
    guarantee: Guarantee
    step_tv_bound: float | None
    name: str = "lantern"
    needs_law: bool = True

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        if context.sampling.greedy:
            return self._greedy(draft, logits)
        p, _ = context.laws(logits)
        if draft.is_chain and draft.law in CHAIN_LAWS:
            return relaxed_chain(draft, p, context, self.relaxation)
        relaxation = replace(self.relaxation, chosen=draft.law not in TREE_LAWS)
        return judge_tree(draft, p, context, relaxation)

    def _greedy(self, draft: Draft, logits: Tensor) -> Verdict:
        """Temperature 0: accept a token that its neighbours' mass makes the most likely one."""
        p = logits.softmax(-1).gather(1, draft.parents[..., None].expand_as(logits)).flatten(0, 1)
        token = draft.tokens.flatten()
        row = torch.arange(len(p), device=p.device)
        raised = p[row, token] + self.relaxation.borrow(p, row, token)[0]
        most = p.scatter(1, token[:, None], raised[:, None]).argmax(-1) == token
        best, num_accepted, path = descend(draft, most.view_as(draft.tokens))
        chosen = logits.argmax(-1)
        verdict = tree_verdict(draft, best, num_accepted, path, chosen.gather(1, best[:, None])[:, 0])
        other = draft.tokens != chosen.gather(1, draft.parents)
        place = torch.arange(draft.num_nodes, device=p.device)
        verdict.step_tv = (other.gather(1, path.roll(-1, dims=1)) & (place < num_accepted[:, None])).float()
        return verdict


class LanternAcceptance(Acceptance):
    """Relaxed acceptance of image codes that have near neighbours in the codebook.

    Args:
        k: Most neighbours that a code may stand for; a codebook has one fewer than its codes.
        delta: Probability mass in [0, 1] that a code may borrow (LANTERN); 0.1 if ``lam`` is not given either.
        lam: Factor of at least 1 up to which a code may be raised (LANTERN++). Give either ``delta`` or ``lam``;
            ``delta=0`` and ``lam=1`` are exact.
        residual: ``optimal``, ``cutset`` or ``lantern_compat``, see the module.
        table: File of a saved neighbour table; ``None`` computes it from the target's codebook, and caches it.
        cache_dir: Folder of the cache; ``None`` is the user's cache of Hugging Face assets.
        measure_every: Measure the deviation of one step in so many of a chain; ``None``: of all up to 4096 codes, of one
            in 8 beyond.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.HEURISTIC
    needs_law = True

    @register_to_config
    def __init__(
        self,
        k: int = 1000,
        delta: float | None = None,
        lam: float | None = None,
        residual: str = "optimal",
        table: str | None = None,
        cache_dir: str | None = None,
        measure_every: int | None = None,
    ) -> None:
        check_count("k", k)
        if measure_every is not None:
            check_count("measure_every", measure_every)
        check_choice("residual", residual, RESIDUALS)
        if delta is not None and lam is not None:
            raise ValueError(f"Give either `delta` or `lam`, got {delta} and {lam}.")
        if lam is not None:
            check_number("lam", lam, 1)
        elif delta is not None:
            check_number("delta", delta, 0, 1)
        self.delta = 0.1 if delta is None and lam is None else delta
        if lam == 1 or self.delta == 0:
            self.guarantee = Guarantee.SAME_LAW

    def bind(self, setup: RuleSetup) -> AcceptanceRule:
        config = self.config
        vectors = setup.vectors()
        if vectors is None:
            raise ValueError(
                "LanternAcceptance needs the codebook behind the target's tokens, and this pipeline has none; use "
                "CoolAcceptance or TypicalAcceptance, which need none."
            )
        codebook = vectors.vectors
        if config.table is not None:
            table = load_table(config.table, codebook)
            if table.shape[1] < min(config.k, len(codebook) - 1):
                raise ValueError(
                    f"`table` {config.table} holds {table.shape[1]} neighbours a code; `k` is {config.k}."
                )
        if self.guarantee is Guarantee.SAME_LAW:
            return RecursiveAcceptance()
        if config.table is None:  # one more than k: the authors' code strikes k + 1
            table = neighbour_table(codebook, config.k + 1, config.cache_dir)
        near = Neighbours(CodeLookup(vectors, setup.device), table, config.k)
        bound = self._bound(setup)
        guarantee = Guarantee.HEURISTIC if bound is None else Guarantee.BOUNDED_TV
        every = steps_between_measurements(config.measure_every, len(codebook))
        relaxation = Neighbourhood(near, self.delta, config.lam, config.residual, every=every)
        return BoundLantern(relaxation, guarantee, bound)

    def _bound(self, setup: RuleSetup) -> float | None:
        """TV that no step exceeds for such drafts, ``None`` if the rule bounds nothing; see the module."""
        config, siblings = self.config, setup.max_siblings
        if setup.sampling.greedy or siblings is None or config.residual == "lantern_compat":
            return None
        drawn = setup.law in TREE_LAWS or (siblings == 1 and setup.law in CHAIN_LAWS)
        if drawn and (config.lam is None or config.residual != "optimal"):
            return None
        one = self.delta or 0.0 if config.lam is None else 1 - 1 / config.lam
        return 1 - (1 - one) ** siblings

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        raise TypeError("LanternAcceptance needs the target's codebook; call `bind` first, as pipelines do.")
