"""Resolve a name to a voice: an embedded checkpoint, a saved pipeline, or a speech model of transformers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers

import mmspec
from mmspec.core.registry import Registry
from mmspec.models.loading import find_config
from mmspec.models.transformers_loading import load_transformers_model
from mmspec.pipelines.speaking import SpeakingPipeline
from mmspec.speech.residual_drafter import ResidualDrafter

#: by the ``model_type`` of transformers
VOICES = Registry("voice", {"csm": "mmspec.pipelines.csm:CsmPipeline"})

#: families that the loop decodes, but whose prompts no pipeline writes
FRAME_MODELS = {
    "moshi": "mmspec.speech.moshi_frames.MoshiFrames",
    "qwen3_omni_moe": "mmspec.speech.qwen3_omni_frames.Qwen3OmniFrames",
    "qwen3_omni_moe_talker": "mmspec.speech.qwen3_omni_frames.Qwen3OmniFrames",
}


class AutoTextToSpeechPipeline:
    """Loads the right text-to-speech pipeline; not instantiated itself."""

    def __init__(self) -> None:
        raise TypeError("Use AutoTextToSpeechPipeline.from_pretrained(name).")

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, dtype: torch.dtype = torch.float32, drafter: Any = None, acceptance: Any = None
    ) -> SpeakingPipeline:
        """Load a voice.

        Args:
            name: An embedded name (``mmspec/tiny-tts``), the folder or hub id of a saved pipeline, or the folder or hub id of
                a CSM checkpoint as its authors publish it. Only a hub id touches the network.
            dtype: Precision of the weights; exactness is promised in float32.
            drafter, acceptance: Replace those of a saved pipeline. A published checkpoint has no drafter; it gets
                ``ResidualDrafter()``, which needs no training, unless another is given.

        Raises:
            ValueError: If the model is of no known family, or a tensor is missing or superfluous.
        """
        kind, config = find_config(name)
        if kind == "pipeline":
            pipeline = getattr(mmspec, str(config.get("_class_name")), None)
            if not (inspect.isclass(pipeline) and issubclass(pipeline, SpeakingPipeline)):
                raise ValueError(f"{name} holds a {config.get('_class_name')!r}, which is no voice. {_legal()}")
            given = {"drafter": drafter, "acceptance": acceptance}
            swaps = {key: value for key, value in given.items() if value is not None}
            loaded: SpeakingPipeline = pipeline.from_pretrained(name, dtype=dtype, **swaps)
            return loaded
        family = config.get("model_type")
        if family in FRAME_MODELS:
            raise ValueError(
                f"{name} holds a {family!r} model. mmspec has no pipeline for it, only the frame model "
                f"{FRAME_MODELS[family]}, which is used with CodeTarget and the loop on prompts of your own; see "
                f"docs/text-to-speech.md. {_legal()}"
            )
        if family not in VOICES.names:
            found = f"a {family!r} model" if family else f"a {config.get('_class_name')!r} alone"
            raise ValueError(f"{name} holds {found}, which is no voice. {_legal()}")
        model = load_transformers_model(name, dtype)
        processor = transformers.AutoProcessor.from_pretrained(name)
        voice: SpeakingPipeline = VOICES.load(family)(model, processor, drafter or ResidualDrafter(), acceptance)
        return voice


def _legal() -> str:
    return f"Legal are saved text-to-speech pipelines, and models of type {', '.join(VOICES.names)}."
