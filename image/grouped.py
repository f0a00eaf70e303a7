"""Grouped speculative decoding (So et al., 2025, "Grouped Speculative Decoding for Autoregressive Image Generation").

A draft token y is judged by a group G(y) of codes that could stand for it: those at the ranks around y when the codes are
sorted by increasing p, as far as their probability and their vector are close to y's,

    G(y) = { v : rank(v) - rank(y) in [-(G // 2), G - G // 2),  |p(v) - p(y)| < probability_gap,  |e_v - e_y|^2 < distance },

and accepted with probability min(1, p(G) / q(G)), in the terms of ``mmspec.acceptance.relaxed`` w(y) = q(y) p(G) / q(G). The
correction after a rejection is

    token   [p - q]+, as published: it does not know of the groups, so the output is further from p than it must be
    group   [p - q a]+, made of what the groups left over: the least total variation for these acceptances

Nothing bounds the deviation in advance; it is measured at each step. Published code judges y alone where fewer than G // 2
codes are less likely; ``group`` uses the part of the window that exists. With a group of one the rule is the ratio test.

Structural tokens, those without a code, are in no group.

Symbols: n nodes, V vocabulary, T tokens judged per node, G group size, E code width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, RuleSetup, TokenVectors, check_choice, check_count, check_number
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.acceptance.relaxed import DenseRelaxation, relaxed_chain, steps_between_measurements
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.verify import AcceptanceRule, Guarantee, RoundContext, Verdict, residual
from mmspec.image.codes import CodeLookup

RESIDUALS = ("token", "group")
#: numbers of vectors looked at together, bounds the memory of judging the whole vocabulary
_BLOCK = 1 << 22


class Distances:
    """Which tokens have vectors, and how far apart those are.

    Args:
        vectors: Vectors behind the tokens.
        limit: Squared distance below which two tokens may share a group; ``None``: any.
        device: Where to look up.
    """

    def __init__(self, vectors: TokenVectors, limit: float | None, device: torch.device) -> None:
        self.lookup, self.limit = CodeLookup(vectors, device), limit
        self.vectors = vectors.vectors.to(device)

    def place(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Whether ``tokens`` (...) have vectors (...), and their vectors (..., E)."""
        code = self.lookup.code(tokens)
        return code >= 0, self.vectors[code.clamp_min(0)]

    def close(self, mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> Tensor:
        """Whether tokens may share a group, from what :meth:`place` says of them."""
        both = mine[0] & theirs[0]
        if self.limit is None:
            return both
        return both & ((mine[1] - theirs[1]).square_().sum(-1) < self.limit)


@dataclass(frozen=True)
class Groups(DenseRelaxation):
    """w(y) = q(y) p(G) / q(G)."""

    distances: Distances
    size: int
    gap: float
    kind: str
    every: int = 1

    def weights(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        nodes = max(1, _BLOCK // (p.shape[-1] * self.distances.vectors.shape[1]))
        return torch.cat([self._all(*part) for part in zip(p.split(nodes), q.split(nodes), strict=True)])

    def _all(self, p: Tensor, q: Tensor) -> Tensor:
        """w of every token (n, V): all groups are windows of the sorted codes, so one is made of another by a shift."""
        p_sorted, order = p.sort(dim=-1, stable=True)
        q_sorted = q.gather(1, order)
        has_vector, vectors = self.distances.place(order)  # (n, V), (n, V, E)
        vectors = vectors.movedim(-1, 0).contiguous().movedim(0, -1)  # sums over E are slow where it lies innermost
        p_group, q_group = p_sorted.clone(), q_sorted.clone()
        before, size = self.size // 2, p.shape[-1]
        first = before if self.kind == "token" else 0  # as published: those below are judged alone
        for shift in range(-before, self.size - before):
            mine = slice(max(first, -shift), size - max(0, shift))
            theirs = slice(mine.start + shift, mine.stop + shift)
            if shift == 0 or mine.start >= mine.stop:
                continue
            grouped = (p_sorted[:, theirs] - p_sorted[:, mine]).abs_() < self.gap
            grouped &= self.distances.close(
                (has_vector[:, mine], vectors[:, mine]), (has_vector[:, theirs], vectors[:, theirs])
            )
            p_group[:, mine] += p_sorted[:, theirs] * grouped
            q_group[:, mine] += q_sorted[:, theirs] * grouped
        return torch.empty_like(p).scatter_(1, order, _share(q_sorted, p_group, q_group))

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        mine = tokens[:, None]
        members, inside = ranked_around(p, mine, self.size)  # (n, G)
        own = p.gather(1, mine)
        of_members = p.gather(1, members)
        has_vector, vectors = self.distances.place(members)
        itself = self.distances.place(mine)
        grouped = inside & ((of_members - own).abs() < self.gap) & self.distances.close(itself, (has_vector, vectors))
        if self.kind == "token":
            before = self.size // 2
            grouped &= inside[:, :before].all(-1, keepdim=True)
        grouped |= inside & (members == mine)
        p_group = (of_members * grouped).sum(-1)
        q_group = (q.gather(1, members) * grouped).sum(-1)
        return _share(q.gather(1, mine)[:, 0], p_group, q_group)

    def correction(self, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
        return residual(p, q if self.kind == "token" else accepted)


def _share(q: Tensor, p_group: Tensor, q_group: Tensor) -> Tensor:
    """w from the probabilities of tokens and of their groups, all of one shape."""
    return torch.where(q_group > 0, q * p_group / q_group, p_group)


def ranked_around(p: Tensor, tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The tokens at the ranks around one when all are sorted by increasing probability, equal ones by number.

    Selects, instead of sorting the vocabulary.

    Args:
        p: Laws (n, V).
        tokens: The token in the middle (n, 1).
        size: Ranks taken: ``size // 2`` below, the token itself, the rest above.

    Returns:
        Tokens (n, size) by rank, and whether each rank exists (n, size); where it does not, the token is arbitrary.
    """
    key = _sort_keys(p)
    own = key.gather(1, tokens)
    none, most = -1, torch.iinfo(torch.int64).max
    before, after = size // 2, size - size // 2 - 1
    below = _first(key.masked_fill(key >= own, none), before, none, largest=True).flip(1)
    above = _first(key.masked_fill_(key <= own, most), after, most, largest=False)
    members = torch.cat([below, own, above], dim=1)
    return (members & 0xFFFFFFFF).clamp_max(p.shape[-1] - 1), (members != none) & (members != most)


def _sort_keys(p: Tensor) -> Tensor:
    """Different integers (n, V) that sort as ``p`` (n, V) does, equal entries by number, which is in the low 32 bits."""
    number = torch.arange(p.shape[-1], device=p.device)
    if p.dtype is torch.float32:  # floats of one sign sort as their bits do
        return p.contiguous().view(torch.int32).long().bitwise_left_shift_(32).bitwise_or_(number)
    return (p.argsort(dim=-1, stable=True).argsort(dim=-1) << 32) | number


def _first(key: Tensor, count: int, fill: int, largest: bool) -> Tensor:
    """The ``count`` extreme keys (n, count) of (n, V), in order; ``fill`` where there are fewer."""
    found = key.topk(min(count, key.shape[1]), largest=largest).values
    return torch.nn.functional.pad(found, (0, count - found.shape[1]), value=fill)


@dataclass(frozen=True)
class BoundGroups:
    """GSD for one call: the settings and the vectors of the target's tokens."""

    relaxation: Groups
    name: str = "grouped"
    guarantee: Guarantee = Guarantee.HEURISTIC
    step_tv_bound: float | None = None
    needs_law: bool = True

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        return relaxed_chain(draft, context.laws(logits)[0], context, self.relaxation)


class GroupedAcceptance(Acceptance):
    """The ratio test on groups of interchangeable codes, for Jacobi windows and other chains that carry a law.

    Args:
        group_size: Codes of a group, the draft token included, at least 1; 1 is the exact ratio test.
        probability_gap: Largest difference of probability within a group, in (0, 1].
        distance: Largest squared distance of vectors within a group, above 0; ``None`` puts no limit.
        residual: ``token`` as published, or ``group``, see the module.
        measure_every: Measure the deviation of one step in so many; ``None``: of all up to 4096 codes, of one in 8 beyond.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.HEURISTIC
    legal_laws = frozenset({DraftLaw.SAMPLED, DraftLaw.COUPLED})
    needs_law = True

    @register_to_config
    def __init__(
        self,
        group_size: int = 14,
        probability_gap: float = 0.15,
        distance: float | None = 0.5,
        residual: str = "token",
        measure_every: int | None = None,
    ) -> None:
        check_count("group_size", group_size)
        check_number("probability_gap", probability_gap, 0, 1)
        if distance is not None:
            check_number("distance", distance, 0)
        check_choice("residual", residual, RESIDUALS)
        if measure_every is not None:
            check_count("measure_every", measure_every)
        if group_size == 1:
            self.guarantee = Guarantee.SAME_LAW

    def bind(self, setup: RuleSetup) -> AcceptanceRule:
        config, vectors = self.config, setup.vectors()
        if vectors is None:
            raise ValueError(
                "GroupedAcceptance needs the codebook behind the target's tokens, and this pipeline has none; use "
                "CoolAcceptance or TypicalAcceptance, which need none."
            )
        if config.group_size == 1:
            return RatioAcceptance()
        distances = Distances(vectors, config.distance, setup.device)
        every = steps_between_measurements(config.measure_every, len(vectors.vectors))
        return BoundGroups(Groups(distances, config.group_size, config.probability_gap, config.residual, every))

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        raise TypeError("GroupedAcceptance needs the target's codebook; call `bind` first, as pipelines do.")
