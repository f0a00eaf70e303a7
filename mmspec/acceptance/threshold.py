"""Acceptance by a threshold on the target's probability: follow a child if p(x) >= theta(p), whatever drafted it.

    strict            theta = max p
    additive          theta = max p - value
    multiplicative    theta = value * max p
    top               theta = the value-th largest p

The deepest accepted node wins, ties go to the likeliest path, and the next token is drawn from p. The output has no stated
law. With a known q the emitted law is r = q a + (1 - sum q a) p, a the 0/1 verdict; a token that was chosen has a one-hot q,
so an accepted x deviates by 1 - p(x). TV(p, r) is reported per token.

Symbols: B rows, N nodes, V vocabulary.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, check_choice, check_count, check_number
from mmspec.acceptance.relaxed import CHAIN_LAWS, total_variation
from mmspec.core.draft import Draft
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw, process
from mmspec.core.verify import Guarantee, RoundContext, Verdict, descend, tree_verdict

KINDS = ("additive", "multiplicative", "strict", "top")


def threshold(kind: str, value: float, p: Tensor) -> Tensor:
    """theta of laws ``p`` (..., V): (..., 1)."""
    if kind == "top":
        return p.topk(min(int(value), p.shape[-1]), dim=-1).values[..., -1:]
    largest = p.amax(-1, keepdim=True)
    if kind == "multiplicative":
        return value * largest
    return largest - (value if kind == "additive" else 0.0)


def judge_by_threshold(draft: Draft, logits: Tensor, theta: Tensor, p: Tensor, context: RoundContext) -> Verdict:
    """Follow the children whose probability reaches ``theta`` (B, N, 1) of their parent; ``p`` (B, N, V)."""
    rows = torch.arange(len(p), device=p.device)
    of_child = p[rows[:, None], draft.parents, draft.tokens]  # (B, N)
    # a token that cannot occur is never accepted, however flat the law
    accepted = (of_child >= theta[..., 0].gather(1, draft.parents)) & (of_child > 0)
    edge = of_child.clamp_min(torch.finfo(p.dtype).tiny).log().index_fill(1, rows.new_zeros(1), 0.0)
    likelihood = torch.where(draft.ancestors, edge[:, None, :], 0.0).sum(-1)
    best, num_accepted, path = descend(draft, accepted, prefer=likelihood)
    scores = process(logits.gather(1, best[:, None, None].expand(-1, 1, logits.shape[-1])), context.sampling)[:, 0]
    gumbel = context.noise.gumbel(Stream.RESIDUAL, context.rounds[:, None])[:, 0]
    verdict = tree_verdict(draft, best, num_accepted, path, draw(scores, gumbel))
    verdict.step_tv = _deviation(draft, p, theta, of_child, num_accepted, path)
    return verdict


def _deviation(draft: Draft, p: Tensor, theta: Tensor, of_child: Tensor, num_accepted: Tensor, path: Tensor) -> Tensor:
    """TV of the law of each committed token (B, N)."""
    place = torch.arange(draft.num_nodes, device=p.device)
    if draft.is_chain and draft.law in CHAIN_LAWS and draft.log_q is not None:
        drafted = torch.ones_like(draft.tokens, dtype=torch.bool) if draft.valid is None else draft.valid
        has_child = torch.nn.functional.pad(drafted[:, 1:], (0, 1))
        tested = (has_child & (place <= num_accepted[:, None])).nonzero(as_tuple=True)
        law = p[tested]  # (n, V)
        taken = draft.log_q[tested].exp() * ((law >= theta[tested]) & (law > 0))
        emitted = taken + (1 - taken.sum(-1, keepdim=True)) * law
        return torch.zeros_like(of_child).index_put(tested, total_variation(law, emitted))
    child = path.roll(-1, dims=1)  # the node whose token was committed at each place
    return (1 - of_child.gather(1, child)) * (place < num_accepted[:, None])


class ThresholdAcceptance(Acceptance):
    """Accept what the target finds likely enough.

    Args:
        kind: ``strict``, ``additive``, ``multiplicative`` or ``top``.
        value: epsilon in [0, 1] of ``additive``, factor in [0, 1] of ``multiplicative``, count of ``top``; ignored by
            ``strict``. On flat laws, as those of images, an additive threshold accepts nearly anything.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.HEURISTIC

    @register_to_config
    def __init__(self, kind: str = "multiplicative", value: float = 0.3) -> None:
        check_choice("kind", kind, KINDS)
        if kind == "top":
            check_count("value", value)
        else:
            check_number("value", value, 0, 1)

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        p = target_law(logits, context)
        theta = threshold(self.config.kind, self.config.value, p)
        return judge_by_threshold(draft, logits, theta, p, context)


def target_law(logits: Tensor, context: RoundContext) -> Tensor:
    """The law (B, N, V) that thresholds look at: the target's own, at temperature 0 the one before the arg-max."""
    return logits.softmax(-1) if context.sampling.greedy else context.laws(logits)[0]
