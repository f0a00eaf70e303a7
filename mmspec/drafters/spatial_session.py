"""Decoding session of the spatial drafter: a Jacobi window whose new slots come from heads.

Slot m is the m-th token after the root, and state p the target's state that the token of slot p is drawn from, negative
for what is committed: state -1 belongs to the root. The head of offset o reads state p and guesses slot p + o. With N
nodes a forward gives the states 0 .. N - 1, and the slots N, N + 1, ... are guessed

    by the vertical head of k rows from the states N - W .. N - 1, W slots each, W being a row of the grid;
    by the horizontal heads from state N - 1, where there is no row above yet.

Symbols: B samples, R = G * B model rows, N nodes, C guessed slots, L slots, K states kept, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.sampling import draw, draw_token, process
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.initializers import Initializer
from mmspec.drafters.jacobi import JacobiSession

if TYPE_CHECKING:
    from mmspec.drafters.spatial import SpatialDrafter


class SpatialSession(JacobiSession):
    """Window of one call. All guesses read the row's own states, tokens and noise only."""

    def __init__(self, drafter: SpatialDrafter, initializer: Initializer, setup: DraftSetup) -> None:
        super().__init__("gumbel", initializer, drafter.law, setup)
        self.drafter, self.model, self.guidance = drafter, setup.runner.model, setup.runner.guidance
        self.forwards = 0
        config = drafter.config
        self.row_length = config.row_length if config.vertical else 1
        self.reach = max(config.horizontal, config.vertical * self.row_length)
        # the first `own` slots are the target's guesses; those of heads follow up to `filled`
        self.own = torch.zeros_like(self.filled)

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        super().start(context, output)
        assert output.hidden is not None
        prompt = self.model.prompt
        last = (prompt.length - 1 - prompt.first)[:, None, None].expand(-1, 1, output.hidden.shape[2])
        newest = output.hidden.gather(1, last)  # (R, 1, D)
        self.past = torch.nn.functional.pad(newest, (0, 0, self.row_length - 1, 0))  # (R, K, D)
        guesses, law, known = self._guess(context, self.past, context.root[:, None], 0, self.reach)
        self.slots, self.filled = guesses, known
        if self.log_q is not None and law is not None:
            self.log_q = law

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        assert output.hidden is not None
        num_nodes = draft.num_nodes
        redrawn, log_p = self._redraw(context, draft, output.logits, verdict)
        states = torch.cat([self.past, output.hidden], dim=1)  # from state -K on
        count = min(self.reach, num_nodes)  # a round commits no more slots than that
        guesses, law, known = self._guess(context, states, redrawn, num_nodes, count)
        own = self.own.clamp_min(num_nodes)
        size = max(self.slots.shape[1], num_nodes + count)
        self.slots = self._joined(self.slots, redrawn, guesses, own, size)
        if self.log_q is not None and log_p is not None and law is not None:
            self.log_q = self._joined(self.log_q, log_p, law, own, size)
        if self.initializer.needs_scores:
            self.last_scores = self._newest_scores(context, output.logits, draft.valid)
        by = verdict.num_accepted + 1
        self._shift(by)
        self.own = own - by
        self.filled = torch.maximum(own, num_nodes + known) - by
        index = by.repeat(self.guidance.branches)[:, None] + torch.arange(self.past.shape[1], device=by.device)
        self.past = states.gather(1, index[..., None].expand(-1, -1, states.shape[2]))

    @staticmethod
    def _joined(old: Tensor, redrawn: Tensor, guessed: Tensor, own: Tensor, size: int) -> Tensor:
        """Slots (B, L, ...): those redrawn, then the target's older guesses up to ``own``, then those of heads."""
        padding = [0, 0] * (old.dim() - 2)
        old = torch.nn.functional.pad(old, [*padding, 0, size - old.shape[1]])
        new = torch.cat([redrawn, guessed], dim=1)
        new = torch.cat([new, old[:, new.shape[1] :]], dim=1)
        slot = torch.arange(size, device=own.device)
        keep = (slot >= redrawn.shape[1]) & (slot < own[:, None])
        return torch.where(keep.view(*keep.shape, *[1] * (old.dim() - 2)), old, new)

    def _guess(
        self, context: RoundContext, states: Tensor, drawn: Tensor, first: int, count: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Guess the slots ``first`` .. ``first + count - 1``.

        Args:
            states: The target's states (R, K + N, D), the newest last.
            drawn: Tokens (B, n) drawn from the newest n states.

        Returns:
            Guesses (B, C), their log-law (B, C, V) where a rule wants it, and how many are real (B,): without holes.
        """
        self.forwards += 1
        length = self.row_length
        tokens = torch.cat([self._newest(context, length), drawn], dim=1)[:, -length:]
        branches = self.guidance.branches
        embeddings = self.model.embed_tokens(tokens.repeat(branches, 1))
        pairs = torch.cat([states[:, -length:], embeddings.to(states.dtype)], dim=-1)
        pairs = pairs.to(self.drafter.device, self.drafter.dtype)
        place = torch.arange(count, device=tokens.device)
        along = [head(pairs[:, -1:]) for head in self.drafter.horizontal_heads][:count]
        down = [head(pairs) for head in self.drafter.vertical_heads]
        predicted = self._arrange(along, down, context, first, place)
        logits = self.model.predict(predicted.to(states.device))  # (R, C, V)
        order = context.generated[:, None] + first + place
        logits = self.guidance.merge(logits, order)
        if self.grammar is not None:
            logits = self.grammar.mask(logits, order)
        known = self._known(context, first, place)
        gumbel = context.target_noise(first + count)[:, first:]
        if not self.needs_law:
            guesses = logits.argmax(-1) if context.sampling.greedy else draw_token(logits, context.sampling, gumbel)
            return guesses, None, known
        scores = process(logits, context.sampling)
        return draw(scores, gumbel), scores.log_softmax(-1), known

    def _arrange(
        self, along: list[Tensor], down: list[Tensor], context: RoundContext, first: int, place: Tensor
    ) -> Tensor:
        """Predicted states (R, C, D): from the row above where it exists, else along the row."""
        count = len(place)
        if not down:
            return torch.cat(along, dim=1)
        below = torch.cat(down, dim=1)[:, :count]
        if not along:
            return below
        beside = torch.nn.functional.pad(torch.cat(along, dim=1), (0, 0, 0, count - len(along)))
        beside = torch.cat([beside, below[:, beside.shape[1] :]], dim=1)[:, :count]
        above = self._above(context, first, place).repeat(self.guidance.branches, 1)[..., None].to(below.device)
        return torch.where(above, below, beside)

    def _above(self, context: RoundContext, first: int, place: Tensor) -> Tensor:
        """Whether the state that the vertical head needs exists for each slot (B, C)."""
        state = first - self.row_length + place % self.row_length  # of the newest W states, all heads alike
        return state >= -context.generated[:, None]

    def _known(self, context: RoundContext, first: int, place: Tensor) -> Tensor:
        """How many slots from the first one on are guessed by some head (B,)."""
        reached = place < len(self.drafter.horizontal_heads)
        reached = reached.expand(len(context.root), -1)
        if len(self.drafter.vertical_heads):
            reached = reached | self._above(context, first, place)
        return reached.long().cumprod(-1).sum(-1)

    @staticmethod
    def _newest(context: RoundContext, count: int) -> Tensor:
        """The ``count`` last committed tokens of each row (B, count); what lies before the first one is undefined."""
        place = context.generated[:, None] + torch.arange(-count, 0, device=context.tokens.device)
        return context.tokens.gather(1, place.clamp_min(0))

    def select_rows(self, rows: Tensor) -> None:
        samples = len(self.filled)
        super().select_rows(rows)
        self.own = self.own[rows]
        self.past = self.past[torch.cat([rows + branch * samples for branch in range(self.guidance.branches)])]
