"""From raw logits to the law that tokens are drawn from. Plain decoding, verification and drafters all call this.

Order: temperature, top-k, top-p, min-p, as in LlamaGen and transformers. Symbols: V vocabulary; leading dimensions free.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn.

    Args:
        temperature: Divides the logits; 0 takes the most likely token (ties: the lowest id). At least 0.
        top_k: Keep the k most likely tokens, ties with the k-th included; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose mass reaches this; in (0, 1], 1 keeps all.
        min_p: Drop tokens less likely than this share of the most likely one; in [0, 1), 0 keeps all.

    Raises:
        TypeError, ValueError: If a value is not a number or lies outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "min_p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"`{name}` must be a number, got {value!r}.")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"`temperature` must be at least 0 and finite, got {self.temperature}.")
        if self.top_k < 0 or int(self.top_k) != self.top_k:
            raise ValueError(f"`top_k` must be 0 (off) or a positive integer, got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must lie in (0, 1], got {self.top_p}.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"`min_p` must lie in [0, 1), got {self.min_p}.")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError if ``top_k`` exceeds the vocabulary."""
        if self.top_k > vocab_size:
            raise ValueError(
                f"`top_k` must be between 0 (off) and the vocabulary size {vocab_size}, got {self.top_k}."
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def process(logits: Tensor, params: SamplingParams) -> Tensor:
    """Turn float32 ``logits`` (..., V) into log-weights (..., V), not normalised, -inf outside the support.

    At temperature 0 the whole weight is on the first largest logit.
    """
    if params.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
    scores = logits / max(params.temperature, 1e-5)
    if 0 < params.top_k < logits.shape[-1]:
        rank = scores.shape[-1] - int(params.top_k) + 1  # the k-th largest, without sorting the others
        threshold = scores.kthvalue(rank, dim=-1, keepdim=True).values
        scores = scores.masked_fill(scores < threshold, -torch.inf)
    if params.top_p < 1:
        scores = _keep_mass(scores, params.top_p)
    if params.min_p > 0:
        floor = scores.amax(-1, keepdim=True) + torch.log(scores.new_tensor(params.min_p))
        scores = scores.masked_fill(scores < floor, -torch.inf)
    return scores


def _keep_mass(scores: Tensor, mass: float) -> Tensor:
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs  # a token stays while the mass above it has not crossed the threshold
    drop = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before > mass)
    return scores.masked_fill(drop, -torch.inf)


def draw_token(logits: Tensor, params: SamplingParams, gumbel: Tensor) -> Tensor:
    """``draw(process(logits, params), gumbel)``, without forming the truncated law where the draw lies inside anyway."""
    only_top_k = params.top_k > 0 and params.top_p == 1 and params.min_p == 0
    if only_top_k and logits.device.type == "cpu":  # elsewhere the test would cost a synchronisation
        token = draw(logits / max(params.temperature, 1e-5), gumbel)
        outside = (logits > logits.gather(-1, token[..., None])).sum(-1, dtype=torch.int32) >= params.top_k
        if bool(outside.any()):  # few: only they need the truncated law
            token[outside] = draw(process(logits[outside], params), gumbel.expand_as(logits)[outside])
        return token
    return draw(process(logits, params), gumbel)


def draw_by_inversion(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw from ``weights`` (..., V) >= 0, not necessarily normalised, with one ``uniform`` (...) in (0, 1): ids (...).

    One number a draw instead of V, for draws that are coupled with nothing. Never returns a token of weight 0.
    """
    cumulative = weights.to(uniform.dtype).cumsum(-1)
    total = cumulative[..., -1]
    # the product may round up to the total, behind which there is no token
    point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point[..., None], right=True)[..., 0]


def draw(scores: Tensor, gumbel: Tensor) -> Tensor:
    """Draw from exp(``scores``) (..., V), not necessarily normalised, with ``gumbel`` (..., V): token ids (...).

    Never returns a token whose score is -inf; equal sums go to the lowest id.
    """
    return (scores + gumbel).max(-1).indices  # a third of argmax's time on CPUs, with the same order among equals
