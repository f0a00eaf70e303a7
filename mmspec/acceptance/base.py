"""Base of the acceptance rules: saved and swapped like a diffusers scheduler, callable on tensors, without state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from diffusers import ConfigMixin, SchedulerMixin
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee, RoundContext, Verdict


class Acceptance(SchedulerMixin, ConfigMixin, ABC):
    """Configuration of an acceptance rule.

    Class attributes:
        guarantee: What the output is worth.
        legal_laws: Draft laws under which the guarantee holds.
        needs_law: Whether drafts must carry ``log_q``.
    """

    config_name = "acceptance_config.json"
    has_compatibles = False

    guarantee: ClassVar[Guarantee]
    legal_laws: ClassVar[frozenset[DraftLaw]] = frozenset(DraftLaw)
    needs_law: ClassVar[bool] = False

    def check(self, law: DraftLaw, sampling: SamplingParams, drafter: str) -> None:
        """Raise ValueError before the first forward if this rule is not exact for such drafts."""
        if law not in self.legal_laws:
            legal = ", ".join(sorted(legal.value for legal in self.legal_laws))
            raise ValueError(
                f"`acceptance` {type(self).__name__} takes {legal} drafts, but `drafter` {drafter} makes {law.value} "
                "ones; use CoupledAcceptance, which is exact for every drafter."
            )

    @abstractmethod
    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        """Judge ``draft`` given raw target ``logits`` (B, N, V)."""
