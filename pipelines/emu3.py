"""Emu3 (Wang et al., 2024, "Emu3: Next-Token Prediction is All You Need") as a pipeline, over transformers' own class.

A picture of H x W codes is spelt as H rows of W visual tokens and an end-of-line, then end-of-frame, end-of-image and
end-of-sequence. Size and structure are fixed by the prompt, so all of the latter are forced slots.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, Emu3Processor, PreTrainedModel

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.drafters.base import Drafter
from mmspec.image.grid import Grid
from mmspec.image.joint_vocabulary import JointVocabularyModel
from mmspec.image.pixels import unnormalise
from mmspec.image.prompts import TokenPrompts
from mmspec.image.sizes import SIDES, parse_ratio
from mmspec.models.hf import bring_in
from mmspec.pipelines.transformers_image import TransformersImagePipeline


class Emu3Pipeline(TransformersImagePipeline):
    """Text-to-image generation with Emu3-Gen.

    Args:
        model: The model with its picture tokenizer.
        processor: Its processor.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        guidance_scale, temperature, top_k, top_p: Defaults of a call.
        image_area: Pixels of a picture of the default size, and of any ``aspect_ratio``.

    Raises:
        ValueError: If the model's vocabulary lacks the tokens that spell a picture.
    """

    model_cpu_offload_seq = "model"
    model_type = "emu3"

    def __init__(
        self,
        model: Emu3ForConditionalGeneration,
        processor: Emu3Processor,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        guidance_scale: float = 3.0,
        temperature: float = 1.0,
        top_k: int = 2048,
        top_p: float = 1.0,
        image_area: int = 720 * 720,
    ) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter, acceptance=acceptance)
        self.register_to_config(
            guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p, image_area=image_area
        )
        self._check_model()
        if absent := [name for name, token in self._structure.items() if token is None]:
            raise ValueError(f"`model` and `processor` have no token for {', '.join(absent)}; they make no pictures.")

    @classmethod
    def _model_class(cls) -> type[PreTrainedModel]:
        return Emu3ForConditionalGeneration

    @classmethod
    def _load_text(cls, name: str, hub: dict[str, Any]) -> dict[str, Any]:
        return {"processor": Emu3Processor.from_pretrained(name, **hub)}

    @cached_property
    def _structure(self) -> dict[str, Any]:
        """Own ids of the structural tokens, in the order of the loop's."""
        tokenizer = self.processor.tokenizer
        return {
            "end of line": self.model.vocabulary_mapping.eol_token_id,
            "end of frame": tokenizer.convert_tokens_to_ids(self.processor.eof_token),
            "end of image": tokenizer.convert_tokens_to_ids(self.processor.image_end_token),
            "end of sequence": tokenizer.eos_token_id,
        }

    @property
    def pixels_per_code(self) -> int:
        return self.model.model.vqmodel.spatial_scale_factor

    @property
    def codebook(self) -> Tensor:
        return self.model.model.vqmodel.quantize.embedding.weight

    def layout(self, height: int | None = None, width: int | None = None, aspect_ratio: str | None = None) -> Grid:
        factor, area = self.pixels_per_code, self.config.image_area
        rows, columns = self.processor.calculate_generate_size("1:1", area, factor)
        if aspect_ratio is not None:
            parse_ratio(aspect_ratio)
            rows, columns = self.processor.calculate_generate_size(aspect_ratio, area, factor)
        elif height is not None or width is not None:
            sides = height or rows * factor, width or columns * factor
            if any(side % factor for side in sides):
                raise ValueError(f"{SIDES} must be multiples of {factor}, got {sides[0]} x {sides[1]}.")
            rows, columns = sides[0] // factor, sides[1] // factor
            if not 0.9 * area <= sides[0] * sides[1] <= 1.1 * area:
                self.warn_once(
                    f"Emu3 learnt pictures of about {area} pixels: expect less of other areas, such as {sides[0]} x "
                    f"{sides[1]}. `aspect_ratio` keeps the area."
                )
        codes = self.codebook.shape[0]
        line, *ends = range(codes, codes + len(self._structure))
        grid = Grid(max(rows, 1), max(columns, 1), codes, row_end=line, footer=tuple(ends))
        if grid.num_tokens >= self.max_positions:
            raise ValueError(
                f"{SIDES} of {grid.rows * factor} x {grid.columns * factor} takes {grid.num_tokens} tokens, but the "
                f"model has {self.max_positions} positions; the product of the sides can be at most about "
                f"{(self.max_positions - 64) * factor * factor} pixels."
            )
        return grid

    def token_ids(self, grid: Grid) -> Tensor:
        codes = self.model.vocabulary_mapping.img2bpe_mapping_tensor.long()
        return torch.cat([codes, torch.tensor(list(self._structure.values()))])

    def _spell(self, text: str, grid: Grid) -> str:
        return f"{text}{self.processor.image_start_token}{grid.rows}*{grid.columns}{self.processor.fake_token_around_image}"

    def prompt_ids(self, text: str, grid: Grid) -> list[int]:
        return list(self.processor(text=[self._spell(text, grid)])["input_ids"][0])

    def opening_ids(self, grid: Grid) -> list[int]:
        return list(self.processor.tokenizer(self._spell("", grid), add_special_tokens=False)["input_ids"])

    def unconditional_ids(self, ids: list[int], grid: Grid) -> list[int]:
        return self.prompt_ids("", grid)

    def _reserved(self) -> list[int]:
        processor = self.processor
        names = [processor.image_start_token, processor.fake_token_around_image, processor.image_end_token]
        return processor.tokenizer.convert_tokens_to_ids(names)

    def decoder_model(
        self, network: Any, conditions: TokenPrompts, guidance: Guidance, device: torch.device
    ) -> JointVocabularyModel:
        trunk = network.model.text_model
        return JointVocabularyModel(
            network, trunk, conditions, self.token_ids(self.layout()), self.codebook.shape[0], guidance.branches > 1,
            device, forward=self.compiled(trunk),
        )  # fmt: skip

    def decode_codes(self, codes: Tensor) -> Tensor:
        bring_in(self.model)
        return unnormalise(self.model.model.vqmodel.decode(codes), self.processor.image_processor)

    def decode_bytes_per_pixel(self) -> int:
        # the finest level has the base channels, at all frames of the temporal upsampling
        config = self.model.config.vq_config
        return 2 * 4 * config.base_channels * config.temporal_downsample_factor
