"""Frames of codes as one stream of tokens, so that the common loop decodes them.

Order index t G + g is code g of frame t. A draft covers codes of one frame: its nodes are verified by one call of the code
predictor, and what follows the last code of a frame is a call of the talker. Rows may be in different frames and codes; in a
round the rows that need the talker and those that need the predictor run side by side, neither waiting for the other.

Layouts of the predictor's call: ``chain`` keeps the codes of the frame in a cache and runs the new ones only, for one row, whose drafts may
then branch where the model says so; ``fixed`` recomputes all G positions in one static shape (b, G), where causality makes what lies behind a draft harmless, so that rows need
no ragged cache and a captured graph fits.

Symbols: B rows, N nodes, G codes a frame, V tokens, E predictor width, b rows of a call, K look-ahead vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.target import TargetOutput
from mmspec.core.trees import StaticTree
from mmspec.core.verify import Verdict
from mmspec.speech.code_sampling import CodeLaw
from mmspec.speech.frame_model import BranchingModel, BranchingSession, FrameModel, InnerSession

LAYOUTS = ("auto", "chain", "fixed")


def check_layout(layout: str, rows: int = 1) -> None:
    """Raise ValueError if there is no such layout, or it does not hold ``rows`` rows."""
    if layout not in LAYOUTS:
        raise ValueError(f"Unknown `layout` {layout!r}; choose one of {', '.join(LAYOUTS)}.")
    if layout == "chain" and rows > 1:
        raise ValueError(f"Layout 'chain' holds one row, but there are {rows}; use 'fixed'.")


class CodeTarget:
    """A :class:`mmspec.core.target.Target` over a :class:`FrameModel`.

    Args:
        model: The model with its prompts.
        law: How codes are drawn. The logits given out are its log-weights, so the loop samples at temperature 1.
        layout: ``auto`` is ``chain`` for one row and ``fixed`` for several.

    Attributes:
        filled: Committed codes of the current frame of each row, on the host; the last one is the root. G means that
            the frame is finished and the talker is next.
        frame: These codes (B, G), zero behind them.
        states: Talker states that the frames are drawn from (B, D).
        seen: What code 0 has been (B, V), where the law remembers it.
        fresh: Whether the code that the prefill drew is not noted yet.
        talker_calls, predictor_calls: Calls so far; they run side by side where a round has both.
        tail: Inputs by position (G, *) that stand behind the draft in the ``chain`` layout, set by drafters that look
            ahead.
        tail_hidden: Hidden states (1, K, E) of what stood behind the last draft, up to the end of the frame.
        branches: Shape of the next draft, set by drafters that make trees; ``None`` for a chain.
    """

    def __init__(self, model: FrameModel, law: CodeLaw, layout: str = "auto") -> None:
        check_layout(layout)
        self.model, self.law, self.layout = model, law, layout
        self.vocab_size, self.device = model.vocab_size, model.device
        self.num_codebooks = model.num_codebooks
        self.filled: list[int] = []
        self.talker_calls = self.predictor_calls = 0
        self.tail: Tensor | None = None
        self.tail_hidden: Tensor | None = None
        self.branches: StaticTree | None = None
        self._inner: InnerSession | None = None
        self._cached = 0

    def prefill(self, draft: Draft | None = None) -> TargetOutput:
        if draft is not None:
            raise TypeError("Speech synthesis takes no draft in its prefill.")
        logits, self.states = self.model.prefill()
        self.talker_calls += 1
        rows = len(logits)
        check_layout(self.layout, rows)
        # for the whole call: a row that is left alone in the midst of a frame has no cache of it
        self._chained = self.layout != "fixed" and rows == 1
        self.frame = torch.zeros(rows, self.num_codebooks, dtype=torch.long, device=self.device)
        self.seen = self.law.history(rows)
        # as if a frame had just ended: the token that the loop draws now is code 0
        self.filled = [self.num_codebooks] * rows
        self.fresh = True
        return TargetOutput(self.law.first(logits)[:, None], self.states[:, None])

    @property
    def takes_trees(self) -> bool:
        """Whether drafts may branch: those of a single row, if its model can. Known after the prefill."""
        return self._chained and isinstance(self.model, BranchingModel)

    def verify(self, draft: Draft, longest: int) -> TargetOutput:
        if not draft.is_chain and (self.branches is None or self.branches.num_nodes != draft.num_nodes):
            raise TypeError("This drafter makes trees of its own; those of residual codes have one level a code.")
        self._begin(draft.tokens[:, 0])
        self._limit(draft)
        ended = [row for row, filled in enumerate(self.filled) if filled == self.num_codebooks]
        going = [row for row, filled in enumerate(self.filled) if filled < self.num_codebooks]
        if not going:
            return self._talk(None, draft.num_nodes)
        if not ended:
            return self._predict(None, draft)
        rows = len(self.filled)
        logits = torch.zeros(rows, draft.num_nodes, self.vocab_size, device=self.device)
        talked = self._talk(torch.tensor(ended, device=self.device), 1)
        drawn = self._predict(torch.tensor(going, device=self.device), draft)
        logits[ended, :1] = talked.logits
        logits[going] = drawn.logits
        assert drawn.hidden is not None
        hidden = drawn.hidden.new_zeros(rows, *drawn.hidden.shape[1:])
        hidden[going] = drawn.hidden
        return TargetOutput(logits, hidden)

    def _begin(self, root: Tensor) -> None:
        """Take note of the code that the prefill was drawn from; later codes are noted when they are committed."""
        if self.fresh:
            self.fresh = False
            self._note(root[:, None], [1] * len(root))

    def _limit(self, draft: Draft) -> None:
        """Drop nodes behind the last code whose successor belongs to the same frame."""
        room = torch.tensor(
            [max(0, self.num_codebooks - 1 - filled) for filled in self.filled], device=draft.tokens.device
        )
        if not draft.is_chain:
            return  # made to measure
        if draft.num_nodes - 1 > (self.num_codebooks - 1 - min(self.filled) if len(self.filled) == 1 else 0):
            inside = torch.arange(draft.num_nodes, device=room.device) <= room[:, None]
            draft.valid = inside if draft.valid is None else draft.valid & inside

    def _talk(self, rows: Tensor | None, num_nodes: int) -> TargetOutput:
        """Code 0 of the next frame, at node 0."""
        codes = self.frame if rows is None else self.frame[rows]
        logits, states = self.model.advance(rows, codes)
        self.talker_calls += 1
        if rows is None:
            self.states = states
        else:
            self.states = self.states.index_copy(0, rows, states)
        seen = self.seen if self.seen is None or rows is None else self.seen[rows]
        law = self.law.first(logits, seen)[:, None]
        return TargetOutput(torch.nn.functional.pad(law, (0, 0, 0, num_nodes - 1)), states[:, None])

    def _predict(self, rows: Tensor | None, draft: Draft) -> TargetOutput:
        """Residual codes behind the nodes of ``rows``, ``None`` for all."""
        self.predictor_calls += 1
        if self.branches is not None:
            return self._branch(draft, self.branches)
        hidden = self._chain(draft.tokens) if self._chained else self._fixed(rows, draft.tokens)
        filled = torch.tensor(self.filled, device=self.device)
        filled = filled if rows is None else filled[rows]
        nodes = torch.arange(draft.num_nodes, device=self.device)
        books = (filled[:, None] + nodes).clamp_max(self.num_codebooks - 1)  # (b, N) what follows each node
        logits = self.model.head(hidden, books[0] if len(books) == 1 else books)
        return TargetOutput(self.law.rest(logits, books), hidden)

    def _chain(self, tokens: Tensor) -> Tensor:
        """Hidden states (1, N, E) of the nodes behind the cached codes of the frame."""
        filled = self.filled[0]
        if self._inner is None or filled == 1:
            self._inner, self._cached = self.model.open_inner(), 0
        nodes = min(tokens.shape[1], self.num_codebooks - filled)
        inputs = self.model.inner_inputs(
            self.states if self._cached == 0 else None, tokens[:, :nodes], filled - 1
        )  # the root is code `filled - 1`
        real = inputs.shape[1]
        if self.tail is not None:
            inputs = torch.cat([inputs, self.tail[filled + nodes :][None]], dim=1)
        hidden = self._inner.extend(inputs)
        self.tail_hidden = hidden[:, real:] if self.tail is not None else None
        hidden = hidden[:, real - nodes : real]
        return torch.nn.functional.pad(hidden, (0, 0, 0, tokens.shape[1] - nodes))

    def _branch(self, draft: Draft, tree: StaticTree) -> TargetOutput:
        """Residual codes behind the nodes of a tree, level by level, behind the cached codes of the frame."""
        model, filled = self.model, self.filled[0]
        assert isinstance(model, BranchingModel)
        starts = self._inner is None or filled == 1
        if starts:
            self._inner, self._cached = model.open_inner(), 0
        ancestors, depth = draft.ancestors[0], draft.depth[0]
        inputs = model.level_inputs(self.states if starts else None, draft.tokens, filled - 1, tree.sizes)
        if starts:  # the talker's state comes before the root
            ancestors = torch.nn.functional.pad(torch.nn.functional.pad(ancestors, (0, 0, 1, 0)), (1, 0), value=True)
            depth = torch.nn.functional.pad(depth + 1, (1, 0))
        inner: BranchingSession = self._inner  # type: ignore[assignment] # what a BranchingModel opens
        hidden = inner.branch(inputs, depth, ancestors)[:, int(starts) :]
        logits = model.level_logits(hidden, filled, tree.sizes)
        return TargetOutput(self.law.rest(logits, filled + draft.depth), hidden)

    def _fixed(self, rows: Tensor | None, tokens: Tensor) -> Tensor:
        """Hidden states (b, N, E) of the nodes, all positions of the frame recomputed."""
        frame, states = self.frame, self.states
        filled = torch.tensor(self.filled, device=self.device)
        if rows is not None:
            frame, states, filled, tokens = frame[rows], states[rows], filled[rows], tokens[rows]
        books = torch.arange(self.num_codebooks - 1, device=self.device)
        node = books - filled[:, None] + 1  # (b, G - 1) the node that holds each code
        drafted = tokens.gather(1, node.clamp(0, tokens.shape[1] - 1))
        codes = torch.where((node > 0) & (node < tokens.shape[1]), drafted, frame[:, :-1])
        hidden = self.model.inner(states, codes)
        nodes = torch.arange(tokens.shape[1], device=self.device)
        place = (filled[:, None] + nodes).clamp_max(self.num_codebooks - 1)
        return hidden.gather(1, place[..., None].expand(-1, -1, hidden.shape[-1]))

    def commit(self, verdict: Verdict, num_kept: Tensor) -> None:
        kept = num_kept.tolist()  # the host plans the next round by it
        if self._inner is not None:
            # the talker's state, and the codes up to the newest one, which is the next root and not cached
            started = self._cached == 0
            self._cached = self.filled[0] + kept[0] if self.filled[0] < self.num_codebooks else 0
            if verdict.path is None:
                self._inner.keep(self._cached)
            else:
                self._keep_path(verdict.path[0], started)
        self.branches = None
        self._note(verdict.tokens, kept)

    def _keep_path(self, path: Tensor, started: bool) -> None:
        """Cache the nodes of ``path`` (D + 1,) only, the talker's state before them if it came with the call."""
        inner: BranchingSession = self._inner  # type: ignore[assignment]
        inner.keep_path(torch.nn.functional.pad(path + 1, (1, 0)) if started else path, self._cached)

    def _note(self, tokens: Tensor, counts: list[int]) -> None:
        """Write committed ``tokens`` (B, n) into the frames."""
        for row, count in enumerate(counts):
            start = self.filled[row] % self.num_codebooks
            if start == 0:
                self.frame[row] = 0
                if self.seen is not None:
                    self.seen[row, tokens[row, 0]] = True
            self.frame[row, start : start + count] = tokens[row, :count]
            self.filled[row] = start + count

    def select_rows(self, rows: Tensor) -> None:
        self.frame, self.states = self.frame[rows], self.states[rows]
        self.seen = None if self.seen is None else self.seen[rows]
        self.filled = [self.filled[row] for row in rows.tolist()]
        self.model.select_rows(rows)
