"""Convert released RandAR and ARPG decoders, and write them with their VQ tokenizer as a pipeline folder.

RandAR (Pang et al., 2024) has LlamaGen's names and ``pos_instruct_embeddings``; ARPG (Li et al., 2025) has names of its own.
Both are read strictly: a tensor missing, left over or of another shape is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor

from mmspec.checkpoints.llamagen import AUTHORS, Plan, fill, infer_config, plan_decoder, published_heads
from mmspec.checkpoints.llamagen_vq import load_llamagen_vq
from mmspec.checkpoints.reading import read_tensors
from mmspec.image.arpg import ARPGTransformer
from mmspec.image.llamagen_configs import image_grid
from mmspec.image.randar import RandARTransformer
from mmspec.image.vq import downsample_factor

_QUERY = "pos_instruct_embeddings"
_DERIVED = "freqs_cis"
_SPARE_ROWS = 3  # of ARPG's embedding, beside codes and classes: the query, the null class and one that is not used


def load_randar(
    path: str | Path,
    *,
    image_size: int | tuple[int, int] = 256,
    downsample: int = 16,
    num_heads: int | None = None,
    dtype: torch.dtype | None = None,
) -> RandARTransformer:
    """Load a released RandAR decoder.

    Args:
        path: File or folder, as in :func:`~mmspec.checkpoints.reading.read_tensors`.
        image_size: Pixels of the picture that the weights were trained for; the file does not say.
        downsample: Pixels per image token and side, of the VQ model.
        num_heads: Attention heads; by default those of the published size with this width and depth.
        dtype: Type of the weights; by default the file's.

    Raises:
        ValueError: If the file is refused or damaged, or a tensor is missing, unexpected or of another shape.
    """
    name, tensors = Path(path).name, read_tensors(path, ignore=_DERIVED)
    if _QUERY not in tensors:
        raise ValueError(f"{name} is no RandAR decoder: it lacks {_QUERY}.")
    query = tensors.pop(_QUERY)
    config = infer_config(tensors, AUTHORS, num_heads, name)
    if config["num_classes"] is None or config["num_kv_heads"] is not None:
        raise ValueError(f"{name} is no RandAR decoder: those have classes, and a key for every query head.")
    plan = plan_decoder(config, AUTHORS) | {"query_embedding": [(_QUERY, (config["hidden_size"],))]}
    tensors[_QUERY] = query.flatten()  # (1, D), or with a middle axis
    for superfluous in ("caption_dim", "condition_length", "num_kv_heads"):
        del config[superfluous]
    config["grid_height"], config["grid_width"] = image_grid(image_size, downsample)
    with init_empty_weights():
        model = RandARTransformer(**config)
    fill(model, tensors, plan, name, dtype)
    return model


def load_arpg(
    path: str | Path,
    *,
    image_size: int | tuple[int, int] = 256,
    downsample: int = 16,
    num_heads: int | None = None,
    dtype: torch.dtype | None = None,
) -> ARPGTransformer:
    """Load a released ARPG decoder; arguments and errors as in :func:`load_randar`."""
    name, tensors = Path(path).name, read_tensors(path, ignore=_DERIVED)
    config = _arpg_config(tensors, num_heads, name)
    config["grid_height"], config["grid_width"] = image_grid(image_size, downsample)
    with init_empty_weights():
        model = ARPGTransformer(**config)
    fill(model, tensors, _arpg_plan(config), name, dtype)
    return model


def _arpg_config(tensors: Mapping[str, Tensor], num_heads: int | None, name: str) -> dict[str, Any]:
    needed = ("embeddings.weight", "head.weight", "layers.self_dec.0.ffn.w1.weight")
    if lacking := [key for key in needed if key not in tensors or tensors[key].ndim != 2]:
        raise ValueError(f"{name} is no ARPG decoder: it lacks {', '.join(lacking)}.")
    rows, width = tensors[needed[0]].shape
    layers = [int(match[1]) for key in tensors if (match := re.match(r"layers\.self_dec\.(\d+)\.", key))]
    vocab_size, num_layers = len(tensors[needed[1]]), 2 * (max(layers) + 1)
    return {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_layers": num_layers,
        "num_heads": num_heads or published_heads(width, num_layers, name),
        "intermediate_size": len(tensors[needed[2]]),
        "num_classes": rows - vocab_size - _SPARE_ROWS,
    }


def _arpg_plan(config: Mapping[str, Any]) -> Plan:
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    square = (width, width)
    plan: Plan = {
        "embedding.weight": [("embeddings.weight", (vocabulary + config["num_classes"] + _SPARE_ROWS, width))],
        "content_norm.weight": [("layers.norm.weight", (width,))],
        "key.weight": [("layers.to_k.weight", square)],
        "value.weight": [("layers.to_v.weight", square)],
        "norm.weight": [("norm.weight", (width,))],
        "head.weight": [("head.weight", (vocabulary, width))],
    }
    for layer in range(config["num_layers"] // 2):
        content, query = f"layers.self_dec.{layer}.", f"layers.cross_dec.{layer}."
        plan |= {
            f"content.{layer}.attention.qkv.weight": [
                (f"{content}attn.{part}.weight", square) for part in ("to_q", "to_k", "to_v")
            ],
            f"content.{layer}.attention.out.weight": [(content + "attn.proj.weight", square)],
            f"queries.{layer}.query.weight": [(query + "attn.to_q.weight", square)],
            f"queries.{layer}.out.weight": [(query + "attn.proj.weight", square)],
        }
        for ours, theirs in ((f"content.{layer}.", content), (f"queries.{layer}.", query)):
            plan |= {
                ours + "feed_forward.gate_up.weight": [
                    (f"{theirs}ffn.{w}.weight", (inner, width)) for w in ("w1", "w3")
                ],
                ours + "feed_forward.down.weight": [(theirs + "ffn.w2.weight", (width, inner))],
                ours + "attention_norm.weight": [(theirs + "attn_norm.weight", (width,))],
                ours + "feed_forward_norm.weight": [(theirs + "ffn_norm.weight", (width,))],
            }
    return plan


LOADERS: dict[str, Callable[..., RandARTransformer | ARPGTransformer]] = {"randar": load_randar, "arpg": load_arpg}


def convert_any_order(
    kind: str,
    transformer_file: str | Path,
    vq_file: str | Path,
    output: str | Path,
    *,
    image_size: int | tuple[int, int] = 256,
    num_heads: int | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Convert a released decoder of ``kind`` ``randar`` or ``arpg`` and its VQ tokenizer to a pipeline folder.

    Args:
        kind: Which decoder.
        transformer_file, vq_file: The decoder, and the LlamaGen VQ tokenizer that it was trained on.
        output: Folder to make; it must not exist or be empty.
        image_size, num_heads, dtype: See :func:`load_randar`.

    Returns:
        ``output``.

    Raises:
        ValueError: If a file is refused or damaged, or the parts do not fit one another.
        FileExistsError: If ``output`` holds something.
    """
    output = Path(output)
    if kind not in LOADERS:
        raise ValueError(f"Unknown kind {kind!r}; choose one of {', '.join(LOADERS)}.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")
    vq = load_llamagen_vq(vq_file)
    transformer = LOADERS[kind](
        transformer_file, image_size=image_size, downsample=downsample_factor(vq), num_heads=num_heads, dtype=dtype
    )
    from mmspec.pipelines.any_order import AnyOrderPipeline  # the import brings in all of diffusers' pipelines

    AnyOrderPipeline(transformer, vq).save_pretrained(output)
    return output
