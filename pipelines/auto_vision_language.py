"""Resolve a name to a vision-language pipeline: an embedded checkpoint, a saved pipeline, or a model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec.models.loading import find_config
from mmspec.models.transformers_loading import load_transformers_model
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.vlm.adapters import ADAPTERS


class AutoVisionLanguagePipeline:
    """Loads a :class:`VisionLanguagePipeline`; not instantiated itself."""

    def __init__(self) -> None:
        raise TypeError("Use AutoVisionLanguagePipeline.from_pretrained(name).")

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, dtype: torch.dtype = torch.float32, drafter: Any = None, acceptance: Any = None
    ) -> VisionLanguagePipeline:
        """Load a pipeline.

        Args:
            name: An embedded name, the folder of a saved pipeline, or the folder or hub id of a vision-language model of
                transformers as its authors publish it. Only a hub id touches the network.
            dtype: Precision of the weights; exactness is promised in float32.
            drafter, acceptance: Replace those of a saved pipeline.

        Raises:
            ValueError: If the model is of no known family, or a tensor is missing or superfluous.
        """
        kind, config = find_config(name)
        if kind == "pipeline":
            swaps = {
                key: value for key, value in (("drafter", drafter), ("acceptance", acceptance)) if value is not None
            }
            return VisionLanguagePipeline.from_pretrained(name, dtype=dtype, **swaps)
        if (found := config.get("model_type")) not in ADAPTERS.names:
            raise ValueError(
                f"{name} holds a {found!r} model; vision-language models that mmspec reads are {', '.join(ADAPTERS.names)}."
            )
        model = load_transformers_model(name, dtype)
        processor = transformers.AutoProcessor.from_pretrained(name)
        return VisionLanguagePipeline(model, processor, drafter, acceptance)
