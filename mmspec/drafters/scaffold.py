"""Drafts of what a template leaves no choice about; nothing else. Costs no forward."""

from __future__ import annotations

from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config

from mmspec.core.controllers import Controller, CostCurve, FixedController
from mmspec.core.draft import DraftLaw
from mmspec.core.drafting import DraftSession, NoDraft
from mmspec.drafters.base import Drafter, DraftSetup, check_positive


class ScaffoldDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Draft the tokens that the form of an answer forces, such as the keys of a JSON object (``json_schema``).

    Without a form of the answer it drafts nothing. Other drafters draft forced tokens, too, and more.

    Args:
        num_draft_tokens: Most tokens of a draft.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    law = DraftLaw.DETERMINISTIC
    max_siblings = 1

    @register_to_config
    def __init__(self, num_draft_tokens: int = 15) -> None:
        check_positive("num_draft_tokens", num_draft_tokens)

    @property
    def max_nodes(self) -> int:
        return self.config.num_draft_tokens + 1

    def controller(self, costs: CostCurve) -> Controller:
        return FixedController(self.max_nodes)

    def session(self, setup: DraftSetup) -> DraftSession:
        return NoDraft()
