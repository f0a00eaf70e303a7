"""Chameleon's image generation (Chameleon Team, 2024) as a pipeline: Anole and Lumina-mGPT, over transformers' class.

transformers' ``forward`` blanks the logits of all image codes and its tokenizer has no decoder, so the trunk is called
here instead, and the pictures come from Meta's own VQ model, converted by ``mmspec convert chameleon-vq``.

    anole   (Chern et al., 2024)  BOS text SEP BOI | 1024 codes EOI; the null prompt is BOS BOI; 512 x 512 only
    lumina  (Liu et al., 2024)    BOS text SEP BOI h w | rows of codes with a row end each, EOI; the null prompt is
                                  BOI h w; sizes h, w in patches of two codes
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel
from torch import Tensor
from transformers import AutoTokenizer, ChameleonForConditionalGeneration, PreTrainedModel, PreTrainedTokenizerBase

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.drafters.base import Drafter
from mmspec.image.chameleon import RELEASED, STYLES, ChameleonStyle, ChameleonVocabulary, lumina_sizes
from mmspec.image.grid import Grid
from mmspec.image.joint_vocabulary import JointVocabularyModel
from mmspec.image.prompts import TokenPrompts
from mmspec.image.sizes import SIDES, check_only_size, parse_ratio
from mmspec.image.vq import decode_codes, downsample_factor
from mmspec.models.loading import check_weights
from mmspec.pipelines.image_call import ImageCall
from mmspec.pipelines.transformers_image import TransformersImagePipeline


def _style(name: str | None) -> ChameleonStyle:
    if name not in STYLES:
        raise ValueError(f"`style` must say how this checkpoint spells pictures: {' or '.join(STYLES)}, got {name!r}.")
    return STYLES[name]


class ChameleonPipeline(TransformersImagePipeline):
    """Text-to-image generation with Anole or Lumina-mGPT.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
        vq: The picture tokenizer with its decoder; ``None`` for calls with ``output_type="tokens"`` only.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        style: ``anole`` or ``lumina``: how prompts and pictures are spelt. Their configurations do not say.
        image_size: Side of the square whose area pictures have, in pixels.
        guidance_scale, temperature, top_k, top_p: Defaults of a call; ``None`` is what the authors use.

    Raises:
        ValueError: For an unknown style, or parts that do not fit one another.
    """

    model_cpu_offload_seq = "model->vq"
    model_type = "chameleon"
    unused_tensors = ("model.vqmodel.decoder.",)
    _optional_components = ["vq", "drafter", "acceptance"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        model: ChameleonForConditionalGeneration,
        tokenizer: PreTrainedTokenizerBase,
        vq: VQModel | None = None,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        style: str | None = None,
        image_size: int = 512,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        super().__init__()
        own = _style(style)
        self.register_modules(model=model, tokenizer=tokenizer, vq=vq, drafter=drafter, acceptance=acceptance)
        self.register_to_config(
            style=style, image_size=image_size,
            guidance_scale=own.guidance_scale if guidance_scale is None else guidance_scale,
            temperature=own.temperature if temperature is None else temperature,
            top_k=own.top_k if top_k is None else top_k,
            top_p=own.top_p if top_p is None else top_p,
        )  # fmt: skip
        self._check_model()
        codes = model.config.vq_config.num_embeddings
        if vq is not None and (vq.config.num_vq_embeddings, downsample_factor(vq)) != (codes, self.pixels_per_code):
            raise ValueError(
                f"`vq` has {vq.config.num_vq_embeddings} codes of {downsample_factor(vq)} pixels, but `model` wants "
                f"{codes} of {self.pixels_per_code}; they belong to different checkpoints."
            )
        self.vocabulary = ChameleonVocabulary.of(model.config.vocabulary_map, tokenizer.bos_token_id, codes)
        self.layout()

    @classmethod
    def _model_class(cls) -> type[PreTrainedModel]:
        return ChameleonForConditionalGeneration

    @classmethod
    def _load_text(cls, name: str, hub: dict[str, Any]) -> dict[str, Any]:
        return {"tokenizer": AutoTokenizer.from_pretrained(name, **hub)}

    @classmethod
    def _from_model(cls, name: str, given: dict[str, Any], hub: dict[str, Any]) -> Any:
        style, image_size = RELEASED.get(name, (None, 512))
        given = {"style": style, "image_size": image_size, **given}
        _style(given["style"])  # before gigabytes are read for nothing
        if isinstance(given.get("vq"), (str, Path)):
            folder = Path(given["vq"])
            check_weights(folder, VQModel)
            given["vq"] = VQModel.from_pretrained(folder, torch_dtype=torch.float32)
        return super()._from_model(name, given, hub)

    @property
    def pixels_per_code(self) -> int:
        return 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)

    @property
    def codebook(self) -> Tensor:
        return self.model.model.vqmodel.quantize.embedding.weight

    def layout(self, height: int | None = None, width: int | None = None, aspect_ratio: str | None = None) -> Grid:
        codes, factor, side = self.codebook.shape[0], self.pixels_per_code, self.config.image_size
        if self.config.style == "anole":
            count = side // factor
            grid = Grid(count, count, codes, footer=(codes,))
            check_only_size(grid, factor, height, width, aspect_ratio)
            return grid
        patch = 2 * factor
        sizes = lumina_sizes((side // patch) ** 2)
        if aspect_ratio is not None:
            columns, rows = parse_ratio(aspect_ratio)
            wanted = columns / rows
            size = min(sizes, key=lambda size: max(size[1] / size[0] / wanted, wanted * size[0] / size[1]))
        else:
            pixels = height or side, width or side
            size = (pixels[0] // patch, pixels[1] // patch)
            if size not in sizes or (size[0] * patch, size[1] * patch) != pixels:
                legal = ", ".join(f"{rows * patch} x {columns * patch}" for rows, columns in sizes)
                raise ValueError(f"{SIDES} must be one of {legal}; got {pixels[0]} x {pixels[1]}.")
        return Grid(2 * size[0], 2 * size[1], codes, row_end=codes + 1, footer=(codes,))

    def token_ids(self, grid: Grid) -> Tensor:
        codes = self.model.model.vocabulary_mapping.img2bpe_mapping_tensor.long()
        structural = [self.vocabulary.end_of_image, self.vocabulary.new_line]
        return torch.cat([codes, torch.tensor(structural[: grid.vocab_size - grid.num_codes])])

    def opening_ids(self, grid: Grid) -> list[int]:
        opening = [self.vocabulary.begin_of_image]
        if self.config.style == "lumina":
            opening += [self.vocabulary.size(grid.rows // 2), self.vocabulary.size(grid.columns // 2)]
        return opening

    def prompt_ids(self, text: str, grid: Grid) -> list[int]:
        if self.config.style == "lumina":
            sides = f"{grid.columns * self.pixels_per_code}x{grid.rows * self.pixels_per_code}"
            text = f"Generate an image of {sides} according to the following prompt:\n{text}"
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [self.vocabulary.begin, *ids, self.vocabulary.separator, *self.opening_ids(grid)]

    def unconditional_ids(self, ids: list[int], grid: Grid) -> list[int]:
        begin = [self.vocabulary.begin] if self.config.style == "anole" else []
        return [*begin, *self.opening_ids(grid)]

    def _reserved(self) -> list[int]:
        return [self.vocabulary.begin_of_image, self.vocabulary.end_of_image]

    def check_call(self, call: ImageCall) -> None:
        super().check_call(call)
        if self.vq is None and call.output_type != "tokens":
            raise ValueError(
                f"`output_type` {call.output_type!r} needs a picture decoder, and this pipeline has no `vq`; convert "
                "Meta's vqgan.ckpt with `mmspec convert chameleon-vq` and load with `vq=`, or use 'tokens'."
            )

    def decoder_model(
        self, network: Any, conditions: TokenPrompts, guidance: Guidance, device: torch.device
    ) -> JointVocabularyModel:
        return JointVocabularyModel(
            network, network.model, conditions, self.token_ids(self.layout()), self.codebook.shape[0],
            guidance.branches > 1, device, forward=self.compiled(network.model),
        )  # fmt: skip

    def decode_codes(self, codes: Tensor) -> Tensor:
        return decode_codes(self.vq, codes)

    def decode_bytes_per_pixel(self) -> int:
        config = self.model.config.vq_config
        return 2 * 4 * config.base_channels * max(config.channel_multiplier)
