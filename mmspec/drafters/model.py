"""A small model drafts a chain for the large one (Leviathan et al., 2023; Chen et al., 2023).

Under a match-type rule it draws with the target's own noise, so it agrees whenever the two laws are close; under a
ratio-type rule it draws with fresh noise and reports the law that it drew from.

Symbols: B rows, K draft tokens, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.core.controllers import Controller, CostCurve
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.noise import Stream
from mmspec.core.sampling import draw, process
from mmspec.core.target import DraftTarget, TargetOutput
from mmspec.core.timing import NetworkClock
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import Drafter, DraftSetup, check_controller, check_positive, make_controller

_NO_MODEL = "ModelDrafter needs `model`, a draft model of the target's own kind; it is None."


class ModelDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Draft with a smaller model of the same family and vocabulary.

    Args:
        num_draft_tokens: Most draft tokens of a round.
        controller: ``fixed``, ``aimd`` or ``cost-aware``.
        model: The draft model; the same kind of network as the target.

    Raises:
        TypeError, ValueError: For values out of range.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    ignore_for_config = ["model"]  # noqa: RUF012 - diffusers reads a list
    law = DraftLaw.SAMPLED
    max_siblings = 1

    @register_to_config
    def __init__(self, num_draft_tokens: int = 5, controller: str = "fixed", *, model: Any = None) -> None:
        check_positive("num_draft_tokens", num_draft_tokens)
        check_controller(controller)
        self.model = model

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save the settings, and the draft model in the sub-folder ``model``."""
        super().save_pretrained(save_directory, **kwargs)
        if self.model is not None:
            self.model.save_pretrained(Path(save_directory) / "model")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> ModelDrafter:
        """Load settings and draft model from a local folder written by :meth:`save_pretrained`."""
        from mmspec.models.loading import load_component

        folder = Path(pretrained_model_name_or_path) / (kwargs.pop("subfolder", None) or "")
        drafter = super().from_pretrained(folder)
        if (folder / "model").is_dir():
            drafter.model = load_component(folder / "model")
        return drafter

    def to(self, *args: Any, **kwargs: Any) -> ModelDrafter:
        if self.model is not None:
            self.model.to(*args, **kwargs)
        return self

    @property
    def max_nodes(self) -> int:
        return self.config.num_draft_tokens + 1

    def controller(self, costs: CostCurve) -> Controller:
        return make_controller(self.config.controller, self.max_nodes, costs, None)

    def check_vocabulary(self, vocab_size: int) -> None:
        if self.model is None:
            raise ValueError(_NO_MODEL)
        if isinstance(self.model, ModelMixin):  # adapters of transformers' models show a part of the vocabulary
            _compare(self.model.config.vocab_size, vocab_size)

    def session(self, setup: DraftSetup) -> DraftSession:
        if self.model is None or setup.draft_target is None:
            raise ValueError(_NO_MODEL)
        target = setup.draft_target(self.model)
        _compare(target.vocab_size, setup.vocab_size)
        return ModelSession(target, setup.needs_law)


def _compare(drafted: int, wanted: int) -> None:
    if drafted != wanted:
        raise ValueError(
            f"`drafter` has a vocabulary of {drafted} tokens but the target's has {wanted}; "
            "load a drafter that was trained for this model."
        )


class ModelSession:
    """The draft model's cache holds all committed tokens of a row but the last ``missing`` ones, fed first."""

    def __init__(self, target: DraftTarget, needs_law: bool) -> None:
        self.target, self.needs_law = target, needs_law
        self.forwards = 0
        self.clock = NetworkClock(target.device)
        self.missing = 1
        self.drafted = 0

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        self.target.prefill()
        self.forwards += 1

    def propose(self, context: RoundContext, width: int) -> Draft:
        self.drafted = width - 1
        tokens, laws = [context.root], []
        if self.drafted:
            offset = torch.arange(-self.missing, 0, device=context.root.device)
            feed = context.tokens.gather(1, context.generated[:, None] + offset)
            for step in range(self.drafted):
                longest = context.highest - self.missing + 1 if step == 0 else context.highest + step
                scores = process(self._forward(feed, longest), context.sampling)
                laws.append(scores.log_softmax(-1))
                tokens.append(draw(scores, self._noise(context, step)))
                feed = tokens[-1][:, None]
        log_q = None
        if self.needs_law:
            blank = torch.zeros(len(context.root), 1, self.target.vocab_size, device=context.root.device)
            log_q = torch.cat([*(law[:, None] for law in laws), blank], dim=1)
        law = DraftLaw.SAMPLED if self.needs_law else DraftLaw.COUPLED
        return Draft(torch.stack(tokens, dim=1), law, log_q=log_q)

    def _forward(self, feed: Tensor, longest: int) -> Tensor:
        """Feed ``feed`` (B, n) and keep it: the law of the next token (B, V)."""
        there = feed.to(self.target.device)  # the draft model may sit on another device
        with self.clock.running():
            output = self.target.verify(Draft(there, DraftLaw.DETERMINISTIC), longest)
        kept = torch.full_like(there[:, 0], there.shape[1])
        self.target.commit(Verdict(kept - 1, there[:, -1], there), kept)
        self.forwards += 1
        return output.logits[:, -1].to(feed.device)

    def _noise(self, context: RoundContext, step: int) -> Tensor:
        if self.needs_law:
            return context.noise.gumbel(Stream.DRAFT, context.rounds[:, None] * (1 << 20) + step)[:, 0]
        return context.target_noise(step + 1)[:, step]

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        if not self.drafted:  # every row committed one token and the draft model saw none
            self.missing += 1
            return
        # cached now: everything up to the last draft token but one. Keep all but the two newest committed tokens:
        # feeding two at the next start costs no more than one, and covers the row whose whole draft was accepted
        self.target.rollback((self.drafted - verdict.num_accepted).to(self.target.device))
        self.missing = 2

    def select_rows(self, rows: Tensor) -> None:
        self.target.select_rows(rows.to(self.target.device))
