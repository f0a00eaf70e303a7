"""Block drafters in the layout of z-lab's DFlash releases, which SGLang and vLLM serve: reading and writing.

The tensors bear the same names. In the configuration ``target_layer_ids`` counts the target's layers from 0, by their
outputs; :class:`~mmspec.drafters.block.BlockDrafter` counts from 1, so ``taps`` are one more. An error of one there raises
nothing anywhere and only stops drafts from being accepted. Variants with further heads or sliding layers are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mmspec.checkpoints.reading import check_tensors, read_tensors
from mmspec.drafters.base import hidden_size_of
from mmspec.drafters.block import BlockDrafter
from mmspec.drafters.fingerprint import fingerprint
from mmspec.models.loading import read_json

_SIZES = {
    "hidden_size": "hidden_size", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads", "head_dim": "head_dim", "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size", "rms_norm_eps": "norm_eps",
}  # fmt: skip
"""Field of their configuration -> setting of ours."""


def load_dflash_drafter(
    folder: str | Path, *, target: Any = None, dtype: torch.dtype | None = None, **settings: Any
) -> BlockDrafter:
    """Load a drafter as z-lab publishes it.

    Args:
        folder: With ``config.json`` and safetensors.
        target: The model that it drafts for; then sizes are checked and the drafter remembers it.
        dtype: Type of the weights; by default the file's.
        settings: Of :class:`BlockDrafter` that say how to draft, such as ``num_nodes``.

    Raises:
        ValueError: If the configuration is of another kind, a tensor is missing, unexpected or of another shape, or the
            drafter does not fit ``target``.
    """
    folder = Path(folder)
    config = _translate(read_json(folder / "config.json"), str(folder))
    if target is not None:
        _check_target(config, target, str(folder))
        config["target"] = fingerprint(target)
    with torch.device("meta"):
        drafter = BlockDrafter(**config, **settings)
    tensors = read_tensors(folder)
    check_tensors(tensors, {name: tuple(value.shape) for name, value in drafter.state_dict().items()}, str(folder))
    drafter.load_state_dict({name: value.to(dtype or value.dtype) for name, value in tensors.items()}, assign=True)
    return drafter.requires_grad_(False).eval()


def save_dflash_drafter(drafter: BlockDrafter, folder: str | Path, num_target_layers: int) -> Path:
    """Write ``drafter`` as z-lab publishes theirs.

    Args:
        drafter: What to write.
        folder: Where; made if need be.
        num_target_layers: Layers of the target.

    Raises:
        ValueError: If a layer that the drafter reads is not below the target's last.
    """
    ours = drafter.config
    if ours.taps[-1] >= num_target_layers:
        raise ValueError(f"`num_target_layers` is {num_target_layers}, but the drafter reads layer {ours.taps[-1]}.")
    config = {
        "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3", "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False,
        **{theirs: ours[name] for theirs, name in _SIZES.items()},
        "rope_theta": ours.rope_theta, "rope_scaling": None, "sliding_window": None,
        "layer_types": ["full_attention"] * ours.num_layers, "num_target_layers": num_target_layers,
        "block_size": ours.block_size, "dtype": str(drafter.dtype).removeprefix("torch."),
        "dflash_config": {"mask_token_id": ours.mask_token_id, "target_layer_ids": [tap - 1 for tap in ours.taps]},
        # read by nobody else: what the file alone does not say
        "mmspec": {"taps": list(ours.taps), "capture": "layer_output", "positions": "stream", "target": ours.target},
    }  # fmt: skip
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in drafter.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def _translate(theirs: dict[str, Any], name: str) -> dict[str, Any]:
    """Settings of a :class:`BlockDrafter` from their configuration."""
    inner = theirs.get("dflash_config") or {}
    kind = (theirs.get("architectures") or [""])[0]
    if kind != "DFlashDraftModel" or inner.get("projector_type") not in (None, "dflash"):
        raise ValueError(f"{name} holds a {kind or 'model without a name'} {inner.get('projector_type', '')}; only plain "
                         "DFlashDraftModel drafters are read.")  # fmt: skip
    if sliding := set(theirs.get("layer_types") or []) - {"full_attention"}:
        raise ValueError(f"{name} has layers {sorted(sliding)}; only 'full_attention' is read.")
    rope = theirs.get("rope_parameters") or {}
    scaling = theirs.get("rope_scaling") or {}
    if (rope | scaling).get("rope_type", (rope | scaling).get("type", "default")) != "default":
        raise ValueError(f"{name} scales its positions ({rope or scaling}), which is not read.")
    wanted = {
        **{field: theirs.get(field) for field in _SIZES},
        "rope_theta": _first(theirs.get("rope_theta"), rope.get("rope_theta")),
        "block_size": _first(theirs.get("block_size"), inner.get("block_size")),
        "mask_token_id": _first(inner.get("mask_token_id"), theirs.get("mask_token_id")),
        "target_layer_ids": _first(inner.get("target_layer_ids"), theirs.get("target_layer_ids")),
    }
    if missing := sorted(field for field, value in wanted.items() if value is None):
        raise ValueError(f"{name} lacks {', '.join(missing)} in its config.json.")
    return {
        **{ours: wanted[field] for field, ours in _SIZES.items()},
        **{field: wanted[field] for field in ("rope_theta", "block_size", "mask_token_id")},
        "taps": [int(layer) + 1 for layer in wanted["target_layer_ids"]],
        "target": (theirs.get("mmspec") or {}).get("target"),
    }


def _first(*values: Any) -> Any:
    """The first value that is given; older and newer files keep a field in different places."""
    return next((value for value in values if value is not None), None)


def _check_target(config: dict[str, Any], target: Any, name: str) -> None:
    text = target.config.get_text_config() if hasattr(target.config, "get_text_config") else target.config
    if config["hidden_size"] != hidden_size_of(target):
        raise ValueError(
            f"{name} has a hidden size of {config['hidden_size']}, the target's is {hidden_size_of(target)}."
        )
    if config["taps"][-1] >= text.num_hidden_layers:
        raise ValueError(f"{name} reads layer {config['taps'][-1]}, but the target has {text.num_hidden_layers}.")
    if config["vocab_size"] != text.vocab_size:
        raise ValueError(f"{name} has a vocabulary of {config['vocab_size']}, the target's is {text.vocab_size}.")
