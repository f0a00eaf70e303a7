"""Drafts of a frame's residual codes from what the model has computed anyway: no call of the predictor is added.

:class:`ResidualDrafter` reads, from the predictor's output that drew a code, guesses of the codes after it, through those codes' own heads; kinds
that were trained correct the output first, see :mod:`mmspec.speech.residual_heads`. ``head_shift`` needs no training. Guesses are drawn with the
noise that the target will use (coupling ``gumbel``), or with noise of their own for the ratio rule. With the target's noise the second best draw
of a guess is often the target's best, so drafts of a single row may branch. What is drafted is a table, see :mod:`mmspec.speech.draft_shapes`.

Symbols: B rows, N nodes, G codes a frame, V tokens, E predictor width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.core.controllers import Controller, CostCurve, FixedController
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.noise import Stream
from mmspec.core.target import TargetOutput
from mmspec.core.trees import StaticTree
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import Drafter, DraftSetup, check_positive
from mmspec.drafters.fingerprint import check_fingerprint
from mmspec.speech.code_target import CodeTarget
from mmspec.speech.draft_shapes import DraftShapes, cut
from mmspec.speech.frame_model import MOST_BRANCHES, BranchingModel
from mmspec.speech.residual_heads import ResidualHeads

COUPLINGS = ("gumbel", "independent")


class ResidualDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Draft residual codes of a frame.

    Args:
        num_draft_codes: Most draft codes of a call, at most 64.
        coupling: ``gumbel`` draws with the target's noise and suits the coupled rule; ``independent`` suits ``ratio``.
        node_cost: Cost of a draft code in calls of the predictor, see :class:`DraftShapes`.
        prior: Acceptance measured when the checkpoint was made, by place, distance and rank.
        adaptive: Follow the measured acceptance; otherwise always draft as much as is allowed.
        siblings: Most guesses of a code; 1 for chains. Batches, families other than the native talker, and heads that look ahead have chains.
        heads: Learned parts; ``None`` shifts the heads only.

    Raises:
        TypeError, ValueError: For an unknown name or a value out of range.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    ignore_for_config = ["heads"]  # noqa: RUF012 - diffusers reads a list

    @register_to_config
    def __init__(
        self,
        num_draft_codes: int = 30,
        coupling: str = "gumbel",
        node_cost: float = 0.05,
        prior: Sequence[Sequence[Sequence[float]]] | None = None,
        adaptive: bool = True,
        siblings: int = 1,
        *,
        heads: ResidualHeads | None = None,
    ) -> None:
        check_positive("num_draft_codes", num_draft_codes)
        check_positive("siblings", siblings)
        if num_draft_codes > MOST_BRANCHES:
            raise ValueError(f"`num_draft_codes` must be at most {MOST_BRANCHES}, got {num_draft_codes}.")
        if coupling not in COUPLINGS:
            raise ValueError(f"Unknown `coupling` {coupling!r}; choose one of {', '.join(COUPLINGS)}.")
        if siblings > 1 and coupling != "gumbel":
            raise ValueError(
                f"`siblings` is {siblings}, but drafts branch with coupling 'gumbel' only, not {coupling!r}."
            )
        if node_cost < 0:
            raise ValueError(f"`node_cost` must be at least 0, got {node_cost}.")
        self.law = DraftLaw.COUPLED if coupling == "gumbel" else DraftLaw.SAMPLED
        self.heads = heads

    @property
    def kind(self) -> str:
        """How guesses are made."""
        return "head_shift" if self.heads is None else self.heads.config.kind

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save the settings, and the learned parts in the sub-folder ``heads``."""
        super().save_pretrained(save_directory, **kwargs)
        if self.heads is not None:
            self.heads.save_pretrained(Path(save_directory) / "heads")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> ResidualDrafter:
        """Load settings and learned parts from a local folder written by :meth:`save_pretrained`."""
        folder = Path(pretrained_model_name_or_path) / (kwargs.pop("subfolder", None) or "")
        drafter = super().from_pretrained(folder)
        if (folder / "heads").is_dir():
            drafter.heads = ResidualHeads.from_pretrained(folder / "heads").eval()
        return drafter

    def to(self, *args: Any, **kwargs: Any) -> ResidualDrafter:
        if self.heads is not None:
            self.heads.to(*args, **kwargs)
        return self

    def check_target(self, network: Any) -> None:
        if self.heads is not None and self.heads.config.target is not None:
            check_fingerprint(self.heads.config.target, network)

    @property
    def max_siblings(self) -> int:  # type: ignore[override] # it depends on the settings
        return int(self.config.siblings)

    @property
    def max_nodes(self) -> int:
        return self.config.num_draft_codes + 1

    def controller(self, costs: CostCurve) -> Controller:
        return FixedController(self.max_nodes)  # the session plans by the place in the frame

    def session(self, setup: DraftSetup) -> DraftSession:
        if not isinstance(setup.runner, CodeTarget):
            raise ValueError("ResidualDrafter drafts the codes of speech frames; this target has none.")
        target = setup.runner
        books = target.num_codebooks
        if self.heads is not None and self.heads.config.num_codebooks != books:
            raise ValueError(
                f"The drafter was made for {self.heads.config.num_codebooks} codes a frame, the model has {books}."
            )
        return ResidualSession(target, self.heads, self._shapes, self.law, setup.needs_law)

    def _shapes(self, target: CodeTarget) -> DraftShapes:
        """The table of drafts for ``target``, whose prefill has run."""
        books, most = target.num_codebooks, self.config.num_draft_codes
        branching = self.config.siblings > 1 and target.takes_trees and self.kind != "lookahead"
        siblings = self.config.siblings if branching else 1
        prior, cost = self.config.prior, self.config.node_cost
        if not self.config.adaptive:
            prior, cost = None, 0.0
        first = self.kind not in ("head_shift", "lookahead")
        return DraftShapes(books, most if branching else min(most, books - 2), cost, prior, first, siblings)


@dataclass(frozen=True)
class Level:
    """How the codes of one level of a tree are drafted from those above.

    Attributes:
        best: How many best draws of each parent are needed.
        whole: Whether the level is just these, of a single parent.
        above: Place of each node's parent among the nodes above that have children (n,).
        ranks: Which draw of its parent each node is (n,).
        inner: Nodes of the level that have children (m,), and ``inner_above``, the places of their parents (m,).
    """

    best: int
    whole: bool
    above: Tensor
    ranks: Tensor
    inner: Tensor
    inner_above: Tensor


@dataclass(frozen=True)
class TreePlan:
    """A tree as tensors.

    Attributes:
        parent, ancestors, depth: Of a draft, (1, N), (1, N, N) and (1, N).
        levels: Those below the root.
        best: How many best draws of a guess are needed at most.
        pick: Where each node but the root is found among the ``best`` draws of all levels (N - 1,).
    """

    parent: Tensor
    ancestors: Tensor
    depth: Tensor
    levels: tuple[Level, ...]
    best: int
    pick: Tensor

    @classmethod
    def of(cls, tree: StaticTree, device: torch.device) -> TreePlan:
        parent = torch.tensor([tree.parent], device=device)
        shape = Draft(parent, DraftLaw.COUPLED, parent=parent)
        levels, parents = [], [0]
        for depth in range(1, max(tree.depth) + 1):
            nodes = tree.level(depth)
            ranks = [tree.rank[node] for node in nodes]
            above = [parents.index(tree.parent[node]) for node in nodes]
            inner = [place for place, node in enumerate(nodes) if tree.children[node]]
            parents = [nodes[place] for place in inner]
            lists = above, ranks, inner, [above[place] for place in inner]
            whole = not any(above) and ranks == list(range(len(ranks)))
            levels.append(
                Level(max(ranks) + 1, whole, *(torch.tensor(part, dtype=torch.long, device=device) for part in lists))
            )
        best = max(tree.rank) + 1
        pick = [(depth - 1) * best + rank for depth, rank in zip(tree.depth[1:], tree.rank[1:], strict=True)]
        return cls(
            parent,
            shape.ancestors,
            shape.depth,
            tuple(levels),
            best,
            torch.tensor(pick, dtype=torch.long, device=device),
        )


class ResidualSession:
    """Drafts of one call.

    Args:
        target: Session of the target.
        heads: Learned parts, or ``None``.
        shapes: Makes the table of drafts, which is then learnt on the way.
        law: How draft codes are drawn.
        needs_law: Whether the rule reads it.
    """

    forwards = 0

    def __init__(
        self,
        target: CodeTarget,
        heads: ResidualHeads | None,
        shapes: Callable[[CodeTarget], DraftShapes],
        law: DraftLaw,
        needs_law: bool,
    ) -> None:
        self.target, self.heads, self._make_shapes = target, heads, shapes
        self.law, self.needs_law = law, needs_law
        self._hidden: Tensor | None = None  # (B, E) output that drew the newest code of each row
        self._ahead: Tensor | None = None  # (1, K, E) outputs of the vectors behind a draft that was accepted whole
        self._looks_ahead = heads is not None and heads.config.kind == "lookahead"
        self._table: Tensor | None = None
        self._plans: dict[StaticTree, TreePlan] = {}
        self._trees: list[StaticTree] = []  # what was drafted for each row

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        self.shapes = self._make_shapes(self.target)
        if self.heads is None:
            return
        if self._looks_ahead:
            self.target.tail = self.heads.inputs
        else:
            self._table = self.target.model.code_table()

    def propose(self, context: RoundContext, width: int) -> Draft:
        # the first code of a call is noted only when it is verified
        filled = [number % self.target.num_codebooks or self.target.num_codebooks for number in self._filled(context)]
        trees = self._trees = [self._tree(number, width - 1) for number in filled]
        tree = max(trees, key=lambda other: other.num_nodes)
        if tree.num_nodes == 1:
            return Draft(context.root[:, None], self.law, log_q=self._law_of_nothing(context))
        tokens, log_q = self._draw(context, filled, tree)
        if max(len(siblings) for siblings in tree.children) > 1:
            plan, self.target.branches = self._plan(tree), tree
            return Draft(tokens, self.law, parent=plan.parent, relations=(plan.ancestors, plan.depth))
        valid = None
        if any(other.num_nodes < tree.num_nodes for other in trees):
            counts = torch.tensor([other.num_nodes for other in trees], device=tokens.device)
            valid = torch.arange(tree.num_nodes, device=tokens.device) < counts[:, None]
        return Draft(tokens, self.law, valid=valid, log_q=log_q)

    def _tree(self, filled: int, most: int) -> StaticTree:
        """What to draft behind ``filled`` codes, at most ``most`` of them."""
        tree = self.shapes[filled]
        return tree if tree.num_nodes - 1 <= most else cut(tree, most)

    def _plan(self, tree: StaticTree) -> TreePlan:
        """How to draft ``tree``, worked out once."""
        if tree not in self._plans:
            self._plans[tree] = TreePlan.of(tree, self.target.device)
        return self._plans[tree]

    def _filled(self, context: RoundContext) -> list[int]:
        return [1] * len(context.root) if self.target.fresh else self.target.filled

    def _law_of_nothing(self, context: RoundContext) -> Tensor | None:
        if not self.needs_law:
            return None
        return torch.zeros(len(context.root), 1, self.target.vocab_size, device=context.root.device)

    def _draw(self, context: RoundContext, filled: list[int], tree: StaticTree) -> tuple[Tensor, Tensor | None]:
        """Root and draft codes (B, N) of ``tree``, and the law of each node's child (B, N, V) if it is needed, of chains."""
        place = torch.tensor(filled, device=self.target.device)  # book of the first draft code
        noise = self._noise(context, max(tree.depth))
        if self.heads is not None and self.heads.config.kind == "chained":
            drawn, scores = self._level_by_level(context.root, filled, noise, self._plan(tree))
        else:
            drawn, scores = self._at_once(context.root, place, noise, self._plan(tree))
        tokens = torch.cat([context.root[:, None], drawn], dim=1)
        if not self.needs_law:
            return tokens, None
        law = scores.log_softmax(-1)
        return tokens, torch.cat([law, torch.zeros_like(law[:, :1])], dim=1)

    def _at_once(self, root: Tensor, place: Tensor, noise: Tensor, plan: TreePlan) -> tuple[Tensor, Tensor]:
        """Draft codes (B, N - 1), and the log-weights (B, D, V) that those of each level were drawn from."""
        count = noise.shape[1]
        state = self._origin(place)
        if self.heads is None or self._looks_ahead:
            read = state[:, None].expand(-1, count, -1)
            if self._ahead is not None:
                read = torch.cat([self._ahead[:, :count], read[:, self._ahead.shape[1] :]], dim=1)
        else:
            read = self.heads.spread(state, self._embedding(root, place - 1), place - 1, count)
        books = torch.arange(count, device=read.device) + place[:, None]
        drawn, scores = self._guess(self._read(read, books), books, noise, plan.best)
        return drawn.flatten(1)[:, plan.pick], scores

    def _level_by_level(self, root: Tensor, filled: list[int], noise: Tensor, plan: TreePlan) -> tuple[Tensor, Tensor]:
        """As :meth:`_at_once`, each guess knowing those on its path; log-weights are those of chains."""
        assert self.heads is not None
        place = torch.tensor(filled, device=self.target.device)
        state, code = self._origin(place)[:, None], root[:, None]  # of the nodes that have children (B, n, ...)
        levels, scores = [], []
        for depth, level in enumerate(plan.levels):
            books = place[:, None] + depth  # (B, 1)
            state = self.heads.step(state, self._embedding(code, books - 1), self._known(books))
            drawn, law = self._guess(
                self._read(state, books, filled[0] + depth), books, noise[:, depth : depth + 1], level.best
            )
            levels.append(drawn[:, 0] if level.whole else drawn[:, level.above, level.ranks])
            scores.append(law)
            state, code = state[:, level.inner_above], levels[-1][:, level.inner]
        return torch.cat(levels, dim=1), torch.cat(scores, dim=1)

    def _read(self, states: Tensor, books: Tensor, first: int | None = None) -> Tensor:
        """Raw logits (B, n, V) of codes of ``books`` (B, n), or of one book (B, 1), from ``states`` (B, n, E).

        Args:
            first: The book of the first row as the host knows it; asking the device for it would wait for the device.
        """
        books, model = self._known(books), self.target.model
        if books.shape[1] == 1 < states.shape[1]:  # only drafts that branch have several states for a book
            assert isinstance(model, BranchingModel)
            assert first is not None
            return model.level_logits(states, first, (states.shape[1],))
        # one row has one run of books, whose heads need no copy
        return model.head(states, books[0] if len(books) == 1 else books)

    def _guess(self, logits: Tensor, books: Tensor, noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` best draws (B, n, count) of codes of ``books`` (B, n or 1) from raw ``logits`` (B, n, V), and log-weights (B, n, V)."""
        if self.needs_law:
            law = self.target.law.rest(logits, self._known(books))
            return (law + noise).argmax(-1, keepdim=True), law
        return self.target.law.guesses(logits, self._known(books), noise, count), logits

    def _known(self, books: Tensor) -> Tensor:
        """``books`` that lie beyond the frame, of rows that draft less than others, as its last one."""
        return books.clamp_max(self.target.num_codebooks - 1)

    def _origin(self, place: Tensor) -> Tensor:
        """States (B, E) to draft from; behind code 0 the talker's."""
        hidden = self._hidden
        if self.heads is None or self._looks_ahead:
            assert hidden is not None
            return hidden
        started = self.target.model.start_state(self.target.states)
        hidden = started if hidden is None else torch.where((place == 1)[:, None], started, hidden)
        return self.heads.begin(hidden, place - 1)

    def _embedding(self, codes: Tensor, books: Tensor) -> Tensor:
        """Embeddings (..., E) of ``codes`` of ``books``, which broadcast, as the predictor reads them."""
        assert self._table is not None
        # rows that draft nothing now, and draft tokens that are no codes, only need some embedding
        size = self._table.shape
        return self._table[books.clamp_max(size[0] - 1), codes.clamp_max(size[1] - 1)]

    def _noise(self, context: RoundContext, count: int) -> Tensor:
        """Gumbel noise (B, count, V) of the draft codes."""
        if self.law is DraftLaw.COUPLED:
            return context.target_noise(count)
        steps = torch.arange(count, device=context.root.device)
        return context.noise.gumbel(Stream.DRAFT, context.rounds[:, None] * (1 << 20) + steps)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        hidden, filled = output.hidden, self.target.filled
        whole = len(filled) == 1 and int(verdict.num_accepted[0]) == draft.num_nodes - 1 and draft.valid is None
        self._ahead = self.target.tail_hidden if whole else None
        if hidden is None or all(number == self.target.num_codebooks for number in filled):
            return
        last = verdict.num_accepted if verdict.path is None else verdict.path[:, -1]
        self._hidden = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]
        if draft.num_nodes == 1:
            return
        paths = [list(range(draft.num_nodes))] * len(filled) if verdict.path is None else verdict.path.tolist()
        room = [draft.num_nodes - 1] * len(filled) if draft.valid is None else draft.valid[:, 1:].sum(-1).tolist()
        rows = zip(filled, self._trees, paths, room, verdict.num_accepted.tolist(), strict=True)
        for number, tree, path, most, accepted in rows:
            if number < self.target.num_codebooks:
                tree = tree if tree.num_nodes - 1 <= most else cut(tree, most)
                self.shapes.observe(number, tree, path[1 : accepted + 1])

    def select_rows(self, rows: Tensor) -> None:
        if self._hidden is not None:
            self._hidden = self._hidden[rows]
