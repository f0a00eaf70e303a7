"""A drafter for clips and grids: what stands one period earlier often comes again, so copy it. Costs no forward.

The period is a frame where the target makes clips, and a row where it makes pictures.

Try it as it is, or make it part of mmspec: docs/guides/new-drafter.md.

Symbols: B rows of the batch, M new tokens at most, K draft tokens.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from PIL import Image
from torch import Tensor

from mmspec import VideoPipeline
from mmspec.core.controllers import Controller, CostCurve
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import Drafter, DraftSetup, check_controller, check_positive, make_controller


class PeriodDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Copy the tokens one frame earlier, or one row earlier where there are no frames.

    Args:
        num_draft_tokens: Most tokens to copy, at least 1; never more than a period.
        controller: ``fixed``, ``aimd`` or ``cost-aware``.

    Raises:
        TypeError, ValueError: For a value out of range.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    law = DraftLaw.DETERMINISTIC  # the tokens are chosen, not drawn: no law of theirs needs to be known
    max_siblings = 1  # chains

    @register_to_config
    def __init__(self, num_draft_tokens: int = 15, controller: str = "fixed") -> None:
        check_positive("num_draft_tokens", num_draft_tokens)
        check_controller(controller)

    @property
    def max_nodes(self) -> int:
        return self.config.num_draft_tokens + 1  # the root counts

    def controller(self, costs: CostCurve) -> Controller:
        return make_controller(self.config.controller, self.max_nodes, costs, None)

    def session(self, setup: DraftSetup) -> DraftSession:
        period = setup.frame_length or setup.row_length
        if period is None:
            raise ValueError("PeriodDrafter needs a target that makes clips or grids; use NGramDrafter for others.")
        return PeriodSession(period, setup.row_start)


class PeriodSession:
    """One call. It reads the committed past only, so it has no state to keep in step."""

    forwards = 0  # of a draft model; there is none
    revisable = True

    def __init__(self, period: int, first: int) -> None:
        self.period, self.first = period, first

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        count = min(width - 1, self.period)
        source = context.generated[:, None] - self.period + torch.arange(count, device=context.root.device)
        copied = context.tokens.gather(1, source.clamp_min(0))  # (B, K)
        # in its first period a row has nothing to copy: it drafts nothing, and no other row waits for it
        there = context.generated - self.period >= self.first
        valid = torch.cat([torch.ones_like(there)[:, None], there[:, None].expand(-1, count)], dim=1)
        return Draft(torch.cat([context.root[:, None], copied], dim=1), DraftLaw.DETERMINISTIC, valid=valid)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        pass


def main(folder: Path) -> None:
    """Continue a picture with the drafter and without it; save the pipeline in ``folder`` and load it again."""
    pipe = VideoPipeline.from_pretrained("mmspec/tiny-video", drafter=PeriodDrafter(num_draft_tokens=31))
    pipe.set_progress_bar_config(disable=True)
    first = Image.new("RGB", (32, 32), "white")
    first.paste("orange", (4, 4, 20, 20))
    drafted = pipe(image=first, seed=7)
    plain = pipe(image=first, seed=7, speculate=False)
    assert torch.equal(drafted.tokens, plain.tokens)
    print(drafted.stats, plain.stats, sep="\n")

    pipe.save_pretrained(folder)
    drafter = PeriodDrafter.from_pretrained(folder / "drafter")
    assert drafter.config.num_draft_tokens == 31
    # a class that is not mmspec's is handed over while loading: no foreign code is imported by name
    again = VideoPipeline.from_pretrained(folder, drafter=drafter)
    again.set_progress_bar_config(disable=True)
    assert torch.equal(again(image=first, seed=7).tokens, plain.tokens)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
