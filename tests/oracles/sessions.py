"""Draft sessions that behave badly, or perfectly, on purpose. Each implements ``DraftSession``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import draw, process
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from tests.oracles.toy import TableTarget


class ScriptedSession:
    """Chain whose draft token at output place t of row b is ``script[b, t]``; beyond the script, token 0."""

    forwards = 0

    def __init__(self, script: Tensor) -> None:
        self.script = script

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        place = context.generated[:, None] + torch.arange(width - 1)
        padded = torch.nn.functional.pad(self.script, (0, 1))
        tokens = padded.gather(1, place.clamp_max(self.script.shape[1]))
        return Draft(torch.cat([context.root[:, None], tokens], dim=1), DraftLaw.DETERMINISTIC)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        self.script = self.script[rows]


class RaggedSession(ScriptedSession):
    """As :class:`ScriptedSession`, but row b drafts ``lengths[b]`` tokens only; the rest of its nodes is not valid."""

    def __init__(self, script: Tensor, lengths: Tensor) -> None:
        super().__init__(script)
        self.lengths = lengths

    def propose(self, context: RoundContext, width: int) -> Draft:
        draft = super().propose(context, width)
        draft.valid = torch.arange(width) <= self.lengths[:, None]
        return draft

    def select_rows(self, rows: Tensor) -> None:
        super().select_rows(rows)
        self.lengths = self.lengths[rows]


class PromptSession(RaggedSession):
    """As :class:`RaggedSession`, and the first draft goes with the prompt; later rounds draft ``later`` or nothing."""

    def __init__(self, script: Tensor, lengths: Tensor, later: bool = True) -> None:
        super().__init__(script, lengths)
        self.later = later

    def propose_first(self, context: RoundContext, width: int) -> Draft:
        assert not context.generated.any()
        return super().propose(context, width)

    def propose(self, context: RoundContext, width: int) -> Draft:
        return super().propose(context, width) if self.later else Draft(context.root[:, None], DraftLaw.DETERMINISTIC)


class TreeSession:
    """Trees with random or fixed shapes. Children are random tokens, so duplicate siblings are common.

    Args:
        vocab_size: Number of tokens V.
        shape: ``random``: a new tree per row and round; ``static``: two children everywhere, the same tree each time.
        holes: Share of nodes that are not valid, with everything below them.
    """

    forwards = 0

    def __init__(self, vocab_size: int, shape: str = "random", holes: float = 0.0, seed: int = 0) -> None:
        self.vocab_size, self.shape, self.holes = vocab_size, shape, holes
        self.generator = torch.Generator().manual_seed(seed)

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        rows = len(context.root)
        tokens = torch.randint(self.vocab_size, (rows, width), generator=self.generator)
        tokens[:, 0] = context.root
        nodes = torch.arange(width)
        if self.shape == "static":
            parent = ((nodes - 1) // 2).clamp_min(0).expand(rows, -1)
        else:
            parent = (torch.rand(rows, width, generator=self.generator) * nodes).long()
        valid = torch.rand(rows, width, generator=self.generator) >= self.holes
        valid[:, 0] = True
        for node in range(1, width):
            valid[:, node] &= valid.gather(1, parent[:, node : node + 1])[:, 0]
        return Draft(tokens, DraftLaw.DETERMINISTIC, parent=parent, valid=valid)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        pass


class LawSession:
    """Sample chains from the laws of a :class:`TableTarget` kept in step; the noise may be keyed wrongly on purpose.

    Args:
        target: The draft model; it must know the committed prefix, so this session commits to it.
        key: Noise key of a draft token, from (context, depth).
        edit: Shortens the draft, given tokens (B, K) and log-laws (B, K, V): lengths (B,). ``None`` keeps it whole.
    """

    forwards = 0

    def __init__(
        self,
        target: TableTarget,
        gumbel: Callable[[RoundContext, int], Tensor],
        edit: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.target, self.gumbel, self.edit = target, gumbel, edit

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        tokens, laws = [context.root], []
        for depth in range(width - 1):
            chain = Draft(torch.stack(tokens, dim=1), DraftLaw.DETERMINISTIC)
            scores = process(self.target.verify(chain, 0).logits[:, -1], context.sampling)
            laws.append(scores.log_softmax(-1))
            tokens.append(draw(scores, self.gumbel(context, depth)))
        blank = torch.zeros(len(context.root), self.target.vocab_size)
        drafted, log_q = torch.stack(tokens, dim=1), torch.stack([*laws, blank], dim=1)
        valid = None
        if self.edit is not None:
            lengths = self.edit(drafted[:, 1:], log_q[:, :-1])
            valid = torch.arange(width) <= lengths[:, None]
        return Draft(drafted, DraftLaw.SAMPLED, log_q=log_q, valid=valid)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        committed = torch.cat([context.root[:, None], verdict.tokens[:, :-1]], dim=1)
        self.target.draft = Draft(committed, DraftLaw.DETERMINISTIC)
        self.target.commit(Verdict(verdict.num_accepted, verdict.next_token, verdict.tokens), verdict.num_accepted + 1)

    def select_rows(self, rows: Tensor) -> None:
        self.target.select_rows(rows)
