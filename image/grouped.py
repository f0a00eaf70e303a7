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
from mmspec.acceptance.relaxed import DenseRelaxation, relaxed_chain
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import process
from mmspec.core.verify import AcceptanceRule, Guarantee, RoundContext, Verdict, residual
from mmspec.image.codes import CodeLookup

RESIDUALS = ("token", "group")
#: group members looked at together, bounds the memory of judging the whole vocabulary
_BLOCK = 1 << 21


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

    def close(self, tokens: Tensor, others: Tensor) -> Tensor:
        """Whether each of ``others`` (..., G) may share a group with ``tokens`` (..., 1)."""
        mine, theirs = self.lookup.code(tokens), self.lookup.code(others)
        both = (mine >= 0) & (theirs >= 0)
        if self.limit is None:
            return both
        apart = self.vectors[mine.clamp_min(0)] - self.vectors[theirs.clamp_min(0)]
        return both & (apart.square().sum(-1) < self.limit)


@dataclass(frozen=True)
class Groups(DenseRelaxation):
    """w(y) = q(y) p(G) / q(G)."""

    distances: Distances
    size: int
    gap: float
    kind: str

    def weights(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        everything = torch.arange(p.shape[-1], device=p.device)
        parts = everything.split(max(1, _BLOCK // (self.size * max(1, len(p)) * self.distances.vectors.shape[1])))
        return torch.cat([self._weigh(p, q, part.expand(len(p), -1)) for part in parts], dim=1)

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        return self._weigh(p, q, tokens[:, None])[:, 0]

    def correction(self, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
        return residual(p, q if self.kind == "token" else accepted)

    def _weigh(self, p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
        """w of ``tokens`` (n, T): (n, T)."""
        order = p.argsort(dim=-1, stable=True)  # (n, V)
        rank = order.argsort(dim=-1).gather(1, tokens)  # (n, T)
        before = self.size // 2
        place = rank[..., None] + torch.arange(-before, self.size - before, device=p.device)  # (n, T, G)
        inside = (place >= 0) & (place < p.shape[-1])
        members = order.gather(1, place.clamp(0, p.shape[-1] - 1).flatten(1)).view_as(place)
        of_members = p.gather(1, members.flatten(1)).view_as(place)
        own = p.gather(1, tokens)[..., None]
        grouped = inside & ((of_members - own).abs() < self.gap) & self.distances.close(tokens[..., None], members)
        if self.kind == "token":
            grouped &= (rank >= before)[..., None]
        grouped |= inside & (members == tokens[..., None])
        p_group = (of_members * grouped).sum(-1)
        q_group = (q.gather(1, members.flatten(1)).view_as(place) * grouped).sum(-1)
        return torch.where(q_group > 0, q.gather(1, tokens) * p_group / q_group, p_group)


@dataclass(frozen=True)
class BoundGroups:
    """GSD for one call: the settings and the vectors of the target's tokens."""

    relaxation: Groups
    name: str = "grouped"
    guarantee: Guarantee = Guarantee.HEURISTIC
    step_tv_bound: float | None = None
    needs_law: bool = True

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        log_p = process(logits, context.sampling).log_softmax(-1)
        return relaxed_chain(draft, log_p, context, self.relaxation)


class GroupedAcceptance(Acceptance):
    """The ratio test on groups of interchangeable codes, for Jacobi windows and other chains that carry a law.

    Args:
        group_size: Codes of a group, the draft token included, at least 1; 1 is the exact ratio test.
        probability_gap: Largest difference of probability within a group, in (0, 1].
        distance: Largest squared distance of vectors within a group, above 0; ``None`` puts no limit.
        residual: ``token`` as published, or ``group``, see the module.

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
    ) -> None:
        check_count("group_size", group_size)
        check_number("probability_gap", probability_gap, 0, 1)
        if distance is not None:
            check_number("distance", distance, 0)
        check_choice("residual", residual, RESIDUALS)
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
        return BoundGroups(Groups(distances, config.group_size, config.probability_gap, config.residual))

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        raise TypeError("GroupedAcceptance needs the target's codebook; call `bind` first, as pipelines do.")
