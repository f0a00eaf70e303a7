"""The multi-token-prediction head of GLM-OCR, which lies in its checkpoint behind the layers of the language model and which
transformers leaves out: reading and writing.

The head is layer N of the names ``model.language_model.layers.N.``, where the language model has N layers: two norms
(``enorm`` of the embedding, ``hnorm`` of the state), their joint projection ``eh_proj``, one decoder layer, and the norm
before the output head (``shared_head.norm``). It rotates neighbours of a head, ours halves; so the rows of queries and keys
are re-ordered here, which changes no product of the two. Copies of embedding and output head may lie beside it.

Symbols: N layers, D hidden size, H heads, P head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.checkpoints.drafter_fields import check_given, first_given, rope_theta_of, write_drafter
from mmspec.checkpoints.reading import check_tensors, read_part
from mmspec.drafters.base import hidden_size_of
from mmspec.drafters.fingerprint import fingerprint
from mmspec.drafters.mtp import MTPDrafter
from mmspec.models.loading import read_json

_PREFIXES = ("model.language_model.layers", "model.layers")
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")
_SIZES = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads", "intermediate_size": "intermediate_size", "rms_norm_eps": "norm_eps",
}  # fmt: skip
_OUTSIDE = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "norm"}


def load_glm_ocr_mtp(
    folder: str | Path, *, target: Any = None, dtype: torch.dtype | None = None, **settings: Any
) -> MTPDrafter:
    """Load the head of a GLM-OCR checkpoint.

    Args:
        folder: With ``config.json`` and safetensors, of which only the head's are read.
        target: The model that it drafts for; then sizes are checked and the drafter remembers it.
        dtype: Type of the weights; by default the file's.
        settings: Of :class:`MTPDrafter` that say how to draft, such as ``num_nodes``.

    Raises:
        ValueError: If the checkpoint is of another kind or has no head or several, a tensor is missing, unexpected or of
            another shape, or the head does not fit ``target``.
    """
    folder = Path(folder)
    theirs, name = read_json(folder / "config.json"), str(folder)
    text = theirs.get("text_config") or {}
    if theirs.get("model_type") != "glm_ocr":
        raise ValueError(f"{name} holds a {theirs.get('model_type')!r} model; MTP heads are read of 'glm_ocr'.")
    heads = text.get("num_nextn_predict_layers")
    if heads != 1:
        raise ValueError(f"{name} says that it has {heads} MTP heads (num_nextn_predict_layers); one is read.")
    config = _translate(text, name)
    tensors = _tensors(folder, int(text["num_hidden_layers"]), name)
    if target is not None:
        _check_target(config, tensors, target, name)
        config["target"] = fingerprint(target)
    with torch.device("meta"):
        drafter = MTPDrafter(**{**config, **settings})
    state = _renamed({key: value for key, value in tensors.items() if key not in _COPIES}, config)
    check_tensors(state, {key: tuple(value.shape) for key, value in drafter.state_dict().items()}, name)
    drafter.load_state_dict({key: value.to(dtype or value.dtype) for key, value in state.items()}, assign=True)
    return drafter.requires_grad_(False).eval()


def save_glm_ocr_mtp(drafter: MTPDrafter, folder: str | Path, num_target_layers: int) -> Path:
    """Write the head as GLM-OCR's checkpoint holds it, with what its ``config.json`` says of it and without the target.

    Args:
        drafter: What to write.
        folder: Where; made if need be.
        num_target_layers: Layers of the target's language model.

    Raises:
        ValueError: If the head is of another build than GLM-OCR's.
    """
    ours = drafter.config
    if ours.mrope_section is None or not ours.sandwich_norms or ours.norm_output or ours.compression:
        raise ValueError(
            "GLM-OCR's head has `mrope_section`, `sandwich_norms`, no `norm_output` and no `compression`; this one is of another build."
        )
    text = {
        **{theirs: ours[name] for theirs, name in _SIZES.items()}, "head_dim": ours.head_dim,
        "num_hidden_layers": num_target_layers, "num_nextn_predict_layers": 1,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": ours.rope_theta, "mrope_section": list(ours.mrope_section),
            "partial_rotary_factor": 1.0,
        },
    }  # fmt: skip
    config = {"model_type": "glm_ocr", "text_config": text, "mmspec": {"target": ours.target}}
    named = _original(drafter.state_dict(), ours)
    return write_drafter(
        Path(folder), config, {f"{_PREFIXES[0]}.{num_target_layers}.{key}": value for key, value in named.items()}
    )


def _translate(text: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of an :class:`MTPDrafter` from the configuration of the language model."""
    rope = dict(text.get("rope_parameters") or text.get("rope_scaling") or {})
    section = rope.pop("mrope_section", None)
    if first_given(rope.pop("partial_rotary_factor", None), text.get("partial_rotary_factor"), 1.0) != 1.0:
        raise ValueError(f"{name} rotates a part of each head only (partial_rotary_factor), which is not read.")
    wanted = {field: text.get(field) for field in (*_SIZES, "num_hidden_layers")}
    wanted["rope_theta"] = rope_theta_of({"rope_parameters": rope, "rope_theta": text.get("rope_theta")}, name)
    wanted["mrope_section"] = section
    check_given(wanted, name)
    whole = int(text["hidden_size"]) // int(text["num_attention_heads"])
    return {
        **{ours: wanted[field] for field, ours in _SIZES.items()},
        "head_dim": int(first_given(text.get("head_dim"), whole)), "rope_theta": wanted["rope_theta"],
        "mrope_section": list(section or ()), "sandwich_norms": True, "norm_output": False,
    }  # fmt: skip


def _tensors(folder: Path, layer: int, name: str) -> dict[str, Tensor]:
    """The tensors of the head, by their names within it."""
    for prefix in _PREFIXES:
        found = read_part(folder, start := f"{prefix}.{layer}.")
        if found:
            return {key.removeprefix(start): value for key, value in found.items()}
    raise ValueError(f"{name} holds no tensor of an MTP head, whose names begin with {_PREFIXES[0]}.{layer}.")


def _check_target(config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Any, name: str) -> None:
    if config["hidden_size"] != hidden_size_of(target):
        raise ValueError(
            f"{name} has a hidden size of {config['hidden_size']}, the target's is {hidden_size_of(target)}."
        )
    own = {_COPIES[0]: target.get_input_embeddings().weight, _COPIES[1]: target.get_output_embeddings().weight}
    for key, weight in own.items():
        if weight.shape[0] != config["vocab_size"]:
            raise ValueError(f"{name} has a vocabulary of {config['vocab_size']}, the target's is {weight.shape[0]}.")
        copy = tensors.get(key)
        if copy is not None and not torch.allclose(copy.to(weight.device, weight.dtype), weight, atol=1e-2):
            raise ValueError(f"{name} has another {key} than the target; a head with one of its own is not read.")


def _renamed(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Our names, gate and up apart, and halves instead of neighbours in queries and keys."""
    outside = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in _OUTSIDE.items()}
    state: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if key == "mlp.gate_up_proj.weight":
            gate, up = value.chunk(2, dim=0)
            state["layer.mlp.gate_proj.weight"], state["layer.mlp.up_proj.weight"] = gate, up
        elif key in outside:
            state[outside[key]] = value
        else:
            turned = key in ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
            state[f"layer.{key}"] = _to_halves(value, config["head_dim"]) if turned else value
    return state


def _original(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The inverse of :func:`_renamed`."""
    outside = {f"{ours}.weight": f"{theirs}.weight" for theirs, ours in _OUTSIDE.items()}
    named: dict[str, Tensor] = {}
    for key, value in state.items():
        inner = key.removeprefix("layer.")
        if inner in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            continue
        turned = inner in ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
        named[outside.get(key, inner)] = _to_pairs(value, config["head_dim"]) if turned else value
    named["mlp.gate_up_proj.weight"] = torch.cat([state[f"layer.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    return named


def _to_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Rows (H * P, D) with the first of every pair of a head before the second of every pair."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def _to_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """The inverse of :func:`_to_halves`."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
