"""Base of the drafters: configuration that is saved and swapped like a diffusers scheduler.

A drafter object holds settings (and weights, if it has any) but no decoding state: :meth:`Drafter.session` returns a
fresh object for one call, so that calls cannot disturb one another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.controllers import (
    WIDTHS,
    AdaptiveController,
    AIMDController,
    Controller,
    CostAwareController,
    CostCurve,
    FixedController,
)
from mmspec.core.draft import DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.grammar import Grammar
from mmspec.core.target import DraftTarget

CONTROLLERS = ("adaptive", "aimd", "cost-aware", "fixed")


@dataclass(frozen=True)
class DraftSetup:
    """What a drafter may know of a call.

    Attributes:
        num_rows, vocab_size, device: Shape and place of the drafts.
        max_new_tokens: Longest output of a row.
        needs_law: Whether the acceptance rule wants ``log_q``.
        row_length: Tokens per grid row, row-end marks included; ``None`` for targets without a grid.
        row_start: Order index of the grid's first token; a header may come before it.
        frame_length: Tokens per frame of a clip, which begins at order index 0; ``None`` for other targets.
        grammar: Tokens that each order index allows; ``None`` allows all everywhere.
        prompt_ids: Prompt tokens (B, P), right-padded with -1, in the target's own vocabulary; ``None`` if it has none.
        draft_target: Opens a session of another model on the same prompts, for model drafters.
        runner: The session of the target, for drafters that read its states or use its parts.
    """

    num_rows: int
    vocab_size: int
    device: torch.device
    max_new_tokens: int
    needs_law: bool = False
    row_length: int | None = None
    row_start: int = 0
    frame_length: int | None = None
    grammar: Grammar | None = None
    prompt_ids: Tensor | None = None
    draft_target: Callable[[Any], DraftTarget] | None = None
    runner: Any = None


class Drafter(ABC):
    """Settings of a drafter. Subclasses also derive from diffusers' config mixins.

    ``max_siblings`` is the most children of a node of its drafts, 1 for chains; ``None`` says nothing, and rules then
    promise no bound that depends on it.
    """

    law: DraftLaw
    max_siblings: int | None = None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError, before any forward, if this drafter cannot draft for ``vocab_size`` tokens."""
        return

    def check_target(self, network: Any) -> None:
        """Raise ValueError, before any forward, if this drafter was made for another target than ``network``."""
        return

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """Widest draft, root included."""

    def nodes_within(self, budget: int) -> int:
        """Widest draft for outputs of at most ``budget`` tokens; drafters of trees, which are wide, not deep, override it."""
        return min(self.max_nodes, budget)

    @abstractmethod
    def session(self, setup: DraftSetup) -> DraftSession:
        """Open a decoding session; ValueError if the drafter does not fit the target."""

    def to(self, *args: Any, **kwargs: Any) -> Drafter:
        """Move the weights, if there are any; arguments as for ``torch.nn.Module.to``."""
        return self

    @abstractmethod
    def controller(self, costs: CostCurve) -> Controller:
        """Return a fresh controller of the draft width; ``costs`` are those of this machine and model."""


def make_controller(kind: str, width: int, costs: CostCurve, prior: dict[str, float] | None) -> Controller:
    """Build the controller called ``kind`` for drafts of at most ``width`` nodes."""
    if kind == "fixed":
        return FixedController(width)
    if kind == "adaptive":
        return AdaptiveController(largest=width)
    if kind == "aimd":
        return AIMDController(width=min(6, width), largest=width)
    curve = {int(w): t for w, t in prior.items()} if prior else {w: (1 + w**0.5) / 2 for w in WIDTHS}
    # a measured prior is worth more than the few rounds of one picture
    return CostAwareController(costs, curve, largest=width, weight=64.0 if prior else 8.0)


def check_controller(kind: str) -> None:
    """Raise ValueError with the legal names if ``kind`` is not a controller."""
    if kind not in CONTROLLERS:
        raise ValueError(f"Unknown `controller` {kind!r}; choose one of {', '.join(CONTROLLERS)}.")


def check_positive(name: str, value: int) -> None:
    """Raise TypeError or ValueError unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an integer, got {value!r}.")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}.")


def short_name(component: object) -> str:
    """Name of a drafter or rule as stats and tables show it."""
    return type(component).__name__.removesuffix("Drafter").removesuffix("Acceptance").lower()


def hidden_size_of(network: Any) -> int:
    """Width of the states of a target ``network``, of its language model where it has several parts."""
    config = network.config
    return int((config.get_text_config() if hasattr(config, "get_text_config") else config).hidden_size)
