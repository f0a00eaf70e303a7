"""Jacobi windows: the target drafts for itself. The unverified rest of a window is redrawn from every new forward.

Song et al., 2021 (parallel nonlinear equation solving); Teng et al., 2024 (speculative Jacobi decoding, SJD); the
coupled variants follow "MC-SJD" (So et al., 2025). How a slot is redrawn and which rule judges it give the published
modes:

    coupling      rule       method
    independent   ratio      SJD
    maximal       ratio      maximally coupled SJD: a slot keeps its token with probability 1 - TV of its two last laws
    gumbel        ratio      Gumbel-coupled SJD: one noise per slot for its whole life
    gumbel        coupled    fixed point: the very tokens of plain decoding, the default

Invariant for the ratio rule: ``log_q`` of a slot is the law its token was last (re)drawn from, given everything else.

Symbols: B rows, N nodes of a draft, L slots of the window, V vocabulary.
"""

from __future__ import annotations

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.core.controllers import Controller, CostCurve
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw, draw_by_inversion, process
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict, residual
from mmspec.drafters.base import Drafter, DraftSetup, check_controller, check_positive, make_controller
from mmspec.drafters.initializers import FRAME_INITIALIZERS, INITIALIZERS, Initializer

COUPLINGS = ("gumbel", "independent", "maximal")


class JacobiDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Draft a window of the target's own latest guesses; needs no training and no second model.

    Args:
        window: Most nodes of a forward, the last committed token included; 1 is plain decoding.
        coupling: ``gumbel``, ``maximal`` or ``independent``, see the module's table.
        initializer: Guess for slots that enter the window: ``uniform``, ``copy-left``, ``copy-up``, ``mix`` or ``law``;
            for clips also ``copy-frame``, ``mix-frame`` or ``law-frame``.
        mix: Share of uniform guesses of the ``mix`` initialisers, in [0, 1].
        controller: ``cost-aware`` picks the width with the most tokens per second on this machine; ``adaptive`` takes
            1.5 times the mean accepted run; ``fixed``, ``aimd``.
        prior: Tokens per forward by window, measured when the checkpoint was made; a start for ``cost-aware``.
        within_frame: Whether windows end with the frame of a clip, so that no guess looks beyond it.

    Raises:
        TypeError, ValueError: For an unknown name or a value out of range.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    max_siblings = 1

    @register_to_config
    def __init__(
        self,
        window: int = 64,
        coupling: str = "gumbel",
        initializer: str = "mix",
        mix: float = 0.3,
        controller: str = "cost-aware",
        prior: dict[str, float] | None = None,
        within_frame: bool = False,
    ) -> None:
        check_positive("window", window)
        check_controller(controller)
        if coupling not in COUPLINGS:
            raise ValueError(f"Unknown `coupling` {coupling!r}; choose one of {', '.join(COUPLINGS)}.")
        if initializer not in (legal := (*INITIALIZERS, *FRAME_INITIALIZERS)):
            raise ValueError(f"Unknown `initializer` {initializer!r}; choose one of {', '.join(legal)}.")
        if not 0 <= mix <= 1:
            raise ValueError(f"`mix` must lie in [0, 1], got {mix}.")
        self.law = DraftLaw.SAMPLED if coupling == "independent" else DraftLaw.COUPLED

    @property
    def max_nodes(self) -> int:
        return self.config.window

    def controller(self, costs: CostCurve) -> Controller:
        config = self.config
        return make_controller(config.controller, config.window, costs, config.prior)

    def session(self, setup: DraftSetup) -> DraftSession:
        config = self.config
        initializer = Initializer(
            config.initializer, setup.vocab_size, setup.row_length, config.mix, setup.row_start, setup.grammar,
            setup.frame_length, setup.prompt_ids,
        )  # fmt: skip
        if config.within_frame and setup.frame_length is None:
            raise ValueError("`within_frame` needs a target that makes clips.")
        frame = setup.frame_length if config.within_frame else None
        return JacobiSession(config.coupling, initializer, self.law, setup, frame)


class JacobiSession:
    """Window of one call: ``slots`` (B, L) guesses of the tokens after the root, the first ``filled`` (B,) are real.

    With a ``frame``, its tokens, windows end where a frame does.
    """

    forwards = 0

    def __init__(
        self, coupling: str, initializer: Initializer, law: DraftLaw, setup: DraftSetup, frame: int | None = None
    ) -> None:
        self.coupling, self.initializer, self.law, self.frame = coupling, initializer, law, frame
        self.needs_law = setup.needs_law or coupling == "maximal"
        self.slots = torch.zeros(setup.num_rows, 0, dtype=torch.long, device=setup.device)
        self.filled = torch.zeros(setup.num_rows, dtype=torch.long, device=setup.device)
        self.log_q = torch.zeros(setup.num_rows, 0, setup.vocab_size, device=setup.device) if self.needs_law else None
        self.last_scores: Tensor | None = None  # newest law of a slot with a choice (B, V)
        self.grammar = setup.grammar

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        if self.initializer.needs_scores:
            self.last_scores = process(output.logits[:, -1], context.sampling)
        if self.initializer.laws is not None:  # of the first token, which is committed already
            scores = process(output.logits[:, -1:], context.sampling)
            self.initializer.laws.store(context.generated - 1, scores.log_softmax(-1))

    def propose(self, context: RoundContext, width: int) -> Draft:
        count = self._within_frame(context, width - 1)
        if self.slots.shape[1] < count:
            extra = count - self.slots.shape[1]
            self.slots = torch.nn.functional.pad(self.slots, (0, extra))
            if self.log_q is not None:
                self.log_q = torch.nn.functional.pad(self.log_q, (0, 0, 0, extra))
        if count:
            empty = torch.arange(count, device=self.slots.device) >= self.filled[:, None]
            guesses, log_q = self.initializer(
                context, self.slots, self.filled, count, self.last_scores, self.needs_law
            )
            guesses = torch.where(empty, guesses, self.slots[:, :count])
            self.slots = torch.cat([guesses, self.slots[:, count:]], dim=1) if self.slots.shape[1] > count else guesses
            if self.log_q is not None and log_q is not None:
                self.log_q[:, :count] = torch.where(empty[..., None], log_q, self.log_q[:, :count])
        tokens = torch.cat([context.root[:, None], self.slots[:, :count]], dim=1)
        return Draft(tokens, self.law, valid=self._valid(context, count), log_q=self._padded_law(count))

    def _within_frame(self, context: RoundContext, count: int) -> int:
        """At most ``count`` slots, no more than any row has in its frame, as far as the host knows."""
        if self.frame is None or context.lowest // self.frame != context.highest // self.frame:
            return count if self.frame is None else min(count, self.frame)
        return min(count, self.frame - context.lowest % self.frame)

    def _valid(self, context: RoundContext, count: int) -> Tensor | None:
        """Nodes within the frame of each row (B, N); ``None`` if all are."""
        if self.frame is None or context.lowest == context.highest:
            return None
        room = self.frame - context.generated % self.frame
        return torch.arange(count + 1, device=room.device) <= room[:, None]

    def _padded_law(self, count: int) -> Tensor | None:
        if self.log_q is None:
            return None
        return torch.nn.functional.pad(self.log_q[:, :count], (0, 0, 0, 1))  # the last node has no child

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        redrawn, log_p = self._redraw(context, draft, output.logits, verdict)
        # node n guesses the n-th token after the root; guesses beyond this draft stay as they were
        whole = self.slots.shape[1] <= draft.num_nodes
        self.slots = redrawn if whole else torch.cat([redrawn, self.slots[:, draft.num_nodes :]], dim=1)
        if self.log_q is not None and log_p is not None:
            self.log_q = log_p if whole else torch.cat([log_p, self.log_q[:, draft.num_nodes :]], dim=1)
        if self.initializer.needs_scores:
            self.last_scores = self._newest_scores(context, output.logits, draft.valid)
        if self.initializer.laws is not None:
            log_laws = process(output.logits, context.sampling).log_softmax(-1) if log_p is None else log_p
            self.initializer.laws.store(context.generated, log_laws, draft.valid)
        by = verdict.num_accepted + 1
        self._shift(by)
        # a row's nodes, not the batch's: what was guessed beyond them depends on other rows
        reach = torch.full_like(by, draft.num_nodes) if draft.valid is None else draft.valid.sum(-1)
        self.filled = (reach if whole else torch.maximum(self.filled, reach)) - by
        self.filled = self.filled.clamp_min(0)

    def _newest_scores(self, context: RoundContext, logits: Tensor, valid: Tensor | None) -> Tensor:
        """Scores (B, V) of the last node of each row whose next slot is free; forced ones say nothing about others."""
        if self.grammar is None:
            last = -1 if valid is None else valid.sum(-1) - 1
            return process(logits[torch.arange(len(logits), device=logits.device), last], context.sampling)
        nodes = torch.arange(logits.shape[1], device=logits.device)
        free = self.grammar.forced_at(context.generated[:, None] + nodes) < 0  # (B, N)
        last = torch.where(free, nodes, -1).amax(-1)
        chosen = logits.gather(1, last.clamp_min(0)[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]
        assert self.last_scores is not None
        return torch.where((last >= 0)[:, None], process(chosen, context.sampling), self.last_scores)

    def _redraw(
        self, context: RoundContext, draft: Draft, logits: Tensor, verdict: Verdict
    ) -> tuple[Tensor, Tensor | None]:
        """New guesses (B, N) for the tokens after each node, and their law (B, N, V) if the rule needs it."""
        if self.coupling == "gumbel" and verdict.chosen is not None and not self.needs_law:
            return verdict.chosen, None
        p, log_p = context.laws(logits) if self.needs_law else (None, None)
        scores = process(logits, context.sampling) if log_p is None else log_p
        nodes = torch.arange(draft.num_nodes, device=logits.device)
        if self.coupling == "gumbel":
            return draw(scores, context.target_noise(draft.num_nodes)), log_p
        fresh = context.noise.uniform(Stream.DRAFT, context.rounds[:, None] * (1 << 20) + nodes)
        p = scores.softmax(-1) if p is None else p
        if self.coupling == "independent" or draft.log_q is None:
            return draw_by_inversion(p, fresh), log_p
        assert log_p is not None
        return self._keep_or_redraw(context, draft, log_p, p, fresh), log_p

    @staticmethod
    def _keep_or_redraw(context: RoundContext, draft: Draft, log_p: Tensor, p: Tensor, fresh: Tensor) -> Tensor:
        """Maximal coupling: keep x with probability min(1, p / q), else draw from [p - q]+; (B, N)."""
        assert draft.log_q is not None
        count = draft.num_nodes - 1
        old = draft.tokens[:, 1:, None]
        log_ratio = (log_p[:, :count].gather(-1, old) - draft.log_q[:, :count].gather(-1, old))[..., 0]
        nodes = torch.arange(count, device=log_p.device)
        keep = context.noise.uniform(Stream.AUXILIARY, context.rounds[:, None], nodes[None]).log() < log_ratio
        corrections = residual(p[:, :count], draft.log_q[:, :count].exp())
        if draft.valid is not None:  # beyond a row's own nodes there is nothing to keep, whatever other rows draft
            there = draft.valid[:, 1:]
            keep = keep & there
            corrections = torch.where(there[..., None], corrections, p[:, :count])
        laws = torch.cat([corrections, p[:, count:]], dim=1)
        drawn = draw_by_inversion(laws, fresh)
        return torch.cat([torch.where(keep, old[..., 0], drawn[:, :count]), drawn[:, count:]], dim=1)

    def _shift(self, by: Tensor) -> None:
        """Move each row's window ``by`` (B,) places to the left; what comes in at the end is not filled.

        Copies ``log_q``, which until then is shared with the round's context.
        """
        size = self.slots.shape[1]
        index = (torch.arange(size, device=by.device) + by[:, None]).clamp_max(size - 1)
        self.slots = self.slots.gather(1, index)
        if self.log_q is not None:
            rows = torch.arange(len(index), device=by.device)
            self.log_q = self.log_q[rows[:, None], index]

    def select_rows(self, rows: Tensor) -> None:
        self.slots, self.filled = self.slots[rows], self.filled[rows]
        self.initializer.select_rows(rows)
        if self.log_q is not None:
            self.log_q = self.log_q[rows]
        if self.last_scores is not None:
            self.last_scores = self.last_scores[rows]
