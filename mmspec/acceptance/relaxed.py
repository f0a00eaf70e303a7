"""What relaxed rules share: a test that accepts more often than it should, a correction after it, and the deviation.

A draft token y from q is accepted with probability a(y) = min(1, w(y) / q(y)), where w is p in the exact rule and larger
in a relaxed one; a rejected y is replaced by a draw from a correction c_y. The emitted token then has the law

    r = q a + sum_y q(y) (1 - a(y)) c_y,

and TV(p, r) is computed, not estimated, at every node whose draft token was tested. The correction that minimises it is
[p - q a]+ (Li et al., 2026, "Annealed Relaxation of Speculative Decoding for Faster Autoregressive Image Generation"),
which is [p - q]+ where nothing is relaxed. A token that was chosen rather than drawn has a one-hot q.

Symbols: n nodes, V vocabulary; B rows, N nodes of a draft, K = N - 1 draft tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw
from mmspec.core.verify import RoundContext, Verdict, chain_verdict, first_rejection, residual

_MEASURED_VOCABULARY = 4096
#: laws whose ``log_q`` is the law of one child; others are judged as if the children had been chosen
CHAIN_LAWS = frozenset({DraftLaw.SAMPLED, DraftLaw.COUPLED})


class Relaxation(ABC):
    """The weights w of an acceptance test, and the correction that follows a rejection.

    ``every`` says that the deviation is measured at one step in so many, drawn at random.
    """

    every: int = 1

    @abstractmethod
    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        """w of one token of each node (n,).

        Args:
            p, q: Laws after each node (n, V).
            tokens: The tested child (n,).
            depth: Depth of the tested child (n,).
        """

    @abstractmethod
    def correct(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the token that replaces a rejected one (n, V), and TV(p, r) of each node (n,)."""


class Exact(Relaxation):
    """No relaxation: w = p, correction [p - q]+, r = p."""

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        return p.gather(1, tokens[:, None])[:, 0]

    def correct(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        return residual(p, q), torch.zeros_like(p[:, 0])


class DenseRelaxation(Relaxation):
    """A relaxation whose weights are cheap to have for the whole vocabulary, with one correction for all tokens."""

    @abstractmethod
    def weights(self, p: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """w of every token (n, V)."""

    def correction(self, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
        """Weights of the correction (n, V), given the accepted mass q a (n, V); the best ones if not overridden."""
        return residual(p, accepted)

    def weigh(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> Tensor:
        return self.weights(p, q, depth).gather(1, tokens[:, None])[:, 0]

    def correct(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        accepted = torch.minimum(q, self.weights(p, q, depth))
        correction = self.correction(p, q, accepted)
        return correction, total_variation(p, emitted_law(accepted, correction))


def emitted_law(accepted: Tensor, correction: Tensor) -> Tensor:
    """r (..., V) from the accepted mass q a (..., V) and the weights of a correction that all tokens share (..., V)."""
    left = (1 - accepted.sum(-1, keepdim=True)).clamp_min(0)
    return accepted + left * correction / correction.sum(-1, keepdim=True)


def total_variation(p: Tensor, r: Tensor) -> Tensor:
    """TV of two laws (..., V): (...)."""
    return (p - r).abs_().sum(-1) / 2


def relaxed_chain(draft: Draft, p: Tensor, context: RoundContext, relaxation: Relaxation) -> Verdict:
    """Judge a chain whose ``log_q`` is the law of its tokens.

    The total variation is that of every committed token, or of a part of them; a bonus token comes from p.

    Args:
        p: Target laws (B, N, V).
    """
    assert draft.log_q is not None
    rows, count, size = len(p), draft.num_nodes - 1, p.shape[-1]
    q = draft.log_q.exp()
    tokens = draft.tokens[:, 1:]
    depth = draft.depth[:, 1:]
    weight = relaxation.weigh(
        p[:, :-1].reshape(-1, size), q[:, :-1].reshape(-1, size), tokens.flatten(), depth.flatten()
    ).view(rows, count)
    uniform = context.noise.uniform(Stream.ACCEPT, context.rounds[:, None], draft.depth[:1, 1:])
    # strict and by product: a token of weight 0 is never accepted, whatever its q
    accepted = uniform * q[:, :-1].gather(-1, tokens[..., None])[..., 0] < weight
    valid = None if draft.valid is None else draft.valid[:, 1:]
    num_accepted = first_rejection(accepted, valid)

    tested = draft.depth[:, :-1] <= num_accepted[:, None]
    if valid is not None:
        tested &= valid
    rejection = torch.arange(count, device=p.device) == num_accepted[:, None]
    measured = _measured(draft, context, relaxation.every)
    row, node = (tested & (measured | rejection)).nonzero(as_tuple=True)
    correction, tv = relaxation.correct(p[row, node], q[row, node], tokens[row, node], depth[row, node])
    step_tv = torch.zeros_like(p[..., 0]).index_put((row, node), tv * measured[row, node])
    weights = p[torch.arange(rows, device=p.device), num_accepted]  # (B, V), a copy: the law of a bonus token
    rejected = rejection[row, node]
    weights[row[rejected]] = correction[rejected]
    gumbel = context.noise.gumbel(Stream.RESIDUAL, context.rounds[:, None])[:, 0]
    verdict = chain_verdict(draft, num_accepted, draw(weights.log(), gumbel))
    verdict.step_tv, verdict.step_tv_weight = step_tv, relaxation.every
    return verdict


def _measured(draft: Draft, context: RoundContext, every: int) -> Tensor:
    """At which draft tokens the deviation is measured (B, K): at one in ``every``, whatever was drafted or accepted."""
    if every == 1:
        return torch.ones_like(draft.tokens[:, 1:], dtype=torch.bool)
    keys = draft.depth[:1, 1:] + (1 << 20)  # numbers that nothing else draws
    return context.noise.uniform(Stream.AUXILIARY, context.rounds[:, None], keys) * every < 1


def steps_between_measurements(measure_every: int | None, vocab_size: int) -> int:
    """``measure_every``, or what suits a vocabulary: all steps up to 4096 tokens, one in 8 beyond.

    Measuring costs as much as some hundred draws of a token.
    """
    return measure_every or (1 if vocab_size <= _MEASURED_VOCABULARY else 8)
