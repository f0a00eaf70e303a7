"""Convert released Cosmos autoregressive decoders to :class:`~mmspec.image.video_ar.VideoARTransformer`.

Files of ``nvidia/Cosmos-Predict1-4B``, ``-12B``, ``-5B-Video2World`` and ``-13B-Video2World`` (``model.pt``). They name
split matrices; ours are fused, same row order. The rotary pairing is the half-split one, so that no rows are permuted.
Angles and absolute embeddings are derived, never stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor

from mmspec.checkpoints.reading import check_tensors, read_tensors
from mmspec.image.video_ar import VideoARTransformer

Shape = tuple[int, ...]
Plan = dict[str, list[tuple[str, Shape]]]
"""Tensor of ours -> the released tensors that stack to it, with their shapes."""

YARN = {"yarn_scale": 2.0, "yarn_beta_fast": 4.0, "yarn_beta_slow": 1.0}
"""The stretch of the 12B and 13B models, from clips of (3, 40, 64)."""
_YARN_LAYERS = 40
_LAYER = re.compile(r"layers\.(\d+)\.")


def load_cosmos_ar(
    path: str | Path,
    *,
    latent_shape: tuple[int, int, int] = (5, 40, 64),
    yarn: bool | None = None,
    dtype: torch.dtype | None = None,
) -> VideoARTransformer:
    """Load a released Cosmos decoder.

    Args:
        path: File or folder, as in :func:`~mmspec.checkpoints.reading.read_tensors`.
        latent_shape: Latent frames, rows and columns that the weights were trained for; the file does not say.
        yarn: Whether rotary frequencies are stretched; by default those of models with 40 layers are.
        dtype: Type of the weights; by default the file's.

    Raises:
        ValueError: If the file is refused or damaged, or a tensor is missing, unexpected or of another shape.
    """
    name = Path(path).name
    tensors = {key.removeprefix("model."): value for key, value in read_tensors(path, ignore="_extra_state").items()}
    config = infer_config(tensors, name)
    config["latent_shape"] = latent_shape
    if yarn or (yarn is None and config["num_layers"] == _YARN_LAYERS):
        config |= YARN
    with init_empty_weights():
        model = VideoARTransformer(**config)
    plan = _plan(config)
    check_tensors(tensors, {part: shape for parts in plan.values() for part, shape in parts}, name)
    state = {}
    for target, parts in plan.items():
        rows = [tensors.pop(part).to(dtype=dtype) for part, _ in parts]
        state[target] = torch.cat(rows) if len(rows) > 1 else rows[0].clone()
    model.load_state_dict(state, strict=True, assign=True)
    return model.requires_grad_(False).eval()


def infer_config(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Read the widths off the shapes.

    Raises:
        ValueError: If what tells them is missing.
    """
    first = "layers.0.attention."
    needed = ["tok_embeddings.weight", "output.weight", "layers.0.feed_forward.w1.weight"]
    needed += [f"{first}{part}.weight" for part in ("wq", "wk", "q_norm")]
    if lacking := [key for key in needed if key not in tensors]:
        raise ValueError(f"{name} is no Cosmos decoder: it lacks {', '.join(lacking)}.")
    rows, width = tensors[needed[0]].shape
    vocab_size, head_dim = len(tensors["output.weight"]), len(tensors[f"{first}q_norm.weight"])
    crossing = "layers.0.cross_attention.wk.weight"
    by_text = crossing in tensors
    return {
        "vocab_size": vocab_size,
        "num_embeddings": rows,
        "begin_token": vocab_size if by_text else None,
        "hidden_size": width,
        "num_layers": 1 + max(int(match[1]) for key in tensors if (match := _LAYER.match(key))),
        "num_heads": len(tensors[f"{first}wq.weight"]) // head_dim,
        "num_kv_heads": len(tensors[f"{first}wk.weight"]) // head_dim,
        "head_dim": head_dim,
        "intermediate_size": len(tensors[needed[2]]),
        "context_dim": tensors[crossing].shape[1] if by_text else None,
        "absolute_positions": by_text,
    }


def _plan(config: Mapping[str, Any]) -> Plan:
    width, head_dim = config["hidden_size"], config["head_dim"]
    plan: Plan = {
        "token_embedding.weight": [("tok_embeddings.weight", (config["num_embeddings"], width))],
        "norm.weight": [("norm.weight", (width,))],
        "head.weight": [("output.weight", (config["vocab_size"], width))],
    }
    queries, keys = config["num_heads"] * head_dim, config["num_kv_heads"] * head_dim
    inner = config["intermediate_size"]
    for layer in range(config["num_layers"]):
        own = f"layers.{layer}."
        parts: Plan = {
            "attention.qkv.weight": [
                ("attention.wq.weight", (queries, width)),
                ("attention.wk.weight", (keys, width)),
                ("attention.wv.weight", (keys, width)),
            ],
            "attention_norm.weight": [("attention_norm.weight", (width,))],
            "feed_forward.gate_up.weight": [(f"feed_forward.{w}.weight", (inner, width)) for w in ("w1", "w3")],
            "feed_forward.down.weight": [("feed_forward.w2.weight", (width, inner))],
            "feed_forward_norm.weight": [("ffn_norm.weight", (width,))],
        }
        parts |= _common("attention", width, queries, head_dim)
        if (context := config["context_dim"]) is not None:
            parts |= {
                "cross_attention.query.weight": [("cross_attention.wq.weight", (queries, width))],
                "cross_attention.key_value.weight": [
                    (f"cross_attention.{w}.weight", (keys, context)) for w in ("wk", "wv")
                ],
                "cross_attention_norm.weight": [("cross_attention_norm.weight", (width,))],
            }
            parts |= _common("cross_attention", width, queries, head_dim)
        plan |= {own + target: [(own + part, shape) for part, shape in sources] for target, sources in parts.items()}
    return plan


def _common(attention: str, width: int, queries: int, head_dim: int) -> Plan:
    return {
        f"{attention}.out.weight": [(f"{attention}.wo.weight", (width, queries))],
        f"{attention}.query_norm.weight": [(f"{attention}.q_norm.weight", (head_dim,))],
        f"{attention}.key_norm.weight": [(f"{attention}.k_norm.weight", (head_dim,))],
    }
