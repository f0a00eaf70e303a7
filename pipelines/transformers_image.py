"""Image pipelines around one transformers model that reads prompt and picture as one sequence.

Such a checkpoint need not be a saved pipeline: a folder or hub id of the model itself, as its authors publish it, loads
as well, strictly, with what the family recommends.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from mmspec.core.guidance import Guidance
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.image.grid import Grid
from mmspec.image.prompts import TokenPrompts, fit_prompt
from mmspec.models.hf import cache_bytes_per_slot, check_rollback, load_strictly
from mmspec.models.loading import HUB_OPTIONS, find_config
from mmspec.pipelines.image import ImagePipeline
from mmspec.pipelines.image_call import ImageCall, as_captions, match_negatives

#: options of ``from_pretrained`` that concern the model of a bare checkpoint
MODEL_OPTIONS = ("attn_implementation", "device_map", "max_memory", "quantization_config", "variant")


class TransformersImagePipeline(ImagePipeline):
    """Base of the pipelines whose decoder is a transformers class; a family says how prompts and pictures are spelt."""

    model_type: ClassVar[str]
    #: tensors of released checkpoints that the transformers class has no use for
    unused_tensors: ClassVar[tuple[str, ...]] = ()

    model: PreTrainedModel

    @classmethod
    @abstractmethod
    def _model_class(cls) -> type[PreTrainedModel]: ...

    @classmethod
    @abstractmethod
    def _load_text(cls, name: str, hub: dict[str, Any]) -> dict[str, Any]:
        """The processor or tokenizer of a bare checkpoint, by component name."""

    @abstractmethod
    def prompt_ids(self, text: str, grid: Grid) -> list[int]:
        """Token ids of a prompt, up to and with the tokens that open the picture."""

    @abstractmethod
    def unconditional_ids(self, ids: list[int], grid: Grid) -> list[int]:
        """The prompt of the unconditional branch beside the conditional ``ids``."""

    @abstractmethod
    def opening_ids(self, grid: Grid) -> list[int]:
        """The last tokens of a prompt, which open the picture and are never cut."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a saved pipeline, or the model as its authors publish it: a folder or a hub id.

        Args:
            pretrained_model_name_or_path: What to load. Only a hub id touches the network.
            kwargs: As for ``SpecPipeline.from_pretrained``. For a bare model also the settings of the pipeline's
                constructor, and ``device_map``, ``quantization_config`` and the like for the model. Its drafter is a
                :class:`JacobiDrafter` unless ``drafter`` says otherwise.

        Raises:
            ValueError: If the checkpoint is unknown, damaged or of another family, or a tensor is missing.
            TypeError: For an unknown option.
        """
        hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        kind, config = find_config(pretrained_model_name_or_path, **hub)
        if kind == "pipeline":
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        if config.get("model_type") != cls.model_type:
            raise ValueError(
                f"{pretrained_model_name_or_path} holds a model of type {config.get('model_type')!r}, but "
                f"{cls.__name__} needs {cls.model_type!r}; AutoImagePipeline picks the right class."
            )
        return cls._from_model(str(pretrained_model_name_or_path), kwargs, hub)

    @classmethod
    def _from_model(cls, name: str, given: dict[str, Any], hub: dict[str, Any]) -> Any:
        settings = inspect.signature(cls.__init__).parameters.keys() - {"self", "model"}
        legal = {*settings, *HUB_OPTIONS, *MODEL_OPTIONS, "dtype", "torch_dtype"}
        if unknown := sorted(given.keys() - legal):
            raise TypeError(
                f"{cls.__name__}.from_pretrained got unknown {unknown}; legal are {', '.join(sorted(legal))}."
            )
        dtype = given.get("dtype", given.get("torch_dtype", torch.float32))
        if isinstance(dtype, dict):
            dtype = dtype.get("model", dtype.get("default", torch.float32))
        options = {option: given[option] for option in MODEL_OPTIONS if option in given}
        model = load_strictly(cls._model_class(), name, cls.unused_tensors, dtype=dtype, **options, **hub)
        parts = {setting: given[setting] for setting in settings if setting in given}
        parts.setdefault("drafter", JacobiDrafter())
        if not parts.keys() & {"processor", "tokenizer"}:
            parts |= cls._load_text(name, hub)
        return cls(model=model, **parts)

    def _check_model(self) -> None:
        """Raise ValueError if the model's cache cannot be rolled back."""
        check_rollback(self.model)

    @property
    def network(self) -> PreTrainedModel:
        return self.model

    @property
    def max_positions(self) -> int:
        """Positions of the language model."""
        return self.model.config.get_text_config().max_position_embeddings

    def check_call(self, call: ImageCall) -> None:
        if call.class_labels is not None:
            raise ValueError("`class_labels` are for models that know classes; give this one a `prompt`.")
        if call.prompt is None:
            raise ValueError("Give a `prompt`, one caption or several.")

    def encode_conditions(self, call: ImageCall, grid: Grid) -> TokenPrompts:
        assert call.prompt is not None
        captions = as_captions("prompt", call.prompt)
        conditional = [self._fitting(caption, grid, call.truncate_prompt) for caption in captions]
        if call.negative_prompt is None:
            return TokenPrompts(conditional, [self.unconditional_ids(ids, grid) for ids in conditional])
        negatives = match_negatives(captions, call.negative_prompt)
        return TokenPrompts(conditional, [self._fitting(text, grid, call.truncate_prompt) for text in negatives])

    def _fitting(self, text: str, grid: Grid, truncate: bool) -> list[int]:
        ids, opening = self.prompt_ids(text, grid), self.opening_ids(grid)
        if ids[-len(opening) :] != opening or any(
            ids.count(token) > opening.count(token) for token in self._reserved()
        ):
            raise ValueError(f"The prompt {text!r} spells a token that opens or ends a picture; leave it out.")
        return fit_prompt(ids, len(opening), self.max_positions - grid.num_tokens, truncate, text)

    @abstractmethod
    def _reserved(self) -> list[int]:
        """Tokens that mean a picture to the model and must not come from a prompt's text."""

    def cache_bytes_per_slot(self) -> int:
        return cache_bytes_per_slot(self.model.config.get_text_config(), self.model.dtype)

    @abstractmethod
    def decoder_model(
        self, network: Any, conditions: TokenPrompts, guidance: Guidance, device: torch.device
    ) -> Any: ...
