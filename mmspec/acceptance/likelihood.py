"""Keep draft tokens that the target finds likely enough: the relaxed verification of CTC drafts.

With p the target's law after the prefix, before temperature, and H(p) its entropy in nats, a draft token x passes

    abs       p(x) >= threshold                          (Saon et al., 2026, CTC-drafted speech recognition)
    rel       p(x) >= threshold * max p
    typical   p(x) >= min(threshold, delta * exp(-H(p)))  (Cai et al., 2024, Medusa)
    rank      x is among the ``threshold`` most likely tokens
    seq       the mean of log p over the whole draft is at least ``threshold``: all or nothing

A tree holds alternatives, of which several may pass; the likeliest of them is followed, but ``seq``, which judges whole
drafts, follows the target's own choice there. The token after the last one kept is always the target's own, as in plain
decoding. An accepted token is certain given its prefix, so its step lies a total variation of 1 - p'(x) from the law p'
that plain decoding draws from.
"""

from __future__ import annotations

import math

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.coupled import target_choice
from mmspec.core.draft import Draft
from mmspec.core.sampling import process
from mmspec.core.verify import Guarantee, RoundContext, Verdict, chain_verdict, descend, tree_verdict

#: the tests with their default thresholds
TESTS = {"abs": 0.2, "rank": 2.0, "rel": 0.3, "seq": -0.5, "typical": 0.3}


class LikelihoodAcceptance(Acceptance):
    """Accept drafts by the target's likelihood. Heuristic: :attr:`Verdict.step_tv` measures the deviation.

    Args:
        test: ``abs``, ``rank``, ``rel``, ``seq`` or ``typical``.
        threshold: Its threshold; ``None`` takes 0.2, 2, 0.3, -0.5 nats and 0.3.
        delta: The second parameter of ``typical``.
        eos_threshold: Least probability of a drafted stop token; ``None`` judges it like any other, 0 takes the
            draft's end for granted, as the released recogniser does.

    Raises:
        TypeError, ValueError: For an unknown test or a threshold outside its range.
    """

    guarantee = Guarantee.HEURISTIC

    @register_to_config
    def __init__(
        self,
        test: str = "abs",
        threshold: float | None = None,
        delta: float = 0.5,
        eos_threshold: float | None = None,
    ) -> None:
        if test not in TESTS:
            raise ValueError(f"Unknown `test` {test!r}; choose one of {', '.join(TESTS)}.")
        for name, value in (("threshold", threshold), ("delta", delta), ("eos_threshold", eos_threshold)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise TypeError(f"`{name}` must be a number, got {value!r}.")
        limit = TESTS[test] if threshold is None else threshold
        if test == "rank" and (limit < 1 or limit != int(limit)):
            raise ValueError(f"`threshold` of the rank test must be a whole number of at least 1, got {threshold}.")
        if test == "seq" and limit > 0:
            raise ValueError(f"`threshold` of the seq test is a mean log-probability, at most 0, got {threshold}.")
        if test in ("abs", "rel", "typical") and not 0 <= limit <= 1:
            raise ValueError(f"`threshold` of the {test} test must lie in [0, 1], got {threshold}.")
        if delta <= 0 or (eos_threshold is not None and not 0 <= eos_threshold <= 1):
            raise ValueError(
                f"`delta` must be above 0 and `eos_threshold` in [0, 1], got {delta} and {eos_threshold}."
            )

    @property
    def threshold(self) -> float:
        return TESTS[self.config.test] if self.config.threshold is None else self.config.threshold

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        chosen = target_choice(draft, logits, context)
        return self.verdict(draft, logits, context, chosen, *self.accepted(draft, logits, context, chosen))

    def accepted(self, draft: Draft, logits: Tensor, context: RoundContext, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Accepted draft tokens of each row (B,) and their path from the root on (B, N), padded by repeating its end."""
        _, num_accepted, path = descend(draft, self.passes(draft, logits, context, chosen))
        return num_accepted, path

    def passes(self, draft: Draft, logits: Tensor, context: RoundContext, chosen: Tensor) -> Tensor:
        """Which nodes are followed from their parents (B, N): at most one of the children of a node."""
        log_p = logits.log_softmax(-1)
        rows = torch.arange(len(log_p), device=log_p.device)[:, None]
        own = log_p[rows, draft.parents, draft.tokens]  # (B, N)
        passed = self._test(log_p, own, draft, chosen)
        if self.config.eos_threshold is not None and context.stop_tokens:
            ends = torch.isin(draft.tokens, torch.tensor(context.stop_tokens, device=own.device))
            passed = torch.where(ends, own.exp() >= self.config.eos_threshold, passed)
        return passed if draft.is_chain else passed & _likeliest(draft, own)

    def _test(self, log_p: Tensor, own: Tensor, draft: Draft, chosen: Tensor) -> Tensor:
        test, limit, parents = self.config.test, self.threshold, draft.parents
        if test == "rank":
            law = log_p.gather(1, parents[..., None].expand_as(log_p))
            return (law > own[..., None]).sum(-1) < limit
        if test == "seq":
            return self._whole(own, draft, draft.tokens == chosen.gather(1, parents))
        log_limit = math.log(limit) if limit > 0 else -math.inf
        if test == "rel":
            return own >= log_p.amax(-1).gather(1, parents) + log_limit
        if test == "typical":
            entropy = -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1).gather(1, parents)
            return own >= (math.log(self.config.delta) - entropy).clamp_max(log_limit)
        return own >= log_limit

    def _whole(self, own: Tensor, draft: Draft, exact: Tensor) -> Tensor:
        """The verdict on whole drafts, for all nodes of rows without branches; ``exact`` (B, N) for the others."""
        place = torch.arange(draft.num_nodes, device=own.device)
        valid = torch.ones_like(own, dtype=torch.bool) if draft.valid is None else draft.valid
        drafted = valid & (place > 0)
        # padding may be a token of probability 0, and 0 * -inf is nan
        mean = torch.where(drafted, own, 0.0).sum(-1) / drafted.sum(-1).clamp_min(1)
        chain = ((draft.parents == (place - 1).clamp_min(0)) | ~valid).all(-1)
        return torch.where(chain[:, None], (mean >= self.threshold)[:, None], exact)

    def verdict(
        self, draft: Draft, logits: Tensor, context: RoundContext, chosen: Tensor, num_accepted: Tensor, path: Tensor
    ) -> Verdict:
        """Keep the first ``num_accepted`` (B,) nodes of ``path`` (B, N) and the target's choice after them."""
        steps = torch.arange(draft.num_nodes, device=path.device)
        last = path.gather(1, num_accepted[:, None])
        path = torch.where(steps <= num_accepted[:, None], path, last)
        next_token = chosen.gather(1, last)[:, 0]
        if draft.is_chain:
            verdict = chain_verdict(draft, num_accepted, next_token)
        else:
            verdict = tree_verdict(draft, last[:, 0], num_accepted, path, next_token)
        law = process(logits, context.sampling).softmax(-1)
        rows = torch.arange(len(law), device=law.device)[:, None]
        deviation = 1 - law[rows, path, draft.tokens.gather(1, path.roll(-1, dims=1))]
        # the next token is the target's own
        verdict.step_tv = torch.where(steps < num_accepted[:, None], deviation, 0.0)
        verdict.chosen = chosen
        return verdict


def _likeliest(draft: Draft, own: Tensor) -> Tensor:
    """Which nodes are the likeliest children of their parents (B, N), by their log-probability ``own`` (B, N)."""
    exists = torch.ones_like(own, dtype=torch.bool) if draft.valid is None else draft.valid.clone()
    exists[:, 0] = False  # the root is nobody's child
    score = own.masked_fill(~exists, -torch.inf)
    best = torch.full_like(score, -torch.inf).scatter_reduce(1, draft.parents, score, "amax")
    return exists & (score >= best.gather(1, draft.parents))
