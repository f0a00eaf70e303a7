"""Drafts of a frame's residual codes from what the model has computed anyway: no call of the predictor is added.

:class:`ResidualDrafter` reads, from the predictor's output that drew a code, guesses of the codes after it, through those codes' own heads; kinds
that were trained correct the output first, see :mod:`mmspec.speech.residual_heads`. ``head_shift`` needs no training. Guesses are drawn with the
noise that the target will use (coupling ``gumbel``), or with noise of their own for the ratio rule. How many codes are
drafted is a table, see :mod:`mmspec.speech.draft_lengths`.

Symbols: B rows, N nodes, G codes a frame, V tokens, E predictor width.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import Drafter, DraftSetup, check_positive
from mmspec.drafters.fingerprint import check_fingerprint
from mmspec.speech.code_target import CodeTarget
from mmspec.speech.draft_lengths import DraftLengths
from mmspec.speech.residual_heads import ResidualHeads

COUPLINGS = ("gumbel", "independent")


class ResidualDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Draft residual codes of a frame.

    Args:
        num_draft_codes: Most draft codes of a call.
        coupling: ``gumbel`` draws with the target's noise and suits the coupled rule; ``independent`` suits ``ratio``.
        node_cost: Cost of a draft code in calls of the predictor, see :class:`DraftLengths`.
        prior: Acceptance measured when the checkpoint was made.
        adaptive: Follow the measured acceptance; otherwise always draft ``num_draft_codes``.
        heads: Learned parts; ``None`` shifts the heads only.

    Raises:
        TypeError, ValueError: For an unknown name or a value out of range.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    ignore_for_config = ["heads"]  # noqa: RUF012 - diffusers reads a list
    max_siblings = 1

    @register_to_config
    def __init__(
        self,
        num_draft_codes: int = 30,
        coupling: str = "gumbel",
        node_cost: float = 0.05,
        prior: Sequence[Sequence[float]] | None = None,
        adaptive: bool = True,
        *,
        heads: ResidualHeads | None = None,
    ) -> None:
        check_positive("num_draft_codes", num_draft_codes)
        if coupling not in COUPLINGS:
            raise ValueError(f"Unknown `coupling` {coupling!r}; choose one of {', '.join(COUPLINGS)}.")
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
        largest = min(self.config.num_draft_codes, books - 2)
        prior, cost = self.config.prior, self.config.node_cost
        if not self.config.adaptive:
            prior, cost = None, 0.0
        first = self.kind not in ("head_shift", "lookahead")
        lengths = DraftLengths(books, largest, cost, prior, first)
        return ResidualSession(target, self.heads, lengths, self.law, setup.needs_law)


class ResidualSession:
    """Drafts of one call.

    Args:
        target: Session of the target.
        heads: Learned parts, or ``None``.
        lengths: Draft lengths, learnt on the way.
        law: How draft codes are drawn.
        needs_law: Whether the rule reads it.
    """

    forwards = 0

    def __init__(
        self, target: CodeTarget, heads: ResidualHeads | None, lengths: DraftLengths, law: DraftLaw, needs_law: bool
    ) -> None:
        self.target, self.heads, self.lengths = target, heads, lengths
        self.law, self.needs_law = law, needs_law
        self._hidden: Tensor | None = None  # (B, E) output that drew the newest code of each row
        self._ahead: Tensor | None = None  # (1, K, E) outputs of the vectors behind a draft that was accepted whole
        self._looks_ahead = heads is not None and heads.config.kind == "lookahead"
        self._table: Tensor | None = None

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        if self.heads is None:
            return
        if self._looks_ahead:
            self.target.tail = self.heads.inputs
        else:
            self._table = self.target.model.code_table()

    def propose(self, context: RoundContext, width: int) -> Draft:
        # the first code of a call is noted only when it is verified
        filled = [number % self.target.num_codebooks or self.target.num_codebooks for number in self._filled(context)]
        counts = [min(self.lengths[number], width - 1) for number in filled]
        longest = max(counts)
        if longest == 0:
            return Draft(context.root[:, None], self.law, log_q=self._law_of_nothing(context))
        tokens, log_q = self._draw(context, filled, longest)
        valid = None
        if min(counts) < longest:
            nodes = torch.arange(longest + 1, device=tokens.device)
            valid = nodes <= torch.tensor(counts, device=tokens.device)[:, None]
        return Draft(tokens, self.law, valid=valid, log_q=log_q)

    def _filled(self, context: RoundContext) -> list[int]:
        return [1] * len(context.root) if self.target.fresh else self.target.filled

    def _law_of_nothing(self, context: RoundContext) -> Tensor | None:
        if not self.needs_law:
            return None
        return torch.zeros(len(context.root), 1, self.target.vocab_size, device=context.root.device)

    def _draw(self, context: RoundContext, filled: list[int], count: int) -> tuple[Tensor, Tensor | None]:
        """Root and ``count`` draft codes (B, 1 + count), and the law of each node's child if it is needed."""
        place = torch.tensor(filled, device=self.target.device)  # book of the first draft code
        noise = self._noise(context, count)
        if self.heads is not None and self.heads.config.kind == "chained":
            tokens, scores = self._one_by_one(context.root, place, noise)
        else:
            tokens, scores = self._at_once(context.root, place, noise)
        if not self.needs_law:
            return tokens, None
        law = scores.log_softmax(-1)
        return tokens, torch.cat([law, torch.zeros_like(law[:, :1])], dim=1)

    def _at_once(self, root: Tensor, place: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Root and draft codes (B, 1 + count), and the draft codes' log-weights (B, count, V)."""
        count = noise.shape[1]
        state = self._origin(place)
        if self.heads is None or self._looks_ahead:
            read = state[:, None].expand(-1, count, -1)
            if self._ahead is not None:
                read = torch.cat([self._ahead[:, :count], read[:, self._ahead.shape[1] :]], dim=1)
        else:
            read = self.heads.spread(state, self._embedding(root, place - 1), place - 1, count)
        drawn, scores = self._guess(read, place, noise)
        return torch.cat([root[:, None], drawn], dim=1), scores

    def _one_by_one(self, root: Tensor, place: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`_at_once`, each guess knowing those before it."""
        assert self.heads is not None
        state, tokens, scores = self._origin(place), [root], []
        for step in range(noise.shape[1]):
            books = (place + step).clamp_max(self.target.num_codebooks - 1)
            state = self.heads.step(state, self._embedding(tokens[-1], books - 1), books)
            drawn, law = self._guess(state[:, None], books, noise[:, step : step + 1])
            tokens.append(drawn[:, 0])
            scores.append(law)
        return torch.stack(tokens, dim=1), torch.cat(scores, dim=1)

    def _guess(self, read: Tensor, place: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (B, n) drawn by the heads of the books ``place`` (B,) and on from ``read`` (B, n, E), and log-weights."""
        books = torch.arange(read.shape[1], device=read.device) + place[:, None]
        books = books.clamp_max(self.target.num_codebooks - 1)
        # one row has one run of books, whose heads need no copy
        logits = self.target.model.head(read, books[0] if len(books) == 1 else books)
        if self.needs_law:
            law = self.target.law.rest(logits, books)
            return (law + noise).argmax(-1), law
        return self.target.law.guess(logits, books, noise), logits

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
        """Embeddings (B, E) of ``codes`` (B,) of ``books`` (B,) as the predictor reads them."""
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
        at = verdict.num_accepted[:, None, None].expand(-1, 1, hidden.shape[-1])
        self._hidden = hidden.gather(1, at)[:, 0]
        drafted = torch.full_like(verdict.num_accepted, draft.num_nodes - 1)
        if draft.valid is not None:
            drafted = draft.valid[:, 1:].sum(-1)
        if draft.num_nodes > 1:
            numbers = torch.stack([drafted, verdict.num_accepted]).tolist()
            for number, made, accepted in zip(filled, *numbers, strict=True):
                if number < self.target.num_codebooks and made:
                    self.lengths.observe(number, made, accepted)

    def select_rows(self, rows: Tensor) -> None:
        if self._hidden is not None:
            self._hidden = self._hidden[rows]
