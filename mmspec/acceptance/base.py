"""Base of the acceptance rules: saved and swapped like a diffusers scheduler, callable on tensors, without state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from diffusers import ConfigMixin, SchedulerMixin
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import AcceptanceRule, Guarantee, RoundContext, Verdict


def check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Raise TypeError or ValueError unless ``value`` is a finite number in [``low``, ``high``]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"`{name}` must be a number, got {value!r}.")
    if not low <= value <= high or not math.isfinite(value):
        legal = f"at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise ValueError(f"`{name}` must be {legal}, got {value}.")


def check_count(name: str, value: object, low: int = 1) -> None:
    """Raise TypeError or ValueError unless ``value`` is an integer of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an integer, got {value!r}.")
    check_number(name, value, low)


def check_choice(name: str, value: object, legal: tuple[str, ...]) -> None:
    """Raise ValueError with the legal names unless ``value`` is one of them."""
    if value not in legal:
        raise ValueError(f"Unknown `{name}` {value!r}; choose one of {', '.join(legal)}.")


@dataclass(frozen=True)
class TokenVectors:
    """The vectors that some tokens stand for, exactly as the model uses them: the codebook of a quantiser.

    Attributes:
        vectors: One vector per code (K, E).
        tokens: Token of each code (K,); ``None`` if code i is token i.
        structural: Tokens that are part of a grammar and must never stand for another. Tokens without a vector never
            do, so only those that have one need to be listed.
    """

    vectors: Tensor
    tokens: Tensor | None = None
    structural: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) < 2 or not self.vectors.is_floating_point():
            raise ValueError(f"`vectors` must be two or more rows of floats, got {tuple(self.vectors.shape)}.")
        if self.tokens is not None and self.tokens.shape != self.vectors.shape[:1]:
            raise ValueError(f"`tokens` has {tuple(self.tokens.shape)} entries for {len(self.vectors)} vectors.")


@dataclass(frozen=True)
class RuleSetup:
    """What a rule may know of a call before the first forward.

    Attributes:
        law: How the drafter obtains its tokens.
        sampling: How tokens are drawn.
        device: Where logits will be.
        max_siblings: Most children of a node of the drafts, 1 for chains; ``None`` if the drafter does not say.
        vectors: Gives the vectors behind the target's tokens, ``None`` if they have none; asked by rules that need them.
    """

    law: DraftLaw
    sampling: SamplingParams
    device: torch.device
    max_siblings: int | None = None
    vectors: Callable[[], TokenVectors | None] = lambda: None


class Acceptance(SchedulerMixin, ConfigMixin, ABC):
    """Configuration of an acceptance rule.

    Attributes of the class, some refined by the settings of an object:
        guarantee: What the output is worth.
        step_tv_bound: Total variation that no step exceeds, where the rule promises one.
        legal_laws: Draft laws under which the guarantee holds.
        needs_law: Whether drafts must carry ``log_q``.
    """

    config_name = "acceptance_config.json"
    has_compatibles = False

    guarantee: Guarantee
    step_tv_bound: float | None = None
    legal_laws: ClassVar[frozenset[DraftLaw]] = frozenset(DraftLaw)
    needs_law: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Short name, as in ``stats.method``."""
        return type(self).__name__.removesuffix("Acceptance").lower()

    def check(self, law: DraftLaw, sampling: SamplingParams, drafter: str) -> None:
        """Raise ValueError before the first forward if this rule is not exact for such drafts."""
        if law not in self.legal_laws:
            legal = ", ".join(sorted(legal.value for legal in self.legal_laws))
            raise ValueError(
                f"`acceptance` {type(self).__name__} takes {legal} drafts, but `drafter` {drafter} makes {law.value} "
                "ones; use CoupledAcceptance, which is exact for every drafter."
            )

    def bind(self, setup: RuleSetup) -> AcceptanceRule:
        """The rule of one call: this object, or one that also holds what it needs of the target.

        Raises:
            ValueError: If the target lacks something that the rule needs.
        """
        return self

    @abstractmethod
    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        """Judge ``draft`` given raw target ``logits`` (B, N, V)."""
