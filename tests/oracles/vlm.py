"""Tiny random-weight vision-language models of the real classes, and prompts for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.runner.runner import Runner
from mmspec.vlm.adapters import ADAPTERS
from tests.oracles.decode import decode, seeds

VOCAB, IMAGE, VIDEO, BUDGET = 128, 100, 101, 12
TEXT = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
GRID = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "patch_size": 14, "spatial_merge_size": 2}
MARKS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 102, "vision_end_token_id": 103}
GRID_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm_ocr")
VIDEO_FAMILIES = (*GRID_FAMILIES, "llava_onevision")


def _rope(*section: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section), **more}


def configs(family: str) -> tuple[str, str, dict[str, Any]]:
    """Model class, config class and settings of a tiny ``family``."""
    llama = {"model_type": "llama", **TEXT}
    clip = {"model_type": "clip_vision_model", **SMALL, "image_size": 28, "patch_size": 14, "projection_dim": 32}
    siglip = {"model_type": "siglip_vision_model", **SMALL, "image_size": 28, "patch_size": 14}
    idefics = {**SMALL, "image_size": 28, "patch_size": 7}
    table: dict[str, tuple[str, dict[str, Any]]] = {
        "llava": ("Llava", {
            "vision_config": clip, "text_config": llama, "image_token_index": IMAGE, "image_seq_length": 4,
            "vision_feature_layer": -1,
        }),
        "llava_next": ("LlavaNext", {
            "vision_config": clip, "text_config": llama, "image_token_index": IMAGE, "image_seq_length": 4,
            "vision_feature_layer": -1, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
        }),
        "llava_onevision": ("LlavaOnevision", {
            "vision_config": {**siglip, "vision_use_head": False}, "text_config": {"model_type": "qwen2", **TEXT},
            "image_token_index": IMAGE, "video_token_index": VIDEO,
            "image_grid_pinpoints": [[28, 28], [28, 56], [56, 28], [56, 56]],
        }),
        "pixtral": ("Llava", {
            "vision_config": {"model_type": "pixtral", **SMALL, "image_size": 56, "patch_size": 14, "head_dim": 16},
            "text_config": llama, "image_token_index": IMAGE, "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        }),
        "qwen2_vl": ("Qwen2VL", {
            "text_config": {**TEXT, "rope_parameters": _rope(2, 3, 3)},
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2,
                              "patch_size": 14, "spatial_merge_size": 2}, **MARKS,
        }),
        "qwen2_5_vl": ("Qwen2_5_VL", {
            "text_config": {**TEXT, "rope_parameters": _rope(2, 3, 3)},
            "vision_config": {**GRID, "num_heads": 2, "window_size": 56, "out_hidden_size": 64,
                              "fullatt_block_indexes": [1]}, **MARKS,
        }),
        "qwen3_vl": ("Qwen3VL", {
            "text_config": {**TEXT, "rope_parameters": _rope(3, 3, 2, mrope_interleaved=True)},
            "vision_config": {**GRID, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 64,
                              "deepstack_visual_indexes": [0, 1]}, **MARKS,
        }),
        "glm_ocr": ("GlmOcr", {
            "text_config": {**TEXT, "rope_parameters": _rope(2, 3, 3, partial_rotary_factor=1.0)},
            "vision_config": {**GRID, "num_heads": 2, "out_hidden_size": 64, "image_size": 56}, **MARKS,
            "image_start_token_id": 104, "image_end_token_id": 105, "video_start_token_id": 106, "video_end_token_id": 107,
        }),
        "smolvlm": ("SmolVLM", {
            "vision_config": idefics, "text_config": llama, "scale_factor": 2, "image_token_id": IMAGE,
        }),
        "idefics3": ("Idefics3", {
            "vision_config": idefics, "text_config": llama, "scale_factor": 2, "image_token_id": IMAGE,
        }),
        "internvl": ("InternVL", {
            "vision_config": {**SMALL, "image_size": [28, 28], "patch_size": [7, 7]},
            "text_config": {"model_type": "qwen2", **TEXT}, "downsample_ratio": 0.5, "image_seq_length": 4,
            "image_token_id": IMAGE,
        }),
        "paligemma": ("PaliGemma", {
            "text_config": {"model_type": "gemma", **TEXT},
            "vision_config": {**siglip, "projection_dim": 64, "vision_use_head": False}, "image_token_index": IMAGE,
            "projection_dim": 64, "hidden_size": 64,
        }),
        "got_ocr2": ("GotOcr2", {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                              "image_size": 64, "patch_size": 16, "window_size": 2, "global_attn_indexes": [1],
                              "mlp_dim": 48, "initializer_range": 0.02}, "image_token_id": IMAGE, "image_seq_length": 1,
        }),
        "gemma3": ("Gemma3", {
            "text_config": {**TEXT, "sliding_window": 12, "query_pre_attn_scalar": 16,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            "vision_config": {**siglip, "patch_size": 7}, "mm_tokens_per_image": 4, "image_token_id": IMAGE,
        }),
    }  # fmt: skip
    name, settings = table[family]
    return f"{name}ForConditionalGeneration", f"{name}Config", settings


def build(family: str, attention: str = "sdpa", seed: int = 0) -> Any:
    """A fresh tiny model whose logits span several units, so that greedy paths are not ties."""
    model_class, config_class, settings = configs(family)
    config = getattr(transformers, config_class)(**settings, tie_word_embeddings=False)
    torch.manual_seed(seed)
    if family == "got_ocr2":  # has no other
        attention = "eager"
    model = getattr(transformers, model_class)._from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.std() < 0.1:
                parameter.mul_(4)
    model.generation_config.eos_token_id = None
    return model


tiny_vlm = cache(build)


def picture(family: str, seed: int = 0, tall: bool = False) -> dict[str, Tensor]:
    """What the vision tower of ``family`` reads of one picture."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    if family in GRID_FAMILIES:
        grid = [1, 6, 2] if tall else [1, 4, 6]
        return {"pixel_values": noise(grid[1] * grid[2], 3 * 2 * 14 * 14), "image_grid_thw": torch.tensor([grid])}
    if family in ("smolvlm", "idefics3"):
        return {"pixel_values": noise(1, 1, 3, 28, 28), "pixel_attention_mask": torch.ones(1, 1, 28, 28).long()}
    if family == "pixtral":
        height, width = (56, 14) if tall else (28, 42)
        return {"pixel_values": noise(1, 3, height, width), "image_sizes": torch.tensor([[height, width]])}
    if family in ("llava_next", "llava_onevision"):  # the whole picture, then its parts
        size = torch.tensor([[56, 28] if tall else [28, 56]])
        return {"pixel_values": noise(1, 3, 3, 28, 28), "image_sizes": size}
    side = 64 if family == "got_ocr2" else 28
    return {"pixel_values": noise(1, 3, side, side)}


def places(family: str, tall: bool = False) -> int:
    """Placeholders of one :func:`picture`."""
    if family in GRID_FAMILIES:
        return 3 if tall else 6
    if family == "pixtral":
        return 4 if tall else 6
    if family in ("llava_next", "llava_onevision"):  # whole, parts, and a mark behind each row of the parts
        return 16 if tall else 14
    return 1 if family == "got_ocr2" else 4


def prompt(
    family: str, before: list[int], after: list[int], seed: int | None = 0, tall: bool = False
) -> dict[str, Any]:
    """Inputs of a prompt with one picture between ``before`` and ``after``, or without one if ``seed`` is ``None``."""
    ids = before + ([] if seed is None else [IMAGE] * places(family, tall)) + after
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
    return inputs if seed is None else inputs | picture(family, seed, tall)


def video(family: str, seed: int = 0) -> dict[str, Tensor]:
    """What the vision tower of ``family`` reads of one clip of four frames."""
    generator = torch.Generator().manual_seed(seed)
    if family == "llava_onevision":
        return {"pixel_values_videos": torch.randn(1, 4, 3, 28, 28, generator=generator)}
    frames = torch.randn(2 * 4 * 2, 3 * 2 * 14 * 14, generator=generator)
    return {"pixel_values_videos": frames, "video_grid_thw": torch.tensor([[2, 4, 2]])}


def video_marks(family: str) -> list[int]:
    """Placeholders of one :func:`video`; some families name the time of each pair of frames."""
    if family == "llava_onevision":
        return [VIDEO] * 5
    if family == "glm_ocr":  # its frames have the placeholders of pictures
        return [106, IMAGE, IMAGE, 20, IMAGE, IMAGE, 21, 107]
    if family == "qwen3_vl":
        return [20, VIDEO, VIDEO, 21, VIDEO, VIDEO]
    return [VIDEO] * 4


def watching(
    family: str, before: list[int], after: list[int], seed: int = 0, pictured: bool = False
) -> dict[str, Any]:
    """Inputs of a prompt with a video, and with ``pictured`` a picture behind it."""
    pictures = [9] + [IMAGE] * places(family) if pictured else []
    ids = before + video_marks(family) + pictures + after
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
    return inputs | video(family, seed) | (picture(family, seed + 1) if pictured else {})


def prompts(family: str) -> list[dict[str, Any]]:
    """A short one, a text-only one, and one with another picture in its middle."""
    return [
        prompt(family, [1], [5, 9, 7]),
        prompt(family, [1, 11, 4, 8, 11], [], seed=None),
        prompt(family, [1, 6, 3], [12, 5, 9, 12, 5], seed=1, tall=True),
    ]


def adapter_of(model: Any) -> Any:
    return ADAPTERS.load(model.config.model_type)(model)


@torch.no_grad()
def open_runner(model: Any, inputs: list[dict[str, Any]], network: Any = None, budget: int = BUDGET) -> Runner:
    adapter = adapter_of(model)
    encoded = [adapter.encode(each) for each in inputs]
    decoder = adapter.decoder(network or model, encoded, torch.device("cpu"))
    return Runner(decoder, Guidance(), budget, 64)


@torch.no_grad()
def run(
    model: Any, inputs: list[dict[str, Any]], drafter: Any = None, temperature: float = 0.0, first: int = 0,
    budget: int = BUDGET,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Decode ``inputs``; row i has the seed of number ``first + i``."""
    longest = max(each["input_ids"].shape[1] for each in inputs)
    padded = torch.stack(
        [torch.nn.functional.pad(e["input_ids"][0], (0, longest - e["input_ids"].shape[1]), value=-1) for e in inputs]
    )
    return decode(
        open_runner(model, inputs, budget=budget), seeds(len(inputs), first), budget, drafter,
        sampling=SamplingParams(temperature), prompt_ids=padded,
        draft_target=lambda network: open_runner(model, inputs, network, budget),
    )  # fmt: skip


@cache
def reading_model(seed: int = 0) -> Any:
    """A tiny random model with the tokens and the processor of the embedded one."""
    from mmspec.training.vlm_tokenizer import SPECIALS, VOCAB_SIZE

    _, _, settings = configs("pixtral")
    vision = {**settings["vision_config"], "patch_size": 16, "image_size": 256}
    text = {**TEXT, "model_type": "llama", "vocab_size": VOCAB_SIZE, "max_position_embeddings": 512}
    config = transformers.LlavaConfig(
        **{**settings, "vision_config": vision, "text_config": text, "image_token_index": SPECIALS.index("<image>")},
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.std() < 0.1:
                parameter.mul_(4)
        model.lm_head.weight[: len(SPECIALS)] = 0  # never the likeliest
    model.generation_config.eos_token_id = None  # its answers would end at once
    return model


def tiny_block(model: Any, seed: int = 3, **settings: Any) -> Any:
    """A random block drafter for ``model``."""
    from mmspec.drafters.block import BlockDrafter
    from mmspec.drafters.fingerprint import fingerprint

    text = model.config.get_text_config()
    sizes = {
        "vocab_size": text.vocab_size, "hidden_size": text.hidden_size, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "intermediate_size": 48, "taps": (1, 2), "block_size": 6, "mask_token_id": 0,
        "target": fingerprint(model),
    }  # fmt: skip
    torch.manual_seed(seed)
    drafter = BlockDrafter(**{**sizes, **settings})
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return drafter.eval()


def tiny_eagle3(model: Any, seed: int = 3, **settings: Any) -> Any:
    """A random EAGLE-3 head for ``model``."""
    from mmspec.drafters.eagle3 import Eagle3Drafter
    from mmspec.drafters.fingerprint import fingerprint

    text = model.config.get_text_config()
    sizes = {
        "vocab_size": text.vocab_size, "hidden_size": text.hidden_size, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "intermediate_size": 48, "taps": (1, 2), "target": fingerprint(model), "num_nodes": 9, "depth": 4, "beam": 3,
        "branching": 3,
    }  # fmt: skip
    torch.manual_seed(seed)
    drafter = Eagle3Drafter(**{**sizes, **settings})
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
        if drafter.config.draft_vocab_size is not None:  # every other token, then the last ones
            drafter.d2t.copy_(torch.arange(drafter.config.draft_vocab_size).clamp_max(text.vocab_size // 2 - 1))
    return drafter.eval()


def tiny_mtp(model: Any, seed: int = 3, **settings: Any) -> Any:
    """A random multi-token-prediction head for ``model``."""
    from mmspec.drafters.fingerprint import fingerprint
    from mmspec.drafters.mtp import MTPDrafter

    text = model.config.get_text_config()
    sizes = {
        "vocab_size": text.vocab_size, "hidden_size": text.hidden_size, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "intermediate_size": 48, "target": fingerprint(model),
    }  # fmt: skip
    torch.manual_seed(seed)
    drafter = MTPDrafter(**{**sizes, **settings})
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return drafter.eval()
