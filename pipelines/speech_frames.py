"""Opening a decoder of speech frames: the common loop over the flattened codes of a talker and its code predictor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.core.controllers import CostCurve, FixedController
from mmspec.core.drafting import NoDraft
from mmspec.core.loop import Decoder, SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.stats import DecodeStats
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import DraftSetup, short_name
from mmspec.pipelines.base import DecodeRequest
from mmspec.speech.code_sampling import CodeLaw, CodeSampling
from mmspec.speech.code_target import CodeTarget
from mmspec.speech.mask_decoder import MaskedFrameDecoder
from mmspec.speech.mask_predictor import MaskPredictor


@dataclass
class FrameRequest(DecodeRequest):
    """A request whose model is a :class:`mmspec.speech.frame_model.FrameModel`.

    Attributes:
        codes: Sampling of the codes by book; ``sampling`` itself is that of a law that is already formed.
        layout: See :class:`CodeTarget`.
        mask_predictor: Fills residual codes in ``depth_steps`` parallel calls; ``None`` draws them one after the other.
    """

    codes: CodeSampling = field(default_factory=CodeSampling)
    layout: str = "auto"
    mask_predictor: MaskPredictor | None = None
    depth_steps: int = 0


def open_frames(request: FrameRequest, device: torch.device) -> SpeculativeDecoder | MaskedFrameDecoder:
    """Build the decoder of ``request``.

    Raises:
        ValueError: If the drafter or the layout does not fit the model.
    """
    model: Any = request.model(request.network, device)
    codes = request.codes
    law = CodeLaw(codes.of_books(model.num_codebooks), model.allowed(), codes.repetition_penalty)
    noise = RowNoise(torch.tensor(request.seeds, device=device), law.vocab_size)
    # frames are short: a table of noise far ahead would cost more than it spares
    noise.chunk = 4 * model.num_codebooks
    if request.mask_predictor is not None:
        return _open_masked(request, request.mask_predictor, model, law, noise)
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
    return SpeculativeDecoder(
        target, session, request.rule, controller, noise, request.sampling, request.stopping, stats
    )


def _open_masked(
    request: FrameRequest, network: MaskPredictor, model: Any, law: CodeLaw, noise: RowNoise
) -> MaskedFrameDecoder:
    stats = DecodeStats(method="maskgit", guarantee=Guarantee.HEURISTIC, seeds=list(request.seeds))
    return MaskedFrameDecoder(model, network, request.depth_steps, law, noise, request.stopping, stats)


def count_calls(decoder: Decoder) -> None:
    """Write the calls of talker and predictor to the decoder's stats, where they are not there already."""
    if isinstance(decoder, SpeculativeDecoder) and isinstance(target := decoder.target, CodeTarget):
        decoder.stats.calls = {"talker": target.talker_calls, "predictor": target.predictor_calls}
