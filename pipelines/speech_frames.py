"""Opening a decoder of speech frames: the common loop over the flattened codes of a talker and its code predictor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.core.controllers import CostCurve, FixedController
from mmspec.core.drafting import NoDraft
from mmspec.core.loop import SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.stats import DecodeStats
from mmspec.drafters.base import DraftSetup, short_name
from mmspec.pipelines.base import DecodeRequest
from mmspec.speech.code_sampling import CodeLaw, CodeSampling
from mmspec.speech.code_target import CodeTarget


@dataclass
class FrameRequest(DecodeRequest):
    """A request whose model is a :class:`mmspec.speech.frame_model.FrameModel`.

    Attributes:
        codes: Sampling of the codes by book; ``sampling`` itself is that of a law that is already formed.
        layout: See :class:`CodeTarget`.
    """

    codes: CodeSampling = field(default_factory=CodeSampling)
    layout: str = "auto"


def open_frames(request: FrameRequest, device: torch.device) -> SpeculativeDecoder:
    """Build the decoder of ``request``.

    Raises:
        ValueError: If the drafter or the layout does not fit the model.
    """
    model: Any = request.model(request.network, device)
    law = CodeLaw(request.codes.of_books(model.num_codebooks), model.allowed())
    target = CodeTarget(model, law, request.layout)
    stats = DecodeStats(
        method="plain", guarantee=request.rule.guarantee, seeds=list(request.seeds),
        step_tv_bound=request.rule.step_tv_bound,
    )  # fmt: skip
    session: Any = NoDraft()
    controller: Any = FixedController(1)
    if (drafter := request.drafter) is not None:
        setup = DraftSetup(
            num_rows=len(request.seeds), vocab_size=target.vocab_size, device=device,
            max_new_tokens=request.stopping.max_new_tokens, needs_law=request.rule.needs_law, runner=target,
        )  # fmt: skip
        session, controller = drafter.session(setup), drafter.controller(CostCurve())
        stats.method = f"{short_name(drafter)}+{request.rule.name}"
    noise = RowNoise(torch.tensor(request.seeds, device=device), target.vocab_size)
    # frames are short: a table of noise far ahead would cost more than it spares
    noise.chunk = 4 * model.num_codebooks
    return SpeculativeDecoder(
        target, session, request.rule, controller, noise, request.sampling, request.stopping, stats
    )


def count_calls(decoder: SpeculativeDecoder) -> None:
    """Write the calls of talker and predictor to the decoder's stats."""
    target = decoder.target
    assert isinstance(target, CodeTarget)
    decoder.stats.calls = {"talker": target.talker_calls, "predictor": target.predictor_calls}
