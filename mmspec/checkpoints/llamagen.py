"""Convert released LlamaGen decoders to :class:`~mmspec.image.llamagen.LlamaGenTransformer`.

Two namings exist in public: the authors' (Sun et al., 2024; one fused query-key-value matrix) and the Llama naming of
LANTERN's files (Jang et al., 2025, "LANTERN: Accelerating Visual Autoregressive Models with Relaxed Speculative
Decoding"; split matrices, same row order). Both are read strictly: a tensor missing, left over or of another shape is
an error that names it, because a decoder with a random part still draws pictures, only worse ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mode
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor

from mmspec.checkpoints.reading import check_tensors, read_tensors
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_configs import SIZES, image_grid
from mmspec.models.strict import list_names

Plan = dict[str, list[tuple[str, tuple[int, ...]]]]
"""Tensor of ours -> the released tensors that stack to it, with their shapes."""


@dataclass(frozen=True)
class Layout:
    """Tensor names of one public naming; several names mean row blocks of one matrix of ours, in this order."""

    token_embedding: str
    condition: str  # prefix of the condition's tensors
    norm: str
    head: str
    layer: str  # prefix of the tensors of layer {}
    qkv: tuple[str, ...]
    out: str
    gate_up: tuple[str, str]
    down: str
    attention_norm: str
    feed_forward_norm: str


AUTHORS = Layout(
    token_embedding="tok_embeddings.weight",
    condition="cls_embedding.",
    norm="norm.weight",
    head="output.weight",
    layer="layers.{}.",
    qkv=("attention.wqkv.weight",),
    out="attention.wo.weight",
    gate_up=("feed_forward.w1.weight", "feed_forward.w3.weight"),
    down="feed_forward.w2.weight",
    attention_norm="attention_norm.weight",
    feed_forward_norm="ffn_norm.weight",
)
LANTERN = Layout(
    token_embedding="model.embed_tokens.weight",
    condition="model.cls_embedding.",
    norm="model.norm.weight",
    head="lm_head.weight",
    layer="model.layers.{}.",
    qkv=("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    out="self_attn.o_proj.weight",
    gate_up=("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    down="mlp.down_proj.weight",
    attention_norm="input_layernorm.weight",
    feed_forward_norm="post_attention_layernorm.weight",
)
# The rotary table, which official code may have stored and which the model computes.
_DERIVED = ("freqs_cis",)


def load_llamagen_transformer(
    path: str | Path,
    *,
    image_size: int | tuple[int, int],
    downsample: int = 16,
    num_heads: int | None = None,
    dtype: torch.dtype | None = None,
) -> LlamaGenTransformer:
    """Load a released LlamaGen decoder.

    Args:
        path: File or folder, as in :func:`~mmspec.checkpoints.reading.read_tensors`.
        image_size: Pixels of the picture (side, or height and width) that the weights were trained for; the file does
            not say, and the weights do not carry over to other sizes.
        downsample: Pixels per image token and side, of the VQ model.
        num_heads: Attention heads; by default those of the published size with this width and depth.
        dtype: Type of the weights; by default the file's.

    Raises:
        ValueError: If the file is refused or damaged, or a tensor is missing, unexpected or of another shape.
    """
    name = Path(path).name
    tensors, layout = _identify(read_tensors(path), name)
    config = infer_config(tensors, layout, num_heads, name)
    config["grid_height"], config["grid_width"] = image_grid(image_size, downsample)
    with init_empty_weights():
        model = LlamaGenTransformer(**config)
    fill(model, tensors, plan_decoder(config, layout), name, dtype)
    return model


def fill(model: torch.nn.Module, tensors: dict[str, Tensor], plan: Plan, name: str, dtype: torch.dtype | None) -> None:
    """Give ``model``, made without weights, the tensors that ``plan`` names, and make it ready for inference.

    Args:
        model: The model.
        tensors: The file's tensors, consumed.
        plan: For every tensor of the model, the source tensors that stack to it, with their shapes.
        name: Of the file, for errors.
        dtype: Type of the weights; ``None`` keeps the file's.

    Raises:
        ValueError: If a tensor is missing, unexpected or of another shape.
    """
    check_tensors(tensors, {part: shape for parts in plan.values() for part, shape in parts}, name)
    state = {}
    for target, parts in plan.items():
        rows = [tensors.pop(part).to(dtype=dtype) for part, _ in parts]
        state[target] = torch.cat(rows) if len(rows) > 1 else _own(rows[0])
    model.load_state_dict(state, strict=True, assign=True)
    model.requires_grad_(False).eval()


def convert_llamagen_transformer(
    path: str | Path,
    output: str | Path,
    *,
    image_size: int | tuple[int, int],
    downsample: int = 16,
    num_heads: int | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a released decoder as ``output/transformer`` and return that folder; arguments as in the loader."""
    model = load_llamagen_transformer(
        path, image_size=image_size, downsample=downsample, num_heads=num_heads, dtype=dtype
    )
    folder = Path(output) / "transformer"
    model.save_pretrained(folder)
    return folder


def _identify(tensors: dict[str, Tensor], name: str) -> tuple[dict[str, Tensor], Layout]:
    """Tell the naming by its token embedding, and take off what a trainer put before every name."""
    for layout in (AUTHORS, LANTERN):
        embeddings = [key for key in tensors if ("." + key).endswith("." + layout.token_embedding)]
        if len(embeddings) == 1:
            prefix = embeddings[0].removesuffix(layout.token_embedding)
            stripped = {key.removeprefix(prefix): value for key, value in tensors.items()}
            return {k: v for k, v in stripped.items() if k.rpartition(".")[2] not in _DERIVED}, layout
    raise ValueError(
        f"{name} is no LlamaGen decoder: it has neither {AUTHORS.token_embedding} nor {LANTERN.token_embedding}. "
        f"It holds {list_names(tensors, 5)}."
    )


def infer_config(tensors: Mapping[str, Tensor], layout: Layout, num_heads: int | None, name: str) -> dict[str, Any]:
    """Read the widths off the shapes. Only heads are not in the file; they come from the table of sizes.

    Widths are what most tensors say, so that one misshapen tensor is the one that the shape check names.
    """
    vocab_size = _shape(tensors, layout.token_embedding, 2, name)[0]
    pattern = re.compile(re.escape(layout.layer).replace(r"\{\}", r"(\d+)"))
    layers = {int(match[1]) for key in tensors if (match := pattern.match(key))}
    if not layers:
        raise ValueError(f"{name} holds no tensors named {layout.layer.format('N')}...; it has no layers.")
    num_layers = max(layers) + 1
    common = partial(_common_rows, tensors, layout, num_layers, name)
    hidden_size = common(layout.attention_norm, layout.feed_forward_norm)
    if num_heads is None:
        num_heads = published_heads(hidden_size, num_layers, name)
    key_rows = common(layout.qkv[-1]) if len(layout.qkv) == 3 else (common(layout.qkv[0]) - hidden_size) // 2
    config: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": _kv_heads(key_rows, hidden_size, num_heads),
        "intermediate_size": common(*layout.gate_up),
    }
    return config | _infer_condition(tensors, layout, name)


def _common_rows(tensors: Mapping[str, Tensor], layout: Layout, num_layers: int, name: str, *parts: str) -> int:
    """The most frequent first dimension of some parts of the layers."""
    keys = [layout.layer.format(layer) + part for layer in range(num_layers) for part in parts]
    shapes = [tensors[key].shape for key in keys if key in tensors and tensors[key].ndim > 0]
    if not shapes:
        raise ValueError(f"{name} lacks {len(keys)} tensors: {list_names(keys)}.")
    return mode(shape[0] for shape in shapes)


def published_heads(hidden_size: int, num_layers: int, name: str) -> int:
    for size in SIZES.values():
        if (size.hidden_size, size.num_layers) == (hidden_size, num_layers):
            return size.num_heads
    raise ValueError(
        f"{name} has {num_layers} layers of width {hidden_size}, which is no published size "
        f"({', '.join(SIZES)}). Give `num_heads`, or check that the file is complete."
    )


def _kv_heads(key_rows: int, hidden_size: int, num_heads: int) -> int | None:
    """Heads of keys and values where fewer than of queries; ``None`` also where the shapes make no sense."""
    heads, rest = divmod(key_rows * num_heads, hidden_size)
    sensible = 0 < heads < num_heads and not rest and num_heads % heads == 0
    return heads if sensible else None  # if not, the shape check will name the tensors


def _infer_condition(tensors: Mapping[str, Tensor], layout: Layout, name: str) -> dict[str, Any]:
    null, table = layout.condition + "uncond_embedding", layout.condition + "embedding_table.weight"
    first, second = (layout.condition + f"cap_proj.{layer}.weight" for layer in ("fc1", "fc2"))
    if table in tensors:
        return {
            "condition_length": 1,
            "caption_dim": None,
            "num_classes": _shape(tensors, table, 2, name)[0] - 1,  # the last row is the null class
        }
    if null not in tensors:
        found = "captions" if {first, second} & tensors.keys() else "neither classes nor captions"
        raise ValueError(
            f"{name} is conditioned on {found} and lacks {null}"
            + ("" if found == "captions" else f" or {table}")
            + ". The null embedding is part of the weights: with another one, guidance spoils the pictures silently."
        )
    condition_length, caption_dim = _shape(tensors, null, 2, name)
    return {"condition_length": condition_length, "caption_dim": caption_dim, "num_classes": None}


def _shape(tensors: Mapping[str, Tensor], key: str, dimensions: int, name: str) -> tuple[int, ...]:
    if key not in tensors:
        raise ValueError(f"{name} lacks the tensor {key}.")
    shape = tuple(tensors[key].shape)
    if len(shape) != dimensions:
        raise ValueError(f"{key} of {name} has shape {shape}; it must have {dimensions} dimensions.")
    return shape


def plan_decoder(config: Mapping[str, Any], layout: Layout) -> Plan:
    """For every tensor of ours, the source tensors that stack to it, with their shapes."""
    width, vocabulary, inner = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    key_width = (config["num_kv_heads"] or config["num_heads"]) * (width // config["num_heads"])
    qkv_rows = (width + 2 * key_width,) if len(layout.qkv) == 1 else (width, key_width, key_width)
    plan: Plan = {
        "token_embedding.weight": [(layout.token_embedding, (vocabulary, width))],
        "norm.weight": [(layout.norm, (width,))],
        "head.weight": [(layout.head, (vocabulary, width))],
    }
    if config["num_classes"] is not None:
        classes = (config["num_classes"] + 1, width)
        plan["class_embedding.weight"] = [(layout.condition + "embedding_table.weight", classes)]
    if config["caption_dim"] is not None:
        null = (config["condition_length"], config["caption_dim"])
        plan["null_caption"] = [(layout.condition + "uncond_embedding", null)]
        plan["caption_projection.input.weight"] = [(layout.condition + "cap_proj.fc1.weight", (width, null[1]))]
        plan["caption_projection.output.weight"] = [(layout.condition + "cap_proj.fc2.weight", (width, width))]
    for layer in range(config["num_layers"]):
        ours, theirs = f"layers.{layer}.", layout.layer.format(layer)
        plan |= {
            ours + "attention.qkv.weight": [
                (theirs + n, (r, width)) for n, r in zip(layout.qkv, qkv_rows, strict=True)
            ],
            ours + "attention.out.weight": [(theirs + layout.out, (width, width))],
            ours + "feed_forward.gate_up.weight": [(theirs + name, (inner, width)) for name in layout.gate_up],
            ours + "feed_forward.down.weight": [(theirs + layout.down, (width, inner))],
            ours + "attention_norm.weight": [(theirs + layout.attention_norm, (width,))],
            ours + "feed_forward_norm.weight": [(theirs + layout.feed_forward_norm, (width,))],
        }
    return plan


def _own(tensor: Tensor) -> Tensor:
    """A contiguous tensor with storage to itself; one cut from a larger buffer could not be saved alone."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole and tensor.is_contiguous() else tensor.clone(memory_format=torch.contiguous_format)
