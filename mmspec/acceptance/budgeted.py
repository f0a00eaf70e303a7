"""Greedy verification with a budget of exceptions (our reading of ASD, "Approximate Speculative Decoding").

At temperature 0 a draft token that is not the arg-max gives up the regret max logit - logit(x) = log p(best) - log p(x).
A path is feasible if each exception costs at most ``gate`` and all of them together respect the round's ``max_exceptions``
and what is left of the row's budget. Trailing exceptions that are not followed by ``min_reuse`` matches buy nothing and are
cut off. With no budget it is greedy verification.

The total regret of a row bounds sum_t [log p(greedy choice) - log p(emitted token)] along what was emitted.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance, check_count, check_number
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee, RoundContext, Verdict, path_to, tree_verdict


class BudgetedAcceptance(Acceptance):
    """Accept the arg-max, and near misses as long as a row's budget lasts; legal at ``temperature=0`` only.

    Args:
        budget: Regret in nats that a row may spend per token of its longest output, at least 0.
        gate: Largest regret of one exception, at least 0.
        max_exceptions: Most exceptions of a round, at least 0.
        min_reuse: Matches that must follow the last exception, at least 1.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    guarantee = Guarantee.HEURISTIC

    @register_to_config
    def __init__(self, budget: float = 0.02, gate: float = 1.0, max_exceptions: int = 2, min_reuse: int = 1) -> None:
        check_number("budget", budget, 0)
        check_number("gate", gate, 0)
        check_count("max_exceptions", max_exceptions, 0)
        check_count("min_reuse", min_reuse)
        if budget == 0 or max_exceptions == 0:
            self.guarantee = Guarantee.SAME_TOKENS

    def check(self, law: DraftLaw, sampling: SamplingParams, drafter: str) -> None:
        super().check(law, sampling, drafter)
        if not sampling.greedy:
            raise ValueError(
                f"BudgetedAcceptance is defined at `temperature=0` only, got {sampling.temperature}; "
                "use TypicalAcceptance or CoupledAcceptance."
            )

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        assert context.regret is not None
        config = self.config
        best_token = logits.argmax(-1)  # (B, N); ties go to the lowest token
        best_logit = logits.gather(-1, best_token[..., None])[..., 0]
        of_child = logits.gather(1, draft.parents[..., None].expand_as(logits)).gather(-1, draft.tokens[..., None])
        matches = draft.tokens == best_token.gather(1, draft.parents)
        exception = (~matches).index_fill(1, draft.parents.new_zeros(1), False)
        regret = torch.where(exception, best_logit.gather(1, draft.parents) - of_child[..., 0], 0.0)
        exceptions = (draft.ancestors & exception[:, None, :]).sum(-1)
        spent = torch.where(draft.ancestors, regret[:, None, :], 0.0).sum(-1)
        budget = config.budget * context.tokens.shape[1] - context.regret
        feasible = (exceptions <= config.max_exceptions) & (spent <= budget[:, None]) & (regret <= config.gate)
        if draft.valid is not None:
            feasible &= draft.valid
        useful = _ends_well(draft, matches, config.min_reuse) | (exceptions == 0)
        useful &= ~(draft.ancestors & ~feasible[:, None, :]).any(-1)
        best = _deepest(draft, useful, spent)
        num_accepted, path = path_to(draft, best)
        verdict = tree_verdict(draft, best, num_accepted, path, best_token.gather(1, best[:, None])[:, 0])
        verdict.regret = spent.gather(1, best[:, None])[:, 0]
        place = torch.arange(draft.num_nodes, device=logits.device)
        # the target's law at temperature 0 is one-hot, so an exception deviates by 1
        verdict.step_tv = (exception.gather(1, path.roll(-1, dims=1)) & (place < num_accepted[:, None])).float()
        return verdict


def _ends_well(draft: Draft, matches: Tensor, min_reuse: int) -> Tensor:
    """Nodes (B, N) whose last ``min_reuse`` edges match."""
    reused, node = matches, draft.parents
    for _ in range(min_reuse - 1):
        reused = reused & matches.gather(1, node)
        node = draft.parents.gather(1, node)
    return reused & (draft.depth >= min_reuse)


def _deepest(draft: Draft, useful: Tensor, spent: Tensor) -> Tensor:
    """The deepest ``useful`` node (B,), of several the one that cost least."""
    rank = useful * (draft.depth + 1)
    return spent.masked_fill(rank < rank.amax(-1, keepdim=True), torch.inf).argmin(-1)
