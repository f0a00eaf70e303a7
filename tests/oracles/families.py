"""Tiny random-weight models of transformers' image families, with processors, wrapped in their pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import VQModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from mmspec.pipelines.chameleon import ChameleonPipeline
from mmspec.pipelines.emu3 import Emu3Pipeline
from mmspec.pipelines.image import ImagePipeline
from mmspec.pipelines.janus import JanusPipeline
from tests.oracles.tiny import WORDS

CODES = 16
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96,
}  # fmt: skip
VQ = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}
SPELLING = [
    "Generate",
    "image",
    "according",
    "to",
    "following",
    "prompt",
    "an",
    ":",
    "*",
    *map(str, range(25)),
    "10x6",
]


def tokenizer(special: Mapping[str, int], bos: str, eos: str, pad: str, **named: str) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with ``special`` tokens at their ids, and words from 64 on."""
    words = {word: 64 + i for i, word in enumerate([*WORDS, *SPELLING])}
    inner = Tokenizer(models.WordLevel({"<unk>": 63, **special, **words}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(sorted(special, key=lambda name: special[name]))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=bos, eos_token=eos, pad_token=pad, unk_token="<unk>",
        extra_special_tokens=named or None,
    )  # fmt: skip


def randomise(model: PreTrainedModel, seed: int) -> Any:
    """Large weights, so that laws differ clearly between tokens and prompts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "vqmodel" not in name and "vision" not in name and parameter.dim() > 1:
                parameter.normal_(std=0.4, generator=generator)
    return model.eval()


def built(model_class: type, config: Any, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return randomise(model_class(config), seed)


EMU3_SPECIAL = {
    "<pad>": 0, "<bos>": 1, "<eos>": 2, "<|extra_200|>": 3, "<|extra_201|>": 4, "<image>": 5, "<|image start|>": 6,
    "<|image end|>": 7, "<|image token|>": 8,
}  # fmt: skip


def emu3_model(seed: int = 0) -> Emu3ForConditionalGeneration:
    # visual tokens in an order that is not that of the codes
    visual = {f"<|visual token {(5 * i) % CODES:06d}|>": 20 + i for i in range(CODES)}
    config = Emu3Config(
        text_config={**TEXT, "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        vq_config={
            **VQ, "codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "attn_resolutions": [], "hidden_size": 32,
            "temporal_downsample_factor": 2,
        },
        vocabulary_map={**EMU3_SPECIAL, **visual},
    )  # fmt: skip
    return built(Emu3ForConditionalGeneration, config, seed)


def emu3_processor() -> Emu3Processor:
    text = tokenizer(
        EMU3_SPECIAL, "<bos>", "<eos>", "<pad>", image_token="<image>", boi_token="<|image start|>",
        eoi_token="<|image end|>", image_wrapper_token="<|image token|>", eof_token="<|extra_201|>",
    )  # fmt: skip
    return Emu3Processor(Emu3ImageProcessor(min_pixels=4, max_pixels=400, spatial_factor=2), text)


def emu3_pipeline(**changes: Any) -> Emu3Pipeline:
    """Pictures of 3 x 5 codes by default, 2 pixels each."""
    settings = {
        "model": emu3_model(),
        "processor": emu3_processor(),
        "top_k": 12,
        "guidance_scale": 2.0,
        "image_area": 60,
    }
    return quiet(Emu3Pipeline(**{**settings, **changes}))


JANUS_SPECIAL = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<image>": 3, "<boi>": 4, "<eoi>": 5}
CHAT = (
    "{{ bos_token }}{% for turn in messages %}user : {% for part in turn['content'] %}{{ part['text'] }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %} image : {% endif %}"
)


def janus_model(seed: int = 0) -> JanusForConditionalGeneration:
    config = JanusConfig(
        text_config={
            **TEXT, "model_type": "llama", "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        },
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4,
            "projection_dim": 32, "num_image_tokens": 16,
        },
        vq_config={
            **VQ, "embed_dim": 4, "num_embeddings": CODES, "latent_channels": 8, "projection_dim": 32,
            "image_token_embed_dim": 32, "num_hidden_layers": 2,
        },
        image_token_id=3,
    )  # fmt: skip
    model = built(JanusForConditionalGeneration, config, seed)
    with torch.no_grad():  # a narrow embedding would make all codes alike to the trunk
        model.model.generation_embeddings.weight.mul_(5)
    return model


def janus_processor(chat: bool = True) -> JanusProcessor:
    text = tokenizer(
        JANUS_SPECIAL, "<bos>", "<eos>", "<pad>", image_token="<image>", boi_token="<boi>", eoi_token="<eoi>"
    )
    images = JanusImageProcessor(image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return JanusProcessor(images, text, chat_template=CHAT if chat else None, num_image_tokens=16)


def janus_pipeline(**changes: Any) -> JanusPipeline:
    """Pictures of 4 x 4 codes, 2 pixels each."""
    settings = {"model": janus_model(), "processor": janus_processor(), "top_k": 12, "guidance_scale": 2.0}
    return quiet(JanusPipeline(**{**settings, **changes}))


CHAMELEON_SPECIAL = {
    "<s>": 0, "<pad>": 1, "</s>": 2, "<eoss>": 21, "<racm3:break>": 22, "<reserved08706>": 23, "<image>": 24,
    "<reserved08799>": 25, **{f"<reserved{8800 + n:05d}>": 26 + n for n in range(1, 10)},
}  # fmt: skip


def chameleon_model(seed: int = 0) -> ChameleonForConditionalGeneration:
    # image tokens in an order that is not that of the codes; digits of their names are letters
    codes = {f"IMGIMG{''.join(chr(65 + int(c)) for c in str((3 * i) % CODES))}Z": 4 + i for i in range(CODES)}
    config = ChameleonConfig(
        **TEXT, vocab_size=128, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        vocabulary_map={**CHAMELEON_SPECIAL, **codes},
        vq_config={**VQ, "embed_dim": 8, "num_embeddings": CODES, "latent_channels": 8, "resolution": 8},
    )  # fmt: skip
    return built(ChameleonForConditionalGeneration, config, seed)


def chameleon_vq() -> VQModel:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return VQModel(
            block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1, latent_channels=8, vq_embed_dim=8,
            num_vq_embeddings=CODES, lookup_from_codebook=True,
        ).eval()  # fmt: skip


def chameleon_pipeline(style: str | None, **changes: Any) -> ChameleonPipeline:
    """Pictures of 4 x 4 codes by default, 2 pixels each; ``lumina`` with row ends and other sizes of that area."""
    text = tokenizer(CHAMELEON_SPECIAL, "<s>", "</s>", "<pad>")
    settings: dict[str, Any] = {
        "model": chameleon_model(), "tokenizer": text, "vq": chameleon_vq(), "style": style, "image_size": 8,
        "top_k": 12, "guidance_scale": 2.0, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip
    return quiet(ChameleonPipeline(**{**settings, **changes}))


def quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


PIPELINES: dict[str, Any] = {
    "emu3": emu3_pipeline,
    "janus": janus_pipeline,
    "anole": lambda **changes: chameleon_pipeline("anole", **changes),
    "lumina": lambda **changes: chameleon_pipeline("lumina", **changes),
}


def family_pipeline(name: str, **changes: Any) -> ImagePipeline:
    return PIPELINES[name](**changes)
