"""Resolve a name to a recogniser: an embedded checkpoint, a saved pipeline, or a speech model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec.models.loading import local_folder
from mmspec.models.transformers_loading import load_transformers_model
from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline
from mmspec.speech.adapters import ADAPTERS


class AutoSpeechRecognitionPipeline:
    """Loads the right :class:`SpeechRecognitionPipeline`; not instantiated itself."""

    def __init__(self) -> None:
        raise TypeError("Use AutoSpeechRecognitionPipeline.from_pretrained(name).")

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, dtype: torch.dtype = torch.float32, drafter: Any = None, acceptance: Any = None
    ) -> SpeechRecognitionPipeline:
        """Load a recogniser.

        Args:
            name: An embedded name (``mmspec/tiny-asr``), the folder of a saved pipeline, or the folder or hub id of a
                speech model of transformers (Granite Speech, Qwen3-ASR, Voxtral, Whisper). Only a hub id touches the
                network.
            dtype: Precision of the weights; exactness is promised in float32.
            drafter, acceptance: Replace those of a saved pipeline.

        Raises:
            ValueError: If the model is of no known family, or a tensor is missing or superfluous.
        """
        folder = Path(name)
        if folder.is_dir() and not (folder / "model_index.json").is_file():
            return cls._from_model(folder, dtype, drafter, acceptance)
        swaps = {key: value for key, value in (("drafter", drafter), ("acceptance", acceptance)) if value is not None}
        if local_folder(name) is not None:
            return SpeechRecognitionPipeline.from_pretrained(name, dtype=dtype, **swaps)
        if _is_pipeline(str(name)):
            return SpeechRecognitionPipeline.from_pretrained(name, dtype=dtype, **swaps)
        return cls._from_model(str(name), dtype, drafter, acceptance)

    @staticmethod
    def _from_model(name: str | Path, dtype: torch.dtype, drafter: Any, acceptance: Any) -> SpeechRecognitionPipeline:
        config = transformers.AutoConfig.from_pretrained(name)
        if config.model_type not in ADAPTERS.names:
            raise ValueError(
                f"{name} holds a {config.model_type!r} model; speech models that mmspec reads are "
                f"{', '.join(ADAPTERS.names)}."
            )
        model = load_transformers_model(name, dtype)
        processor = transformers.AutoProcessor.from_pretrained(name)
        return SpeechRecognitionPipeline(model, processor, drafter, acceptance)


def _is_pipeline(hub_id: str) -> bool:
    """Whether a hub repository holds a saved pipeline."""
    from huggingface_hub import file_exists

    return bool(file_exists(hub_id, "model_index.json"))
