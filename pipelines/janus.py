"""Janus and Janus-Pro (Wu et al., 2024; Chen et al., 2025) as a pipeline, over transformers' own class.

The unconditional branch reads the same prompt with every token but the first and the last, which begin the sequence
and the picture, replaced by padding that is *not* masked, as in the authors' training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers import JanusForConditionalGeneration, JanusProcessor, PreTrainedModel

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.drafters.base import Drafter
from mmspec.image.grid import Grid
from mmspec.image.janus_target import JanusImageModel
from mmspec.image.pixels import unnormalise
from mmspec.image.prompts import TokenPrompts
from mmspec.image.sizes import check_only_size
from mmspec.models.hf import bring_in
from mmspec.pipelines.transformers_image import TransformersImagePipeline


class JanusPipeline(TransformersImagePipeline):
    """Text-to-image generation with Janus.

    Args:
        model: The model with its picture tokenizer.
        processor: Its processor; a chat template of it is applied to prompts.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        guidance_scale, temperature, top_k, top_p: Defaults of a call.

    Raises:
        ValueError: If the tokenizer lacks the tokens that a picture's prompt needs.
    """

    model_cpu_offload_seq = "model"
    model_type = "janus"

    def __init__(
        self,
        model: JanusForConditionalGeneration,
        processor: JanusProcessor,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        guidance_scale: float = 5.0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter, acceptance=acceptance)
        self.register_to_config(guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p)
        self._check_model()
        special = self._special()
        if absent := [name for name, token in special.items() if token is None]:
            raise ValueError(f"`processor` has no token for {', '.join(absent)}; Janus needs them to begin a picture.")
        if (tokens := model.config.vision_config.num_image_tokens) != self.layout().num_tokens:
            raise ValueError(
                f"`model` makes pictures of {tokens} tokens, but its grid has {self.layout().num_tokens}."
            )

    @classmethod
    def _model_class(cls) -> type[PreTrainedModel]:
        return JanusForConditionalGeneration

    @classmethod
    def _load_text(cls, name: str, hub: dict[str, Any]) -> dict[str, Any]:
        return {"processor": JanusProcessor.from_pretrained(name, **hub)}

    def _special(self) -> dict[str, Any]:
        tokenizer, own = self.processor.tokenizer, self.model.config.get_text_config()
        padding = tokenizer.pad_token_id
        return {
            "begin of sequence": tokenizer.bos_token_id,
            "begin of image": tokenizer.convert_tokens_to_ids(self.processor.image_start_token),
            "padding": getattr(own, "pad_token_id", None) if padding is None else padding,
        }

    @property
    def pixels_per_code(self) -> int:
        return 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)

    @property
    def codebook(self) -> Tensor:
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight, dim=-1)

    def layout(self, height: int | None = None, width: int | None = None, aspect_ratio: str | None = None) -> Grid:
        side = self.model.config.vq_config.num_patches
        grid = Grid(side, side, self.model.config.vq_config.num_embeddings)
        check_only_size(grid, self.pixels_per_code, height, width, aspect_ratio)
        return grid

    def prompt_ids(self, text: str, grid: Grid) -> list[int]:
        if self.processor.chat_template is not None:
            turns = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            text = self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return list(self.processor(text=[text], generation_mode="image", return_tensors="pt")["input_ids"][0].tolist())

    def opening_ids(self, grid: Grid) -> list[int]:
        return [self._special()["begin of image"]]

    def unconditional_ids(self, ids: list[int], grid: Grid) -> list[int]:
        special = self._special()
        kept = special["begin of sequence"], special["begin of image"]
        return [token if token in kept else special["padding"] for token in ids]

    def _reserved(self) -> list[int]:
        return [self._special()["begin of image"]]

    def decoder_model(
        self, network: Any, conditions: TokenPrompts, guidance: Guidance, device: torch.device
    ) -> JanusImageModel:
        forward = self.compiled(network.model.language_model)
        return JanusImageModel(network, conditions, guidance.branches > 1, device, forward=forward)

    def decode_codes(self, codes: Tensor) -> Tensor:
        bring_in(self.model)
        vq = self.model.model.vqmodel  # its own `decode` knows whole pictures only, streaming decodes their upper rows
        latents = rearrange(F.embedding(codes, self.codebook), "b h w e -> b e h w")
        return unnormalise(vq.decoder(vq.post_quant_conv(latents)), self.processor.image_processor)

    def decode_bytes_per_pixel(self) -> int:
        config = self.model.config.vq_config
        return 2 * 4 * config.base_channels * max(config.channel_multiplier)
