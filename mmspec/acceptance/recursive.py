"""Recursive rejection on trees (Miao et al., 2024, "SpecInfer"; Jeon et al., 2024, "Recursive Speculative Decoding").

At a node with children c_1 .. c_R, each drawn from q without the earlier ones, start from p_1 = p and q_1 = q. Accept c_k
with probability min(1, p_k(c_k) / q_k(c_k)); otherwise p_{k+1} ~ [p_k - q_k]+ and q_{k+1} ~ q_k without c_k. If no child is
accepted the next token is drawn from p_{R+1}. With independent children q_k stays q; a child that was chosen rather than
drawn has a one-hot q, so it is accepted with probability p_k and struck from p_k otherwise.

Exact for a tree whose shape was decided before its tokens were drawn. A tree that was pruned by the probabilities of its
sampled tokens is DETERMINISTIC (or COUPLED) and is judged as chosen, which is exact for any tree.

Symbols: B rows, N nodes, R most children of a node, V vocabulary, D depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.acceptance.relaxed import CHAIN_LAWS, Exact, Relaxation
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw, process
from mmspec.core.verify import Guarantee, RoundContext, Verdict, path_to, tree_verdict

#: laws whose ``log_q`` is that of several children
TREE_LAWS = frozenset({DraftLaw.INDEPENDENT, DraftLaw.WITHOUT_REPLACEMENT})


@dataclass
class Walk:
    """Where a walk down a tree ended.

    Attributes:
        node: Deepest accepted node (B,).
        weights: Weights of the next token (B, V).
        step_tv: Total variation of each committed token (B, N), see :class:`Verdict`.
    """

    node: Tensor
    weights: Tensor
    step_tv: Tensor


#: judges the children of one node per row, given p (B, V), the node (B,) and the depth of the children: the accepted child
#: (B,) or -1, the weights of the next token if there is none (B, V), and the total variation spent (B,)
Judge = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


def walk_tree(draft: Draft, p: Tensor, uniform: Tensor, relaxation: Relaxation) -> Walk:
    """Go down the tree of every row as long as a child is accepted, trying siblings one after the other.

    Args:
        p: Target laws after each node (B, N, V).
        uniform: Uniforms of the test of each node (B, N).
    """

    def judge(p: Tensor, node: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        tests = _Siblings(draft, p, node)
        chosen = tests.run(uniform, relaxation, depth)
        return chosen, tests.p, tests.spent

    return walk_down(draft, p, judge)


def walk_down(draft: Draft, p: Tensor, judge: Judge) -> Walk:
    """Go down the tree of every row as long as ``judge`` accepts a child; ``p`` (B, N, V)."""
    rows = torch.arange(len(p), device=p.device)
    node = torch.zeros_like(rows)
    going = torch.ones_like(rows, dtype=torch.bool)
    weights, step_tv = torch.zeros_like(p[:, 0]), torch.zeros_like(p[..., 0])
    for depth in range(draft.num_nodes):
        chosen, next_weights, spent = judge(p[rows, node], node, depth + 1)
        stops = going & (chosen < 0)
        step_tv[:, depth] = torch.where(going, spent.clamp_max(1), 0.0)  # a sum over siblings bounds, and may exceed 1
        weights = torch.where(stops[:, None], next_weights, weights)
        going &= ~stops
        node = torch.where(going, chosen, node)
        if not bool(going.any()):
            break
    return Walk(node, weights, step_tv)


class _Siblings:
    """The tests of the children of one node per row: ``p`` and ``q`` (B, V) shrink with every rejected child."""

    def __init__(self, draft: Draft, p: Tensor, node: Tensor) -> None:
        self.draft, self.p = draft, p
        self.rows = torch.arange(len(p), device=p.device)
        self.children = draft.children[self.rows, node]  # (B, R)
        self.known = draft.law in TREE_LAWS
        self.q = p
        if self.known:
            assert draft.log_q is not None
            self.q = draft.log_q[self.rows, node].exp()
        self.spent = torch.zeros_like(p[:, 0])

    def run(self, uniform: Tensor, relaxation: Relaxation, depth: int) -> Tensor:
        """The accepted child of each row (B,), -1 if there is none."""
        chosen = torch.full_like(self.rows, -1)
        reach = torch.ones_like(self.spent)  # probability, given what is known, that a child is tested at all
        depths = torch.full_like(self.rows, depth)
        for child in self.children.unbind(1):
            token = self.draft.tokens[self.rows, child.clamp_min(0)]
            q = self.q if self.known else torch.nn.functional.one_hot(token, self.p.shape[-1]).to(self.p)
            drawn_from = q.gather(1, token[:, None])[:, 0]
            # beyond the support of q a token means nothing: to pass it over changes no law
            tested = (child >= 0) & (drawn_from > 0)
            weight = relaxation.weigh(self.p, q, token, depths)
            accepted = tested & (uniform[self.rows, child.clamp_min(0)] * drawn_from < weight)
            correction, tv = relaxation.correct(self.p, q, token, depths)
            self.spent += torch.where(tested, reach * tv, 0.0)
            chosen = torch.where((chosen < 0) & accepted, child, chosen)
            rejects = (chosen < 0).to(reach) if self.known else 1 - (weight / drawn_from).clamp_max(1)
            reach = torch.where(tested, reach * rejects, reach)
            self.p = torch.where(tested[:, None], correction / correction.sum(-1, keepdim=True), self.p)
            if self.known and self.draft.law is DraftLaw.WITHOUT_REPLACEMENT:
                self._strike(token, tested)
        return chosen

    def _strike(self, token: Tensor, tested: Tensor) -> None:
        left = self.q.scatter(1, token[:, None], 0.0)
        left = left / left.sum(-1, keepdim=True).clamp_min(torch.finfo(left.dtype).tiny)
        self.q = torch.where(tested[:, None], left, self.q)


def judge_tree(draft: Draft, p: Tensor, context: RoundContext, relaxation: Relaxation) -> Verdict:
    """Walk down the tree with the noise of the round and draw the next token."""
    nodes = torch.arange(draft.num_nodes, device=p.device)
    uniform = context.noise.uniform(Stream.ACCEPT, context.rounds[:, None], nodes[None])
    return finish_walk(draft, walk_tree(draft, p, uniform, relaxation), context)


def finish_walk(draft: Draft, walk: Walk, context: RoundContext) -> Verdict:
    """Draw the next token of a ``walk`` with the noise of the round."""
    gumbel = context.noise.gumbel(Stream.RESIDUAL, context.rounds[:, None])[:, 0]
    verdict = tree_verdict(draft, walk.node, *path_to(draft, walk.node), draw(walk.weights.log(), gumbel))
    verdict.step_tv = walk.step_tv
    return verdict


class RecursiveAcceptance(Acceptance):
    """Try siblings one after the other, each against what is left of the target's law. Exact for every draft.

    The rule for sampled trees; for chains that carry a law it is :class:`RatioAcceptance`.
    """

    guarantee = Guarantee.SAME_LAW
    needs_law = True

    @register_to_config
    def __init__(self) -> None:
        pass

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        if draft.is_chain and draft.law in CHAIN_LAWS:
            return RatioAcceptance()(draft, logits, context)
        verdict = judge_tree(draft, process(logits, context.sampling).softmax(-1), context, Exact())
        verdict.step_tv = None
        return verdict
