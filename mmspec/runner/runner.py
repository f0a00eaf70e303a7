"""The runner: one decoding session of a model. It owns cache, positions, masks and guidance branches.

The model rows are branch-major: all conditional rows, then (with guidance) all unconditional ones. Both branches read
the same draft tokens and commit the same path, but never share positions, masks or cache rows.

Symbols: B samples, G branches, R = G * B model rows, N nodes, S visible slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.grammar import Grammar
from mmspec.core.guidance import Guidance
from mmspec.core.target import TargetOutput
from mmspec.core.verify import Verdict
from mmspec.runner.cache import SpecCache


@dataclass
class Prompt:
    """Where the prompts of R model rows lie in the cache.

    Attributes:
        width: Slots up to the end of the longest prompt, padding included.
        start: First real slot of each row (R,); left padding lies before it.
        length: Slots of each row that count after the prefill (R,); right padding lies behind them.
        position_offset: What is subtracted from a slot to get its position (R,).
        first: First slot that the prefill writes; those before it are padding in every row.
    """

    width: int
    start: Tensor
    length: Tensor
    position_offset: Tensor
    first: int = 0

    def rows(self, rows: Tensor) -> Prompt:
        """The prompts of the listed rows."""
        kept = {name: getattr(self, name)[rows] for name in ("start", "length", "position_offset")}
        return replace(self, **kept)


class DecoderModel(Protocol):
    """A model as the runner sees it. Everything here ends in the network's own ``forward``."""

    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    prompt: Prompt
    max_position: int

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        """Run the prompts: logits (R, 1, V) that follow each row's last prompt slot."""
        ...

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        """Run ``tokens`` (R, N) at ``position_ids`` (R, N) under the additive ``mask`` (R, 1, N, S)."""
        ...

    def select_rows(self, rows: Tensor) -> None:
        """Keep the model rows listed in ``rows``."""
        ...


@runtime_checkable
class DraftedPrefill(Protocol):
    """A model that runs a draft behind its prompts in the same forward."""

    def prefill_drafted(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        """Run the prompts, each followed at once by its ``tokens`` (R, K): logits (R, K + 1, V) from its last slot on."""
        ...


class Runner:
    """A :class:`mmspec.core.target.Target` over any :class:`DecoderModel`.

    Args:
        model: The model with its prompts.
        guidance: How branches are merged; the model must hold ``guidance.branches`` rows per sample.
        max_new_tokens: Longest output of a row.
        max_nodes: Widest draft.
        buckets: Pad drafts and visible slots to few static shapes, for compiled models.
        grammar: Tokens that each order index allows; ``None`` allows all everywhere.
    """

    node_buckets = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    slot_bucket = 256

    def __init__(
        self,
        model: DecoderModel,
        guidance: Guidance,
        max_new_tokens: int,
        max_nodes: int,
        *,
        buckets: bool = False,
        grammar: Grammar | None = None,
    ) -> None:
        self.model, self.guidance, self.buckets = model, guidance, buckets
        self.vocab_size, self.device = model.vocab_size, model.device
        self.grammar = None if grammar is None else grammar.to(model.device)
        capacity = model.prompt.width + max_new_tokens + self._nodes(max_nodes)
        if buckets:
            capacity = -(-capacity // self.slot_bucket) * self.slot_bucket
        self.cache = SpecCache(len(model.prompt.start), capacity, model.device)
        self.cache.start, self.cache.static = model.prompt.start, buckets
        self._generated = torch.zeros(
            len(model.prompt.start) // guidance.branches, dtype=torch.long, device=model.device
        )

    def prefill(self, draft: Draft | None = None) -> TargetOutput:
        prompt = self.model.prompt
        width = prompt.width + (0 if draft is None else draft.num_nodes - 1)
        self.cache.lengths = torch.full_like(prompt.length, prompt.first)
        self.cache.plan(width - prompt.first, width)
        keys = torch.arange(width, device=self.model.device)
        queries = keys[prompt.first :, None]
        # padding sees itself, so that its softmax stays finite
        seen = (keys <= queries) & (keys >= prompt.start[:, None, None]) | (keys == queries)
        positions = self._positions(queries[:, 0], prompt.position_offset)
        mask = self._additive(seen)
        if draft is None:
            output = self.model.prefill(self.cache, positions, mask)
            self.cache.lengths = prompt.length.clone()
            order = torch.zeros_like(self._generated)[:, None]
        else:
            output = self._prefill_drafted(draft, positions, mask)
            order = draft.depth
        return TargetOutput(self.law(output.logits, order), output.hidden)

    def _prefill_drafted(self, draft: Draft, positions: Tensor, mask: Tensor) -> TargetOutput:
        if not isinstance(self.model, DraftedPrefill) or not draft.is_chain:
            raise TypeError(f"{type(self.model).__name__} takes no draft of this kind in its prefill.")
        tokens = draft.tokens[:, 1:].repeat(self.guidance.branches, 1)
        output = self.model.prefill_drafted(tokens, self.cache, positions, mask)
        # the root is the prompt's last token: cached already, committed again with the nodes that follow it
        self.cache.lengths = self.model.prompt.length - 1
        self._generated = self._generated - 1
        return output

    def verify(self, draft: Draft, longest: int) -> TargetOutput:
        num_nodes, branches = draft.num_nodes, self.guidance.branches
        tokens, padding = draft.tokens, self._nodes(num_nodes) - num_nodes
        if padding > 0:
            tokens = torch.nn.functional.pad(tokens, (0, padding))
        if branches > 1:
            tokens = tokens.repeat(branches, 1)
        visible = self._visible(longest, tokens.shape[1])
        self.cache.plan(tokens.shape[1], visible)
        seen, depth = self._chain(tokens.shape[1], visible) if draft.is_chain else self._tree(draft, padding, visible)
        mask = self._additive(seen)
        positions = self._positions(self.cache.lengths[:, None] + depth, self.model.prompt.position_offset)
        output = self.model.decode(tokens, self.cache, positions, mask)
        order = self._generated[:, None] + draft.depth + 1
        hidden = None if output.hidden is None else output.hidden[:, :num_nodes]
        return TargetOutput(self.law(output.logits[:, :num_nodes], order), hidden)

    def _chain(self, num_nodes: int, visible: int) -> tuple[Tensor, Tensor]:
        """Allowed pairs (R, N, S) and depths (N,) of a chain, without the matrices that a tree needs."""
        depth = torch.arange(num_nodes, device=self.model.device)
        slots = torch.arange(visible, device=self.model.device)
        last = self.cache.lengths[:, None, None] + depth[:, None]  # (R, N, 1) slot of each node
        return (slots <= last) & (slots >= self.cache.start[:, None, None]), depth

    def _tree(self, draft: Draft, padding: int, visible: int) -> tuple[Tensor, Tensor]:
        """Allowed pairs (R, N, S) and depths (R, N) of a tree with ``padding`` nodes behind it."""
        depth, ancestors, branches = draft.depth, draft.ancestors, self.guidance.branches
        if padding > 0:
            depth = torch.nn.functional.pad(depth, (0, padding))
            ancestors = torch.nn.functional.pad(ancestors, (0, padding, 0, padding))
            ancestors[:, draft.num_nodes :, 0] = True  # any visible slot keeps the softmax of a padding node finite
        if branches > 1:
            depth, ancestors = depth.repeat(branches, 1), ancestors.repeat(branches, 1, 1)
        return self._tree_mask(ancestors, visible), depth

    def law(self, logits: Tensor, order: Tensor) -> Tensor:
        """Merged and masked logits (B, N, V) of the tokens at ``order`` (B, N)."""
        merged = self.guidance.merge(logits, order)
        return merged if self.grammar is None else self.grammar.mask(merged, order)

    def commit(self, verdict: Verdict, num_kept: Tensor) -> None:
        branches = self.guidance.branches
        path = None if verdict.path is None else verdict.path.repeat(branches, 1)
        self.cache.commit(num_kept.repeat(branches), path)
        self._generated = self._generated + num_kept

    def rollback(self, count: Tensor) -> None:
        """Forget the last ``count`` (B,) committed tokens of each row."""
        self.cache.rollback(count.repeat(self.guidance.branches))
        self._generated = self._generated - count

    def select_rows(self, rows: Tensor) -> None:
        num_samples = len(self._generated)
        model_rows = torch.cat([rows + branch * num_samples for branch in range(self.guidance.branches)])
        self.model.select_rows(model_rows)
        self.cache.select_rows(model_rows)
        self._generated = self._generated[rows]

    def _nodes(self, num_nodes: int) -> int:
        return next(b for b in self.node_buckets if b >= num_nodes) if self.buckets else num_nodes

    def _visible(self, longest: int, num_nodes: int) -> int:
        visible = self.model.prompt.width + longest - 1 + num_nodes  # the newest token is a node, not yet cached
        return -(-visible // self.slot_bucket) * self.slot_bucket if self.buckets else visible

    def _tree_mask(self, ancestors: Tensor, visible: int) -> Tensor:
        """Allowed pairs (R, N, S): the committed past of the row, and the node's own ancestors behind it."""
        slots = torch.arange(visible, device=ancestors.device)
        past = (slots < self.cache.lengths[:, None]) & (slots >= self.cache.start[:, None])
        node = slots - self.cache.lengths[:, None]  # (R, S) which node a slot holds
        inside = (node >= 0) & (node < ancestors.shape[2])
        index = node.clamp(0, ancestors.shape[2] - 1)[:, None].expand(-1, ancestors.shape[1], -1)
        return past[:, None] | (ancestors.gather(2, index) & inside[:, None])

    def _additive(self, allowed: Tensor) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=self.model.dtype, device=allowed.device)
        return mask.masked_fill_(~allowed, -torch.inf)[:, None]

    def _positions(self, slots: Tensor, offset: Tensor) -> Tensor:
        # nodes beyond the end of a row are never kept; they only need a legal position
        return (slots - offset[:, None]).clamp(0, self.model.max_position)
