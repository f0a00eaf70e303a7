"""LlamaGen (Sun et al., 2024) as a pipeline: captions or classes in, pictures out, several tokens per forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import VQModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase, T5EncoderModel

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.drafters.base import Drafter
from mmspec.image.captions import clean_caption, encode_captions
from mmspec.image.grid import Grid
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_target import Condition, LlamaGenModel
from mmspec.image.sizes import check_only_size
from mmspec.image.vq import codebook, decode_codes, downsample_factor
from mmspec.pipelines.image import ImagePipeline
from mmspec.pipelines.image_call import ImageCall, as_captions, match_negatives
from mmspec.schedules.base import Schedule


class LlamaGenPipeline(ImagePipeline):
    """Text- and class-to-image generation.

    Args:
        transformer: The decoder.
        vq: The picture tokenizer.
        text_encoder, tokenizer: T5 for captions; ``None`` for a model that knows classes only.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        schedule: An order of decoding such as :class:`ZipARSchedule`, which replaces drafter and rule as long as it is
            set; ``None`` decodes one cell after the other.
        guidance_scale, temperature, top_k, top_p: What the checkpoint recommends, the defaults of a call.
        class_names: Names of the classes, so that calls may use them instead of numbers.
        clean_captions: Whether captions go through LlamaGen's cleaner, as in its training.
    """

    model_cpu_offload_seq = "text_encoder->transformer->vq"
    _swappable_components = ["drafter", "acceptance", "schedule"]  # noqa: RUF012 - diffusers' form
    _optional_components = ["text_encoder", "tokenizer", "drafter", "acceptance", "schedule"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq: VQModel,
        text_encoder: T5EncoderModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        schedule: Schedule | None = None,
        guidance_scale: float = 7.5,
        temperature: float = 1.0,
        top_k: int = 1000,
        top_p: float = 1.0,
        class_names: list[str] | None = None,
        clean_captions: bool = True,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, vq=vq, text_encoder=text_encoder, tokenizer=tokenizer,
            drafter=drafter, acceptance=acceptance, schedule=schedule,
        )  # fmt: skip
        self.register_to_config(
            guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p,
            class_names=class_names, clean_captions=clean_captions,
        )  # fmt: skip
        if transformer.config.vocab_size != vq.config.num_vq_embeddings:
            raise ValueError(
                f"`transformer` knows {transformer.config.vocab_size} codes but `vq` has "
                f"{vq.config.num_vq_embeddings}; they belong to different checkpoints."
            )

    @property
    def network(self) -> LlamaGenTransformer:
        return self.transformer

    @property
    def pixels_per_code(self) -> int:
        return downsample_factor(self.vq)

    @property
    def codebook(self) -> Tensor:
        return codebook(self.vq)

    def layout(self, height: int | None = None, width: int | None = None, aspect_ratio: str | None = None) -> Grid:
        config = self.transformer.config
        grid = Grid(config.grid_height, config.grid_width, config.vocab_size)
        check_only_size(grid, self.pixels_per_code, height, width, aspect_ratio)
        return grid

    def check_call(self, call: ImageCall) -> None:
        if (call.prompt is None) == (call.class_labels is None):
            raise ValueError("Give exactly one of `prompt` and `class_labels`.")
        if call.class_labels is not None and call.negative_prompt is not None:
            raise ValueError("`negative_prompt` needs `prompt`; classes have the null class.")

    def encode_conditions(self, call: ImageCall, grid: Grid) -> Condition:
        if call.prompt is not None:
            return self.encode_prompt(call.prompt, call.negative_prompt, truncate=call.truncate_prompt)
        assert call.class_labels is not None
        return self.encode_classes(call.class_labels)

    def encode_prompt(
        self,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str] | None = None,
        *,
        truncate: bool = False,
    ) -> Condition:
        """Turn captions into the decoder's condition.

        Raises:
            ValueError: If the checkpoint takes no captions, or one is too long and ``truncate`` is False.
        """
        if self.text_encoder is None or self.tokenizer is None:
            raise ValueError("This checkpoint takes no captions; give `class_labels`.")
        prompts = as_captions("prompt", prompt)
        negatives = None if negative_prompt is None else match_negatives(prompts, negative_prompt)
        embeds, mask = self._encode(prompts, truncate)
        if negatives is None:
            return Condition(caption_embeds=embeds, caption_mask=mask)
        negative_embeds, negative_mask = self._encode(negatives, truncate)
        return Condition(embeds, mask, negative_embeds=negative_embeds, negative_mask=negative_mask)

    def _encode(self, captions: list[str], truncate: bool) -> tuple[Tensor, Tensor]:
        if self.config.clean_captions:
            captions = [clean_caption(caption) for caption in captions]
        return encode_captions(
            captions,
            self.tokenizer,
            self.text_encoder,
            max_length=self.transformer.config.condition_length,
            device=self._execution_device,
            dtype=self.transformer.dtype,
            truncate=truncate,
        )

    def encode_classes(self, class_labels: int | str | Sequence[int | str]) -> Condition:
        """Turn class numbers or names into the decoder's condition; ValueError for unknown ones."""
        count = self.transformer.config.num_classes
        if count is None:
            raise ValueError("This checkpoint knows no classes; give `prompt`.")
        labels = [class_labels] if isinstance(class_labels, (int, str)) else list(class_labels)
        if not labels:
            raise ValueError("`class_labels` is empty; give at least one class.")
        names = self.config.class_names or []
        numbers = []
        for label in labels:
            if isinstance(label, str) and label in names:
                numbers.append(names.index(label))
            elif isinstance(label, int) and not isinstance(label, bool) and 0 <= label < count:
                numbers.append(label)
            else:
                known = f", or one of {', '.join(names)}" if names else ""
                raise ValueError(f"Unknown class {label!r}; give a number from 0 to {count - 1}{known}.")
        return Condition(class_labels=torch.tensor(numbers, device=self._execution_device))

    def decoder_model(
        self, network: Any, conditions: Condition, guidance: Guidance, device: torch.device
    ) -> LlamaGenModel:
        return LlamaGenModel(network, conditions, guidance.branches > 1, device, forward=self.compiled(network))

    def decode_codes(self, codes: Tensor) -> Tensor:
        return decode_codes(self.vq, codes)

    def cache_bytes_per_slot(self) -> int:
        config = self.transformer.config
        return 2 * config.num_layers * config.hidden_size * self.transformer.dtype.itemsize

    def decode_bytes_per_pixel(self) -> int:
        return 2 * 4 * max(self.vq.config.block_out_channels)

    def _any_call(self, **arguments: Any) -> ImageCall:
        condition: dict[str, Any] = {"class_labels": 0} if self.text_encoder is None else {"prompt": ""}
        return ImageCall(seed=0, **condition, **arguments)
