"""Decoding session of drafters of pairs: growing chains and trees, and keeping step with what is committed.

Symbols: B rows, R = G * B model rows, W expanded nodes of a level, M nodes run so far, N nodes of the draft, D hidden
size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.noise import Stream
from mmspec.core.sampling import process
from mmspec.core.target import TargetOutput
from mmspec.core.trees import Candidates, StaticTree, select_best, static_tree, top_children
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.siblings import grow_beam, root_beam
from mmspec.runner.features import FeatureRunner

if TYPE_CHECKING:
    from mmspec.drafters.pairs import PairDrafter

_SIBLINGS = 64
"""Independent draws of one node that get keys of their own."""


class FeatureSession:
    """Drafts of one call. All choices read the row's own logits, noise and lengths only."""

    @property
    def revisable(self) -> bool:
        """Whether drafts may be revised: not where a rule reads the law that they were drawn from."""
        return not self.needs_law

    def __init__(self, runner: FeatureRunner, drafter: PairDrafter, setup: DraftSetup) -> None:
        config = drafter.config
        self.runner, self.config, self.choices, self.law = runner, config, drafter.choices, drafter.law
        self.needs_law, self.max_new_tokens = setup.needs_law, setup.max_new_tokens
        self.mode = config.mode
        if config.mode == "coupled" and setup.needs_law:
            # the target's noise says nothing under a ratio rule: a chain is drawn with noise of its round, as block
            # rules want it, and a tree is made of the likeliest tokens
            self.mode = "sampled" if config.tree == "chain" else "top-k"
        self.scales = (config.calibration or {}).get(self.mode, [1.0])
        self.trees: dict[int, StaticTree] = {}  # by number of nodes
        self.depth = 0  # of the deepest node of the last draft
        self.proposed: Draft | None = None
        self.forwards = 0
        self.clock = self.runner.clock

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        assert output.hidden is not None
        self.runner.start(output.hidden, context.root)
        self.forwards = self.runner.forwards

    def propose(self, context: RoundContext, width: int) -> Draft:
        nodes = min(width, self.max_new_tokens)  # what the target's cache has room for
        room = self.max_new_tokens - context.lowest - 1  # draft tokens that the row with the most room can use
        self.depth = 0
        if nodes < 2 or room < 1:
            return Draft(context.root[:, None], self.law, log_q=self._blank_law(context))
        states, logits = self.runner.feed(context.generated, context.highest)
        if self.config.tree == "static":
            draft = self._static(context, states, logits, self._tree(nodes))
        elif self.config.tree == "chain":
            draft = self._chain(context, states, logits, min(nodes - 1, room))
        elif self.mode == "sampled":
            draft = self._sampled_beam(context, states, logits, nodes, min(room, self.config.depth))
        else:
            draft = self._dynamic(context, states, logits, nodes, min(nodes - 1, room, self.config.depth))
        self.forwards = self.runner.forwards
        self.proposed = draft
        return draft

    def _tree(self, nodes: int) -> StaticTree:
        if nodes not in self.trees:
            self.trees[nodes] = static_tree(self.choices, nodes)
        return self.trees[nodes]

    def _blank_law(self, context: RoundContext) -> Tensor | None:
        """The law (B, 1, V) of a node without children, if the rule reads laws; nobody reads this one."""
        if not self.needs_law or self.mode != "sampled":
            return None
        return torch.zeros(len(context.root), 1, self.runner.model.vocab_size, device=context.root.device)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        assert output.hidden is not None
        accepted = verdict.num_accepted
        # elsewhere the exact length would cost a synchronisation; a revised draft may be deeper than it was
        deepest = self.depth + 1 if draft is self.proposed else draft.num_nodes
        steps = int(accepted.max()) + 1 if accepted.device.type == "cpu" else deepest
        hidden = output.hidden[:, :steps]
        if verdict.path is not None:
            branches = len(output.hidden) // len(verdict.path)
            path = verdict.path[:, :steps].repeat(branches, 1)
            hidden = output.hidden.gather(1, path[..., None].expand(-1, -1, output.hidden.shape[2]))
        self.runner.queue(hidden, verdict.tokens[:, :steps], accepted + 1)

    def select_rows(self, rows: Tensor) -> None:
        self.runner.select_rows(rows)

    def _chain(self, context: RoundContext, states: Tensor, logits: Tensor, length: int) -> Draft:
        self.depth = length
        tokens, laws = [context.root], []
        paths = torch.zeros(len(context.root), 1, 0, dtype=torch.bool, device=context.root.device)
        for depth in range(length):
            if depth:
                paths = torch.nn.functional.pad(paths, (0, 1), value=True)
                states, logits = self._grow(context, states, tokens[-1][:, None], paths, depth)
            ranking, _, log_q = self._score(context, logits, depth, [depth])
            tokens.append(ranking[:, 0].argmax(-1))
            if log_q is not None:
                laws.append(log_q[:, 0])
        blank = self._blank_law(context)
        law = None if blank is None else torch.cat([torch.stack(laws, dim=1), blank], dim=1)
        return Draft(torch.stack(tokens, dim=1), self.law, log_q=law)

    def _dynamic(self, context: RoundContext, states: Tensor, logits: Tensor, nodes: int, length: int) -> Draft:
        self.depth = length
        config = self.config
        beam = min(config.beam, nodes - 1)
        room = (self.max_new_tokens - context.generated - 1)[:, None, None]
        candidates = Candidates.of(context.root)
        expanded = torch.zeros_like(context.root)[:, None]
        paths = torch.zeros(len(context.root), 1, 0, dtype=torch.bool, device=context.root.device)
        for depth in range(length):
            ranking, acceptance, _ = self._score(context, logits, depth, range(expanded.shape[1]))
            tokens, edges = top_children(ranking, acceptance, config.branching)
            candidates = candidates.add_level(expanded, tokens, edges.masked_fill(depth >= room, -torch.inf))
            if depth + 1 == length:
                break
            expanded = candidates.best_of_level(beam)
            parent = (expanded - candidates.start) // tokens.shape[2]  # place of the parent in the level before
            paths = extend_paths(paths, parent, first=depth == 0)
            there = parent.repeat(self.runner.guidance.branches, 1).to(states.device)
            states = states.gather(1, there[..., None].expand(-1, -1, states.shape[2]))
            states, logits = self._grow(context, states, candidates.tokens.gather(1, expanded), paths, depth + 1)
        drafted, parent, valid = select_best(candidates, nodes)
        return Draft(drafted, self.law, parent=parent, valid=valid)

    def _sampled_beam(self, context: RoundContext, states: Tensor, logits: Tensor, nodes: int, length: int) -> Draft:
        """Stochastic beam search: whether a node is kept does not depend on which token it turned out to be."""
        width = min(self.config.beam, nodes - 1)
        self.depth = length = min(length, (nodes - 1) // width)
        beam = root_beam(len(context.root), context.root.device)
        tokens, parents, valid, laws = [context.root[:, None]], [beam.tokens], [beam.score > -torch.inf], []
        paths = torch.zeros(len(context.root), 1, 0, dtype=torch.bool, device=context.root.device)
        first = 0  # number of the first node of the newest level
        for depth in range(length):
            if depth:
                paths = extend_paths(paths, beam.parent, first=depth == 1)
                there = beam.parent.repeat(self.runner.guidance.branches, 1).to(states.device)
                states = states.gather(1, there[..., None].expand(-1, -1, states.shape[2]))
                states, logits = self._grow(context, states, beam.tokens, paths, depth)
            level = range(first, first + logits.shape[1])
            log_q, noise = self._law_and_noise(context, logits, level)
            laws.append(log_q)
            beam = grow_beam(beam, log_q, noise, width)
            tokens.append(beam.tokens)
            parents.append(beam.parent + first)
            valid.append(beam.score > -torch.inf)
            first = level.stop
        blank = self._blank_law(context)
        law = None if blank is None else torch.cat([*laws, blank.expand(-1, beam.tokens.shape[1], -1)], dim=1)
        exists = torch.cat(valid, dim=1)
        joined = torch.cat(tokens, dim=1).where(exists, 0), torch.cat(parents, dim=1).where(exists, 0)
        return Draft(joined[0], self.law, parent=joined[1], valid=exists, log_q=law)

    def _static(self, context: RoundContext, states: Tensor, logits: Tensor, tree: StaticTree) -> Draft:
        self.depth = max(tree.depth)
        rows, device = len(context.root), context.root.device
        tokens = context.root[:, None].repeat(1, tree.num_nodes)
        valid = torch.ones_like(tokens, dtype=torch.bool)
        parent = torch.tensor(tree.parent, device=device)
        blank = self._blank_law(context)
        laws = None if blank is None else blank.repeat(1, tree.num_nodes, 1)
        level, paths = [0], torch.zeros(1, 1, 0, dtype=torch.bool, device=device)
        for depth in range(self.depth):
            if depth:
                above, level = level, [node for node in tree.level(depth) if node in tree.parent[1:]]
                place = torch.tensor([above.index(tree.parent[node]) for node in level], device=device)
                paths = extend_paths(paths, place[None], first=depth == 1)
                states = states[:, place.to(states.device)]
                states, logits = self._grow(context, states, tokens[:, level], paths.expand(rows, -1, -1), depth)
            children = tree.level(depth + 1)
            count = max(tree.rank[child] for child in children) + 1
            drawn, exists, log_q = self._children(context, logits, depth, level, count)
            at = [level.index(tree.parent[child]) for child in children]
            rank = [min(tree.rank[child], drawn.shape[2] - 1) for child in children]
            real = torch.tensor([tree.rank[child] < drawn.shape[2] for child in children], device=device)
            tokens[:, children] = drawn[:, at, rank]
            valid[:, children] = exists[:, at, rank] & real & valid[:, parent[children]]
            if laws is not None and log_q is not None:
                laws[:, level] = log_q
        return Draft(tokens, self.law, parent=parent.expand(rows, -1), valid=valid, log_q=laws)

    def _children(
        self, context: RoundContext, logits: Tensor, depth: int, nodes: list[int], count: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first ``count`` children of ``nodes``, whether they exist, both (B, W, k), and the law they are from."""
        if self.mode != "sampled" or not self.config.replacement:
            ranking, _, log_q = self._score(context, logits, depth, nodes)
            drawn = ranking.topk(min(count, ranking.shape[-1]), dim=-1)
            return drawn.indices, drawn.values > -torch.inf, log_q
        log_q = process(logits, context.sampling).log_softmax(-1)
        keys = torch.tensor(nodes, device=logits.device)[:, None] * _SIBLINGS + torch.arange(
            count, device=logits.device
        )
        noise = context.noise.gumbel(Stream.DRAFT, context.rounds[:, None] * (1 << 20) + keys.flatten())
        races = log_q[:, :, None] + noise.unflatten(1, (len(nodes), count))
        drawn_twice = races.argmax(-1)
        return drawn_twice, torch.ones_like(drawn_twice, dtype=torch.bool), log_q

    def _score(
        self, context: RoundContext, logits: Tensor, depth: int, nodes: range | list[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What orders the tokens after ``nodes`` at ``depth``, their log-acceptance, and the law if they are drawn.

        Args:
            logits: Logits of the nodes (B, W, V).
            nodes: Numbers of the nodes, which key their noise.

        Returns:
            Ranking (B, W, V), log-acceptance (B, W, V), and log-law (B, W, V) or ``None``.
        """
        if self.mode == "sampled":
            log_q, noise = self._law_and_noise(context, logits, nodes)
            return log_q + noise, log_q, log_q
        # greedy decoding leaves one candidate; drafts need the order of the others
        ranking = logits if context.sampling.greedy else process(logits, context.sampling)
        if self.mode == "coupled" and not context.sampling.greedy:
            ranking = ranking + context.target_noise(depth + 1)[:, depth, None]
        scale = self.scales[min(depth, len(self.scales) - 1)]
        return ranking, (ranking / scale).log_softmax(-1), None

    def _law_and_noise(self, context: RoundContext, logits: Tensor, nodes: range | list[int]) -> tuple[Tensor, Tensor]:
        """The law of the children of ``nodes``, and noise of this round to draw them with, both (B, W, V)."""
        keys = context.rounds[:, None] * (1 << 20) + torch.tensor(list(nodes), device=logits.device) * _SIBLINGS
        log_q = process(logits, context.sampling).log_softmax(-1)
        return log_q, context.noise.gumbel(Stream.DRAFT, keys)

    def _grow(
        self, context: RoundContext, states: Tensor, tokens: Tensor, paths: Tensor, depth: int
    ) -> tuple[Tensor, Tensor]:
        return self.runner.grow(states, tokens, paths, depth, context.generated, context.highest)


def extend_paths(paths: Tensor, parent: Tensor, first: bool) -> Tensor:
    """Ancestor-or-self relation (B, W, M + W) of a new level to the nodes run so far and itself.

    Args:
        paths: Relation of the level above (B, W', M).
        parent: Place of each new node's parent in that level (B, W).
        first: Whether the level above is the root, which does not count as a drafted node.
    """
    width = parent.shape[1]
    if first:
        above = paths.new_zeros(len(parent), width, 0)
    else:
        above = paths.gather(1, parent[..., None].expand(-1, -1, paths.shape[2]))
    itself = torch.eye(width, dtype=torch.bool, device=paths.device).expand(len(parent), -1, -1)
    return torch.cat([above, itself], dim=2)
