"""Convert LANTERN's drafters for LlamaGen (Jang et al., 2025) to :class:`~mmspec.drafters.feature.FeatureDrafter`.

Their files hold one or more Llama layers, the joint projection ``fc`` of embedding and state, and a frozen embedding.
The first layer reads its input without a norm. The embedding is not always the target's (single-file targets gave their
output head in its place), so it is kept unless the target is named and has the same. Padded caption slots are seen, as
in their training. Everything is read strictly.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.checkpoints.reading import check_tensors, read_tensors
from mmspec.drafters.feature import FeatureDrafter
from mmspec.drafters.fingerprint import fingerprint
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_configs import SIZES
from mmspec.models.strict import list_names

_QKV = ("q_proj", "k_proj", "v_proj")
#: the published dynamic tree: ten beams, ten children each, five levels, 58 nodes and the root
PUBLISHED_TREE: dict[str, Any] = {"tree": "dynamic", "num_nodes": 59, "depth": 5, "beam": 10, "branching": 10}


def load_lantern_drafter(
    path: str | Path,
    *,
    target: LlamaGenTransformer | None = None,
    num_heads: int | None = None,
    norm_eps: float = 1e-5,
    dtype: torch.dtype | None = None,
) -> FeatureDrafter:
    """Load a published drafter.

    Args:
        path: File or folder, as in :func:`~mmspec.checkpoints.reading.read_tensors`.
        target: The converted decoder that it drafts for; then sizes are checked, the drafter remembers it, and an
            embedding that equals the target's is dropped.
        num_heads: Attention heads; by default those of ``target``, or of the published size with this width.
        norm_eps: Of the layers' norms; the file does not say.
        dtype: Type of the weights; by default the file's.

    Raises:
        ValueError: If the file is refused or damaged, a tensor is missing, unexpected or of another shape, or the
            drafter does not fit ``target``.
    """
    name = Path(path).name
    tensors = _strip(read_tensors(path), name)
    config = _infer_config(tensors, name, target, num_heads)
    plan = _plan(config)
    check_tensors(tensors, {part: shape for parts in plan.values() for part, shape in parts}, name)
    if target is not None:
        _check_sizes(config, target, name)
        config["target"] = fingerprint(target)
        ours = target.token_embedding.weight
        if torch.equal(tensors["embed_tokens.weight"].to(ours), ours):
            config["own_embedding"] = False
            del plan["token_embedding.weight"]
    state = {}
    for ours_name, parts in plan.items():
        rows = [tensors[part].to(dtype=dtype) for part, _ in parts]
        state[ours_name] = torch.cat(rows) if len(rows) > 1 else rows[0].contiguous().clone()
    with torch.device("meta"):
        drafter = FeatureDrafter(**config, norm_eps=norm_eps, **PUBLISHED_TREE)
    drafter.load_state_dict(state, strict=True, assign=True)
    return drafter.requires_grad_(False).eval()


def convert_lantern_drafter(
    path: str | Path,
    output: str | Path,
    *,
    target: str | Path | None = None,
    num_heads: int | None = None,
    norm_eps: float = 1e-5,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a published drafter as a folder that ``FeatureDrafter.from_pretrained`` loads.

    Args:
        path: File or folder of the drafter.
        output: Folder to make; it must not exist or be empty.
        target: Folder of the converted pipeline that it drafts for.
        num_heads, norm_eps, dtype: As for :func:`load_lantern_drafter`.

    Raises:
        FileExistsError: If ``output`` holds something.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")
    transformer = None
    if target is not None:
        transformer = LlamaGenTransformer.from_pretrained(target, subfolder="transformer")
    load_lantern_drafter(
        path, target=transformer, num_heads=num_heads, norm_eps=norm_eps, dtype=dtype
    ).save_pretrained(output)
    return output


def _strip(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Take off what a trainer put before every name; ValueError if this is no drafter."""
    found = [key for key in tensors if ("." + key).endswith(".fc.weight")]
    if len(found) != 1:
        raise ValueError(
            f"{name} is no LANTERN drafter: it has no single fc.weight. It holds {list_names(tensors, 5)}."
        )
    prefix = found[0].removesuffix("fc.weight")
    return {key.removeprefix(prefix): value for key, value in tensors.items()}


def _infer_config(
    tensors: dict[str, Tensor], name: str, target: LlamaGenTransformer | None, num_heads: int | None
) -> dict[str, Any]:
    """Read the widths off the shapes; heads come from the target or the table of published sizes."""
    needed = ("fc.weight", "embed_tokens.weight", "layers.0.mlp.gate_proj.weight", "layers.0.self_attn.k_proj.weight")
    if missing := [key for key in needed if key not in tensors or tensors[key].ndim != 2]:
        raise ValueError(f"{name} lacks the tensors {list_names(missing)}, or they are no matrices.")
    layers = {int(match[1]) for key in tensors if (match := re.match(r"layers\.(\d+)\.", key))}
    width = tensors["fc.weight"].shape[0]
    if num_heads is None:
        known = {size.hidden_size: size.num_heads for size in SIZES.values()}
        if target is not None:
            num_heads = target.config.num_heads
        elif width in known:
            num_heads = known[width]
        else:
            raise ValueError(f"{name} has width {width}, which is no published size; give `num_heads`, or `target`.")
    assert num_heads is not None
    heads, rest = divmod(tensors["layers.0.self_attn.k_proj.weight"].shape[0] * num_heads, width)
    sensible = 0 < heads < num_heads and not rest and num_heads % heads == 0
    return {
        "vocab_size": tensors["embed_tokens.weight"].shape[0],
        "hidden_size": width,
        "num_heads": num_heads,
        "num_kv_heads": heads if sensible else None,  # if not, the shape check names the tensors
        "intermediate_size": tensors["layers.0.mlp.gate_proj.weight"].shape[0],
        "num_layers": max(layers) + 1,
        "input_norm": False,
        "joint_bias": "fc.bias" in tensors,
        "own_embedding": True,
        "mask_padding": False,
    }


def _plan(config: dict[str, Any]) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """For every tensor of ours, the source tensors that stack to it, with their shapes."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    key_width = (config["num_kv_heads"] or config["num_heads"]) * (width // config["num_heads"])
    plan: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "token_embedding.weight": [("embed_tokens.weight", (config["vocab_size"], width))],
        "joint.weight": [("fc.weight", (width, 2 * width))],
    }
    if config["joint_bias"]:
        plan["joint.bias"] = [("fc.bias", (width,))]
    for layer in range(config["num_layers"]):
        name = f"layers.{layer}."
        rows = zip(_QKV, (width, key_width, key_width), strict=True)
        plan |= {
            name + "attention.qkv.weight": [(f"{name}self_attn.{part}.weight", (size, width)) for part, size in rows],
            name + "attention.out.weight": [(f"{name}self_attn.o_proj.weight", (width, width))],
            name + "feed_forward.gate_up.weight": [
                (f"{name}mlp.{part}.weight", (inner, width)) for part in ("gate_proj", "up_proj")
            ],
            name + "feed_forward.down.weight": [(f"{name}mlp.down_proj.weight", (width, inner))],
            name + "feed_forward_norm.weight": [(f"{name}post_attention_layernorm.weight", (width,))],
        }
        if layer:
            plan[name + "attention_norm.weight"] = [(f"{name}input_layernorm.weight", (width,))]
    return plan


def _check_sizes(config: dict[str, Any], target: LlamaGenTransformer, name: str) -> None:
    for size in ("vocab_size", "hidden_size"):
        if config[size] != target.config[size]:
            raise ValueError(
                f"{name} was made for another target: its `{size}` is {config[size]}, the target's {target.config[size]}."
            )
