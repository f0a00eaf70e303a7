"""What acceptance rules share: the verdict, the guarantee, and the walks over chains and trees.

Symbols: B rows, N nodes, V vocabulary, D depth. ``p`` is the target's law, ``q`` the draft's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams, process


class Guarantee(Enum):
    """What a decoding method promises about its output, strongest first."""

    SAME_TOKENS = "SAME_TOKENS"
    """Token for token what plain decoding returns with the same seed."""
    SAME_LAW = "SAME_LAW"
    """Distributed exactly as plain decoding; another sample for the same seed."""
    LAW_OF_TRANSFORM = "LAW_OF_TRANSFORM"
    """Distributed exactly as a stated transform of the target."""
    BOUNDED_TV = "BOUNDED_TV"
    """Every step within a stated total variation of the target."""
    HEURISTIC = "HEURISTIC"
    """No bound; the deviation is measured."""

    @property
    def lossless(self) -> bool:
        return self in (Guarantee.SAME_TOKENS, Guarantee.SAME_LAW)


@dataclass
class RoundContext:
    """What drafters and rules may read: the committed past of each row, never anything of another row.

    ``generated`` (B,) counts the tokens of each row so far; it is also the order index of the token that follows the
    root. ``lowest`` and ``highest`` are its extremes over the active rows, known on the host without a synchronisation.
    ``stop_tokens`` end a row.
    """

    tokens: Tensor  # (B, M) committed new tokens, zero beyond `generated`
    generated: Tensor  # (B,)
    rounds: Tensor  # (B,)
    root: Tensor  # (B,) last committed token
    noise: RowNoise
    sampling: SamplingParams
    lowest: int
    highest: int
    regret: Tensor | None = None  # (B,) what a rule with a budget has spent so far, see `Verdict.regret`
    stop_tokens: tuple[int, ...] = ()
    _laws: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False)

    def laws(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Laws and log-laws (..., V) of ``logits`` (..., V): rule and drafter both ask for a forward's, computed once."""
        if self._laws is None or self._laws[0] is not logits:
            log_p = process(logits, self.sampling).log_softmax(-1)
            self._laws = logits, log_p.exp(), log_p
        return self._laws[1:]

    def target_noise(self, count: int) -> Tensor:
        """Gumbel noise (B, count, V) of the next ``count`` order indices of each row."""
        return self.noise.target(self.generated, count, self.lowest, self.highest)


@dataclass
class Verdict:
    """The outcome of one verification.

    Attributes:
        num_accepted: Accepted draft tokens of each row (B,), the root not counted.
        next_token: The correction or bonus token (B,).
        tokens: Accepted draft tokens followed by ``next_token`` (B, D + 1); entries after that are undefined.
        path: Nodes from the root to the deepest accepted one (B, D + 1), right-padded by repeating the last;
            ``None`` for a chain, where it is 0, 1, 2, ...
        chosen: What plain decoding would draw after each node (B, N), from rules that know it.
        step_tv: Total variation between the law of each committed token and the target's (B, D + 1), given the tokens
            before it; 0 beyond the committed run. ``None`` for a lossless rule.
        step_tv_weight: How many tokens each entry of ``step_tv`` stands for, where a random part of them was measured and
            the others are 0.
        regret: Log-probability given up for the draft in this round (B,), from rules that keep a budget of it.
    """

    num_accepted: Tensor
    next_token: Tensor
    tokens: Tensor
    path: Tensor | None = None
    chosen: Tensor | None = None
    step_tv: Tensor | None = None
    step_tv_weight: int = 1
    regret: Tensor | None = None


class AcceptanceRule(Protocol):
    """Decide how much of a draft is kept. Implementations are configuration around pure tensor functions."""

    @property
    def name(self) -> str:
        """Short name, as in ``stats.method``."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """What the output is worth."""
        ...

    @property
    def step_tv_bound(self) -> float | None:
        """Total variation that no step exceeds, where the rule promises one."""
        ...

    @property
    def needs_law(self) -> bool:
        """Whether drafts must carry ``log_q``."""
        ...

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        """Judge ``draft`` given the target's raw ``logits`` (B, N, V), row n conditioned on the path to node n."""
        ...


def first_rejection(accepted: Tensor, valid: Tensor | None) -> Tensor:
    """Length of the accepted prefix (B,) of a chain whose draft tokens have verdicts ``accepted`` (B, K)."""
    if valid is not None:
        accepted = accepted & valid
    return accepted.cumprod(-1).sum(-1)


def chain_verdict(draft: Draft, num_accepted: Tensor, next_token: Tensor) -> Verdict:
    """Join the accepted prefix of a chain and the next token."""
    tokens = torch.cat([draft.tokens[:, 1:], next_token[:, None]], dim=1)
    tokens = tokens.scatter(1, num_accepted[:, None], next_token[:, None])
    return Verdict(num_accepted, next_token, tokens)


def descend(draft: Draft, edge_accepted: Tensor, prefer: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Find the deepest node whose every edge from the root is accepted.

    Args:
        edge_accepted: Verdict on the edge into each node (B, N); column 0 is ignored.
        prefer: Score of each node (B, N); among equally deep nodes the highest wins.

    Returns:
        The node (B,), its depth (B,) and its path (B, D + 1), padded by repeating the node. Ties go to the lowest node.
    """
    edge_accepted = edge_accepted if draft.valid is None else edge_accepted & draft.valid
    edge_accepted = edge_accepted.index_fill(1, edge_accepted.new_zeros(1, dtype=torch.long), True)
    reached = ~(draft.ancestors & ~edge_accepted[:, None, :]).any(-1)  # (B, N)
    rank = reached * (draft.depth + 1)
    if prefer is None:
        best = rank.argmax(-1)
    else:
        best = prefer.masked_fill(rank < rank.amax(-1, keepdim=True), -torch.inf).argmax(-1)
    return best, *path_to(draft, best)


def path_to(draft: Draft, best: Tensor) -> tuple[Tensor, Tensor]:
    """Depth (B,) of the nodes ``best`` (B,), and their paths from the root (B, D + 1), padded by repeating the node."""
    num_accepted = draft.depth.gather(1, best[:, None])[:, 0]
    # an ancestor of depth d belongs at place d of the path; every other node is sent behind the end
    size = draft.num_nodes
    on_path = draft.ancestors[torch.arange(len(best), device=best.device), best]  # (B, N)
    place = torch.where(on_path, draft.depth, size)
    nodes = torch.arange(size, device=best.device).expand_as(place)
    path = best[:, None].expand(-1, size + 1).clone().scatter_(1, place, nodes)[:, :size]
    steps = torch.arange(size, device=best.device)
    return num_accepted, torch.where(steps <= num_accepted[:, None], path, best[:, None])


def tree_verdict(draft: Draft, best: Tensor, num_accepted: Tensor, path: Tensor, next_token: Tensor) -> Verdict:
    """Gather the tokens of an accepted ``path`` (B, N) that ends in ``best`` (B,) and append the next token."""
    tokens = draft.tokens.gather(1, path).roll(-1, dims=1)
    tokens = tokens.scatter(1, num_accepted[:, None], next_token[:, None])
    return Verdict(num_accepted, next_token, tokens, path=None if draft.is_chain else path)


def follow_target(draft: Draft, chosen: Tensor) -> Verdict:
    """Keep the draft as far as it equals the target's own choice ``chosen`` (B, N) at every node."""
    if draft.is_chain:
        valid = None if draft.valid is None else draft.valid[:, 1:]
        num_accepted = first_rejection(draft.tokens[:, 1:] == chosen[:, :-1], valid)
        # every accepted token equals the choice before it, so the choices themselves are the committed run
        return Verdict(num_accepted, chosen.gather(1, num_accepted[:, None])[:, 0], chosen)
    assert draft.parent is not None
    if chosen.device.type == "cpu":
        return follow_on_host(draft, chosen)
    return follow_on_device(draft, chosen)


def follow_on_device(draft: Draft, chosen: Tensor) -> Verdict:
    """:func:`follow_target` of a tree without a synchronisation with the host."""
    best, num_accepted, path = descend(draft, draft.tokens == chosen.gather(1, draft.parents))
    return tree_verdict(draft, best, num_accepted, path, chosen.gather(1, best[:, None])[:, 0])


def follow_on_host(draft: Draft, chosen: Tensor) -> Verdict:
    """:func:`follow_target` of a tree in one pass over its nodes, which beats tensors of a few numbers on processors."""
    assert draft.parent is not None
    parts = draft.tokens, draft.parent, chosen
    valid = draft.valid.tolist() if draft.valid is not None else [[True] * draft.num_nodes] * len(draft.tokens)
    paths = [_deepest(*row) for row in zip(*(part.tolist() for part in parts), valid, strict=True)]
    device = draft.tokens.device
    num_accepted = torch.tensor([len(path) - 1 for path in paths], device=device)
    path = torch.tensor([path + path[-1:] * (draft.num_nodes - len(path)) for path in paths], device=device)
    # along the path each choice is the next token; behind its end comes the last one again
    tokens = chosen.gather(1, path)
    return Verdict(num_accepted, tokens[:, -1], tokens, path)


def _deepest(tokens: list[int], parent: list[int], chosen: list[int], valid: list[bool]) -> list[int]:
    """Nodes from the root to the deepest one that is reached over accepted edges; of equally deep ones the lowest."""
    depth = [0] + [-1] * (len(tokens) - 1)  # -1: not reached
    best = 0
    for node in range(1, len(tokens)):
        above = parent[node]
        if depth[above] >= 0 and valid[node] and tokens[node] == chosen[above]:
            depth[node] = depth[above] + 1
            if depth[node] > depth[best]:
                best = node
    path = [best]
    while path[-1]:
        path.append(parent[path[-1]])
    return path[::-1]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The law of the correction, [p - q]+ (..., V), not normalised; p itself where that vanishes."""
    difference = (p - q).clamp_min(0)
    return torch.where(difference.sum(-1, keepdim=True) > 0, difference, p)
