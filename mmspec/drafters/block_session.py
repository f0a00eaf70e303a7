"""Decoding session of a block drafter: its context keeps step with the target's cache, slot for slot.

Before a draft the context holds the states of all committed tokens but the newest, which the target has not read yet.
The block's own keys and values lie behind them and are forgotten at once.

Symbols: B rows, P prompt slots, N nodes, Q slots of the block, K depths, M candidates of a depth, S visible slots, T
tapped layers, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import process
from mmspec.core.target import TargetOutput
from mmspec.core.timing import NetworkClock
from mmspec.core.trees import TokenTree, conditional_tree, joined_trees, marginal_tree
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.ngram import NGramSession
from mmspec.runner.cache import SpecCache

if TYPE_CHECKING:
    from mmspec.drafters.block import BlockDrafter

_SUFFIX = 3  # longest suffix that a graft is looked up by


class BlockSession:
    """Drafts of one call. All choices read the row's own logits, noise and lengths only."""

    revisable = True

    def __init__(self, drafter: BlockDrafter, setup: DraftSetup) -> None:
        self.drafter, self.config, self.target = drafter, drafter.config, setup.runner
        self.model: Any = setup.runner.model
        self.model.taps = tuple(self.config.taps)
        self.max_new_tokens = setup.max_new_tokens
        self.device, self.dtype = drafter.device, drafter.dtype  # asked once: both walk through all parameters
        self.width = self.model.prompt.width
        self.room = setup.max_new_tokens + max(self.config.block_size, drafter.max_nodes)
        capacity = self.width + self.room
        self.cache = SpecCache(setup.num_rows, capacity, self.device)
        self.removed = torch.zeros_like(self.cache.lengths)  # slots of each prompt that others stand for
        places = torch.arange(capacity, device=self.device)
        self.cosine, self.sine = (part[0, 0] for part in drafter.rotary(places[None]))  # (capacity, P)
        self.lookup = NGramSession(_SUFFIX, setup)
        self.forwards = 0
        self.clock = NetworkClock(self.device)

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        assert output.hidden is not None
        read = self.drafter.read_context(output.hidden.to(self.device, self.dtype))
        length = self.model.prompt.length.to(self.device)
        places = torch.arange(self.width, device=self.device).expand(len(length), -1)
        if self.drafter.compressor is not None:
            shorter = self.drafter.compressor([read], self.model.visual.to(self.device), length)
            [read], places = shorter.parts, shorter.places
            self.removed, length, self.width = length - shorter.count, shorter.count, read.shape[1]
            self.cache = SpecCache(len(length), self.width + self.room, self.device)
        self._write(read, self._rotary_at(places), self.width)
        # the states of right padding are overwritten by those of the first new tokens
        self.cache.lengths = length

    def propose(self, context: RoundContext, width: int) -> Draft:
        room = self.max_new_tokens - context.lowest - 1  # draft tokens that the row with the most room can use
        depth = min(self.drafter.slots - 1, room)
        if width < 2 or depth < 1:
            return Draft(context.root[:, None], DraftLaw.DETERMINISTIC)
        logits = self._block(context)[:, :depth]
        markov = self.config.markov_rank > 0
        if markov:
            logits = torch.cat([logits[:, :1] + self.drafter.correction(context.root)[:, None], logits[:, 1:]], dim=1)
        if self.config.tree == "chain":
            return self._chain(context, logits[:, : width - 1])
        ranking = self._rank(context, logits)
        best = ranking.topk(min(self.config.branching, width - 1, ranking.shape[-1]), dim=-1)
        edges = self._edges(ranking).gather(-1, best.indices)
        later = self._transitions(context, logits, best.indices) if markov and depth > 1 else None
        return self._tree(context, best.indices, edges, later, width)

    def _chain(self, context: RoundContext, logits: Tensor) -> Draft:
        """The likeliest token of every slot, given the one before it where there is a correction."""
        likeliest = [self._rank(context, logits).argmax(-1)]
        if self.config.markov_rank:
            noise = self._noise(context, logits.shape[1])
            tokens = [likeliest[0][:, 0]]
            for slot in range(1, logits.shape[1]):
                law = self._process(context, logits[:, slot] + self.drafter.correction(tokens[-1]))
                tokens.append((law if noise is None else law + noise[:, slot]).argmax(-1))
            likeliest = [torch.stack(tokens, dim=1)]
        return Draft(torch.cat([context.root[:, None], *likeliest], dim=1), DraftLaw.DETERMINISTIC)

    def _transitions(self, context: RoundContext, logits: Tensor, tokens: Tensor) -> Tensor:
        """Log-acceptances (B, K - 1, M, M) of the candidates ``tokens`` (B, K, M) behind each of the depth before."""
        ranking = self._process(context, logits[:, 1:, None] + self.drafter.correction(tokens[:, :-1]))
        noise = self._noise(context, logits.shape[1])
        if noise is not None:
            ranking = ranking + noise[:, 1:, None]
        behind = tokens[:, 1:, None].expand(-1, -1, tokens.shape[2], -1)
        return self._edges(ranking).gather(-1, behind)

    def _edges(self, ranking: Tensor) -> Tensor:
        """Log-acceptances of all tokens (..., V); -inf where the ranking is."""
        edges = (ranking / self.config.temperature).log_softmax(-1)
        return edges.masked_fill(ranking == -torch.inf, -torch.inf)

    def _block(self, context: RoundContext) -> Tensor:
        """Logits (B, K, V) of the slots behind the newest tokens, masked as the target's."""
        size = self.drafter.slots
        tokens = torch.full((len(context.root), size), self.config.mask_token_id, device=context.root.device)
        tokens[:, 0] = context.root
        embeddings = self.model.embed_tokens(tokens).to(self.device, self.dtype)
        visible = self.width + context.highest - 1 + size
        mask = None  # every slot sees the context and the whole block, which is all there is of a single row
        if len(tokens) > 1:
            seen = torch.arange(visible, device=self.device) < self.cache.lengths[:, None] + size  # (B, S)
            mask = seen[:, None, None].expand(-1, 1, size, -1)
        self.cache.plan(size, visible)
        with self.clock.running():
            states = self.drafter(embeddings, self._rotary(size), mask, self.cache)
            logits = self.model.logits(states[:, 1:].to(self.model.device, self.model.dtype))
        self.forwards += 1
        order = context.generated[:, None] + torch.arange(size - 1, device=context.root.device)
        return self.target.law(logits, order)

    def _rank(self, context: RoundContext, logits: Tensor) -> Tensor:
        """What orders the candidates of each depth (B, K, V)."""
        ranking, noise = self._process(context, logits), self._noise(context, logits.shape[1])
        return ranking if noise is None else ranking + noise

    @staticmethod
    def _process(context: RoundContext, logits: Tensor) -> Tensor:
        """Log-weights of tokens; greedy decoding leaves one candidate, but drafts need the order of the others."""
        return logits if context.sampling.greedy else process(logits, context.sampling)

    def _noise(self, context: RoundContext, count: int) -> Tensor | None:
        """The target's noise (B, K, V), where drafts look at it."""
        coupled = self.config.mode == "coupled" and not context.sampling.greedy
        return context.target_noise(count) if coupled else None

    def _tree(self, context: RoundContext, tokens: Tensor, edges: Tensor, later: Tensor | None, width: int) -> Draft:
        """The best tree of each row from candidates ``tokens`` and log-acceptances ``edges``, both (B, K, M).

        ``later`` (B, K - 1, M, M) are those of the depths behind the first, given the candidate before.
        """
        copies = self._copies(context, min(self.config.graft, width - 1))
        # ids are exact in float64, so that one transfer brings all to the host
        known = torch.stack([tokens.double(), edges.double()]).tolist()
        roots, generated = context.root.tolist(), context.generated.tolist()
        behind = None if later is None else later.tolist()
        trees = []
        for row, root in enumerate(roots):
            room = max(0, self.max_new_tokens - generated[row] - 1)
            copy = copies[row][:room]
            nodes = width - len(copy)
            if behind is None:
                parent, depth, rank = marginal_tree(known[1][row][:room], nodes)
            elif room:
                parent, depth, rank = conditional_tree(known[1][row][0], behind[row][: room - 1], nodes)
            else:
                parent, depth, rank = [0], [0], [0]
            tree, place = TokenTree(root), [0]
            for above, level, order in zip(parent[1:], depth[1:], rank[1:], strict=True):
                place.append(tree.add(place[above], int(known[0][row][level - 1][order])))
            node = 0
            for token in copy:  # shares the nodes that the tree has already
                node = tree.add(node, token)
            trees.append(tree)
        return joined_trees(trees, tokens.device)

    def _copies(self, context: RoundContext, length: int) -> list[list[int]]:
        """For each row at most ``length`` tokens that followed its last ones before, in prompt or answer."""
        if length < 1:
            return [[] for _ in range(len(context.root))]
        found = self.lookup.propose(context, length + 1)
        valid = torch.ones_like(found.tokens, dtype=torch.bool) if found.valid is None else found.valid
        rows = zip(found.tokens.tolist(), valid.tolist(), strict=True)
        return [[token for token, there in zip(row[1:], real[1:], strict=True) if there] for row, real in rows]

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        assert output.hidden is not None
        accepted = verdict.num_accepted
        # elsewhere the exact length would cost a synchronisation
        steps = int(accepted.max()) + 1 if accepted.device.type == "cpu" else draft.num_nodes
        hidden = output.hidden[:, :steps]
        if verdict.path is not None:
            path = verdict.path[:, :steps]
            hidden = output.hidden.gather(1, path[..., None].expand(-1, -1, output.hidden.shape[2]))
        with self.clock.running():
            self._append(hidden, self.width + context.highest - 1 + steps)
        self.cache.lengths = self.cache.lengths + (accepted + 1).to(self.device)

    def _append(self, features: Tensor, visible: int) -> None:
        """Write the keys and values of the states ``features`` (B, N, T * D) behind each row's context."""
        read = self.drafter.read_context(features.to(self.device, self.dtype))
        self._write(read, self._rotary(read.shape[1]), visible)

    def _write(self, read: Tensor, rotary: tuple[Tensor, Tensor], visible: int) -> None:
        """Write the keys and values of context (B, N, D) behind that of each row."""
        self.cache.plan(read.shape[1], visible)
        layers: Any = self.drafter.layers
        for index, layer in enumerate(layers):
            key, value = layer.self_attn.keys_values(read, rotary)
            self.cache.update(key, value, index)

    def _rotary(self, count: int) -> tuple[Tensor, Tensor]:
        """What heads are rotated by in the next ``count`` slots of each row."""
        return self._rotary_at((self.cache.lengths + self.removed)[:, None] + torch.arange(count, device=self.device))

    def _rotary_at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        # rows behind the longest one's padding are never read; they only need a legal place
        places = places.clamp_max(len(self.cosine) - 1)
        return self.cosine[places][:, None], self.sine[places][:, None]

    def select_rows(self, rows: Tensor) -> None:
        self.cache.select_rows(rows.to(self.device))
        self.removed = self.removed[rows.to(self.device)]
        self.lookup.select_rows(rows)
