"""Which tokens may stand at which order index: forced slots and restricted vocabularies.

A picture with row-end marks, an end-of-frame mark or size tokens has a structure that is a function of the position
alone. The adapter masks the logits accordingly, so plain and speculative decoding read the same law; where one token
only is allowed, that law is one-hot. A :class:`GrammarSession` lets every drafter propose the forced token there, with
a one-hot draft law: it is accepted by every rule, and no noise can disagree about it.

Symbols: B rows, N nodes, V vocabulary, M order indices, K kinds of slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.drafting import DraftSession
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict


class Grammar:
    """Allowed tokens by order index.

    Args:
        allowed: Tokens that each kind of slot allows (K, V), boolean.
        kinds: Kind of every order index (M,). Indices beyond M are like the last one.

    Raises:
        ValueError: If a kind allows nothing, or an index has a kind that there is not.
    """

    def __init__(self, allowed: Tensor, kinds: Tensor) -> None:
        if allowed.dim() != 2 or not bool(allowed.any(-1).all()):
            raise ValueError("Every kind of slot must allow at least one token.")
        if kinds.dim() != 1 or not len(kinds) or not 0 <= int(kinds.min()) <= int(kinds.max()) < len(allowed):
            raise ValueError(f"`kinds` must list kinds from 0 to {len(allowed) - 1} for at least one order index.")
        self.allowed, self.kinds = allowed, kinds
        single = torch.where(allowed.sum(-1) == 1, allowed.int().argmax(-1), -1)  # (K,)
        self.forced = single[kinds]  # (M,) the only token of an index, -1 where there is a choice

    @classmethod
    def of_slots(cls, slots: Sequence[int | None], free: Tensor) -> Grammar:
        """Grammar of ``slots``, each a forced token or ``None`` for any token of ``free`` (V,), boolean."""
        tokens = sorted({token for token in slots if token is not None})
        if tokens and not 0 <= tokens[0] <= tokens[-1] < len(free):
            raise ValueError(f"Forced tokens must lie in [0, {len(free)}), got {tokens[0]} to {tokens[-1]}.")
        single = torch.nn.functional.one_hot(torch.tensor(tokens, dtype=torch.long), len(free)).bool()
        number = {token: kind for kind, token in enumerate(tokens, start=1)}
        kinds = torch.tensor([0 if token is None else number[token] for token in slots])
        return cls(torch.cat([free[None], single.to(free.device)]), kinds.to(free.device))

    @property
    def vocab_size(self) -> int:
        return self.allowed.shape[1]

    def to(self, device: torch.device) -> Grammar:
        """The same grammar on ``device``."""
        return Grammar(self.allowed.to(device), self.kinds.to(device))

    def _clamp(self, order: Tensor) -> Tensor:
        return order.clamp(0, len(self.kinds) - 1)

    def forced_at(self, order: Tensor) -> Tensor:
        """Forced tokens of the order indices ``order`` (...), -1 where there is a choice."""
        return self.forced[self._clamp(order)]

    def allowed_at(self, order: Tensor) -> Tensor:
        """Allowed tokens (..., V) of the order indices ``order`` (...)."""
        return self.allowed[self.kinds[self._clamp(order)]]

    def mask(self, logits: Tensor, order: Tensor) -> Tensor:
        """``logits`` (..., V) of the tokens at ``order`` (...), -inf where a token is not allowed."""
        return logits.masked_fill(~self.allowed_at(order), -torch.inf)


class GrammarSession:
    """A drafter's session whose draft tokens at forced slots are the forced ones.

    The law of a forced token is one-hot, as its target law is, so ratio-type rules keep a truthful ``log_q``. A forced
    node below a valid one is valid, whatever the drafter had there.
    """

    def __init__(self, session: DraftSession, grammar: Grammar) -> None:
        self.session, self.grammar = session, grammar

    @property
    def forwards(self) -> int:
        return self.session.forwards

    @property
    def revisable(self) -> bool:
        """Whether drafts may be revised further."""
        return getattr(self.session, "revisable", False)

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        self.session.start(context, output)

    def propose(self, context: RoundContext, width: int) -> Draft:
        draft = self.session.propose(context, width)
        after = context.generated[:, None] + draft.depth  # (B, N) order index of a node's children
        forced = self.grammar.forced_at(after - 1)
        forced = torch.where(draft.depth > 0, forced, -1)  # the root is committed
        tokens = torch.where(forced >= 0, forced, draft.tokens)
        return replace(draft, tokens=tokens, valid=_extended(draft, forced >= 0), log_q=self._law(draft.log_q, after))

    def _law(self, log_q: Tensor | None, after: Tensor) -> Tensor | None:
        if log_q is None:
            return None
        following = self.grammar.forced_at(after)[..., None]  # (B, N, 1)
        certain = torch.full_like(log_q, -torch.inf).scatter_(-1, following.clamp_min(0), 0.0)
        return torch.where(following >= 0, certain, log_q)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        self.session.observe(context, draft, output, verdict)

    def select_rows(self, rows: Tensor) -> None:
        self.session.select_rows(rows)


def _extended(draft: Draft, forced: Tensor) -> Tensor | None:
    """``draft.valid`` with every forced node added whose ancestors are all valid or forced."""
    if draft.valid is None:
        return None
    missing = ~(draft.valid | forced)  # (B, N)
    return ~(draft.ancestors & missing[:, None, :]).any(-1)
