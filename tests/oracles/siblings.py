"""Draft sessions that draw trees from the laws of a table target kept in step, rightly or with a known mistake."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import process
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.siblings import draw_siblings, grow_beam, root_beam
from tests.oracles.toy import TableTarget


class SiblingSession:
    """Two children of the root and two of each of them, or a stochastic beam of two and then four nodes.

    Args:
        target: The draft model; this session commits to it.
        kind: ``without-replacement``, ``independent`` or ``beam``.
        order: ``reversed`` swaps siblings: a mistake.
        claim: Law to report instead of the true one: a mistake, unless it is DETERMINISTIC.
        prune: Drop children whose own probability is below this: a mistake.
    """

    forwards = 0

    def __init__(
        self,
        target: TableTarget,
        kind: str,
        order: str = "drawn",
        claim: DraftLaw | None = None,
        prune: float = 0.0,
    ) -> None:
        self.target, self.kind, self.order, self.prune = target, kind, order, prune
        true = DraftLaw.INDEPENDENT if kind == "independent" else DraftLaw.WITHOUT_REPLACEMENT
        self.law = claim or true

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        rows = len(context.root)
        tokens, parent = context.root[:, None], torch.zeros(rows, 1, dtype=torch.long)
        valid = torch.ones(rows, 1, dtype=torch.bool)
        level, beam = torch.zeros(rows, 1, dtype=torch.long), root_beam(rows, context.root.device)
        for count in (2, 4):
            log_q = self._laws(context, tokens, parent).gather(
                1, level[..., None].expand(-1, -1, self.target.vocab_size)
            )
            keys = context.rounds[:, None] * 64 + level
            if self.kind == "beam":
                beam = grow_beam(beam, log_q, context.noise.gumbel(Stream.DRAFT, keys), count)
                drawn, above, exists = beam.tokens, level.gather(1, beam.parent), beam.score > -torch.inf
            else:
                drawn, exists = self._draw(context, log_q, keys)
                above = level.repeat_interleave(2, dim=1)
            first = tokens.shape[1]
            tokens, parent = torch.cat([tokens, drawn], 1), torch.cat([parent, above], 1)
            valid = torch.cat([valid, exists & valid.gather(1, above)], 1)
            level = torch.arange(first, first + drawn.shape[1]).expand(rows, -1)
        return Draft(tokens, self.law, parent=parent, valid=valid, log_q=self._laws(context, tokens, parent))

    def _draw(self, context: RoundContext, log_q: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Two children per node (B, 2 n) and which exist."""
        if self.kind == "independent":
            pair = [
                (log_q + context.noise.gumbel(Stream.DRAFT, keys * 2 + twin + (1 << 30))).argmax(-1) for twin in (0, 1)
            ]
            drawn = torch.stack(pair, dim=-1)
            exists = torch.ones_like(drawn, dtype=torch.bool)
        else:
            drawn, exists = draw_siblings(log_q, context.noise.gumbel(Stream.DRAFT, keys), 2)
        if self.order == "reversed":
            drawn, exists = drawn.flip(-1), exists.flip(-1)
        exists = exists & (log_q.gather(-1, drawn).exp() >= self.prune)
        return drawn.flatten(1), exists.flatten(1)

    def _laws(self, context: RoundContext, tokens: Tensor, parent: Tensor) -> Tensor:
        tree = Draft(tokens, DraftLaw.DETERMINISTIC, parent=parent)
        return process(self.target.verify(tree, 0).logits, context.sampling).log_softmax(-1)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        committed = torch.cat([context.root[:, None], verdict.tokens[:, :-1]], dim=1)
        self.target.draft = Draft(committed, DraftLaw.DETERMINISTIC)
        self.target.commit(Verdict(verdict.num_accepted, verdict.next_token, verdict.tokens), verdict.num_accepted + 1)

    def select_rows(self, rows: Tensor) -> None:
        self.target.select_rows(rows)
