"""Keep draft tokens that the target finds likely enough: the relaxed verification of CTC drafts.

With p the target's law after the prefix, before temperature, and H(p) its entropy in nats, a draft token x passes

    abs       p(x) >= threshold                          (Saon et al., 2026, CTC-drafted speech recognition)
    rel       p(x) >= threshold * max p
    typical   p(x) >= min(threshold, delta * exp(-H(p)))  (Cai et al., 2024, Medusa)
    rank      x is among the ``threshold`` most likely tokens
    seq       the mean of log p over the whole draft is at least ``threshold``: all or nothing

A tree holds alternatives, of which several may pass; there the target's own choice is followed, exactly. The token
after the last one kept is always the target's own, as in plain decoding. An accepted token is certain given its
prefix, so its step lies a total variation of 1 - p'(x) from the law p' that plain decoding draws from.
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
from mmspec.core.verify import Guarantee, RoundContext, Verdict, chain_verdict, first_rejection, follow_target

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
        return self.verdict(draft, logits, context, self.accepted(draft, logits, context))

    def accepted(self, draft: Draft, logits: Tensor, context: RoundContext) -> Tensor:
        """Accepted draft tokens of each row (B,), where its tree is a chain."""
        valid = None if draft.valid is None else draft.valid[:, 1:]
        return first_rejection(self.passes(draft, logits, context), valid)

    def passes(self, draft: Draft, logits: Tensor, context: RoundContext) -> Tensor:
        """Which draft tokens pass the test (B, K), each given that those before it are kept."""
        log_p = logits[:, :-1].log_softmax(-1)  # (B, K, V)
        token = draft.tokens[:, 1:]
        own = log_p.gather(-1, token[..., None])[..., 0]
        passed = self._test(log_p, own, draft)
        if self.config.eos_threshold is not None and context.stop_tokens:
            ends = torch.isin(token, torch.tensor(context.stop_tokens, device=token.device))
            passed = torch.where(ends, own.exp() >= self.config.eos_threshold, passed)
        return passed

    def _test(self, log_p: Tensor, own: Tensor, draft: Draft) -> Tensor:
        test, limit = self.config.test, self.threshold
        if test == "rank":
            return (log_p > own[..., None]).sum(-1) < limit
        if test == "seq":
            valid = torch.ones_like(own, dtype=torch.bool) if draft.valid is None else draft.valid[:, 1:]
            # padding may be a token of probability 0, and 0 * -inf is nan
            mean = torch.where(valid, own, 0.0).sum(-1) / valid.sum(-1).clamp_min(1)
            return (mean >= limit)[:, None].expand_as(own)
        log_limit = math.log(limit) if limit > 0 else -math.inf
        if test == "rel":
            return own >= log_p.amax(-1) + log_limit
        if test == "typical":
            entropy = -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)
            return own >= (math.log(self.config.delta) - entropy).clamp_max(log_limit)
        return own >= log_limit

    def verdict(self, draft: Draft, logits: Tensor, context: RoundContext, num_accepted: Tensor) -> Verdict:
        """Keep ``num_accepted`` (B,) draft tokens and the target's own choice after them; follow branching rows exactly."""
        chosen = target_choice(draft, logits, context)
        verdict = chain_verdict(draft, num_accepted, chosen.gather(1, num_accepted[:, None])[:, 0])
        law = process(logits[:, :-1], context.sampling).softmax(-1)
        deviation = 1 - law.gather(-1, draft.tokens[:, 1:, None])[..., 0]
        place = torch.arange(deviation.shape[1], device=deviation.device)
        kept = deviation * (place < num_accepted[:, None])
        verdict.step_tv = torch.nn.functional.pad(kept, (0, 1))  # the next token is the target's own
        verdict.chosen = chosen
        return verdict if draft.is_chain else _followed(verdict, draft, chosen)


def _followed(verdict: Verdict, draft: Draft, chosen: Tensor) -> Verdict:
    """``verdict`` for the rows whose tree is a chain; the target's own path for those that branch."""
    assert draft.parent is not None
    assert verdict.step_tv is not None
    place = torch.arange(draft.num_nodes, device=chosen.device)
    follows = (draft.parent == (place - 1).clamp_min(0)) | (place == 0)
    chain = (follows if draft.valid is None else follows | ~draft.valid).all(-1)
    exact = follow_target(draft, chosen)
    assert exact.path is not None
    path = torch.minimum(place, verdict.num_accepted[:, None])
    return Verdict(
        num_accepted=torch.where(chain, verdict.num_accepted, exact.num_accepted),
        next_token=torch.where(chain, verdict.next_token, exact.next_token),
        tokens=torch.where(chain[:, None], verdict.tokens, exact.tokens),
        path=torch.where(chain[:, None], path, exact.path),
        chosen=chosen,
        step_tv=torch.where(chain[:, None], verdict.step_tv, 0.0),
    )
