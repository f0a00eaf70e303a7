"""Block drafters in the layout of z-lab's DFlash releases, which SGLang and vLLM serve: reading and writing.

The tensors bear the same names. In the configuration ``target_layer_ids`` counts the target's layers from 0, by their
outputs; :class:`~mmspec.drafters.block.BlockDrafter` counts from 1, so ``taps`` are one more. An error of one there raises
nothing anywhere and only stops drafts from being accepted. Variants with further heads or sliding layers are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.checkpoints.drafter_fields import (
    SIZES,
    check_given,
    check_layers,
    check_sizes,
    first_given,
    provenance,
    rope_theta_of,
    write_drafter,
)
from mmspec.checkpoints.reading import check_tensors, read_tensors
from mmspec.drafters.block import BlockDrafter
from mmspec.drafters.fingerprint import fingerprint
from mmspec.models.loading import read_json


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
    theirs, name = read_json(folder / "config.json"), str(folder)
    inner = theirs.get("dflash_config") or {}
    kind = (theirs.get("architectures") or [""])[0]
    if kind != "DFlashDraftModel" or inner.get("projector_type") not in (None, "dflash"):
        raise ValueError(f"{name} holds a {kind or 'model without a name'} {inner.get('projector_type', '')}; only plain "
                         "DFlashDraftModel drafters are read.")  # fmt: skip
    return assemble_block(theirs, read_tensors(folder), name, target, dtype, settings)


def assemble_block(
    theirs: Mapping[str, Any],
    tensors: dict[str, Tensor],
    name: str,
    target: Any,
    dtype: torch.dtype | None,
    settings: Mapping[str, Any],
) -> BlockDrafter:
    """A drafter of the fields ``theirs`` and ``tensors``, checked."""
    config = _translate(theirs, name)
    if target is not None:
        check_sizes(config, target, name)
        config["target"] = fingerprint(target)
    with torch.device("meta"):
        drafter = BlockDrafter(**config, **settings)
    check_tensors(tensors, {key: tuple(value.shape) for key, value in drafter.state_dict().items()}, name)
    drafter.load_state_dict({key: value.to(dtype or value.dtype) for key, value in tensors.items()}, assign=True)
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
    check_layers(drafter, num_target_layers)
    config = {
        "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3", "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False,
        **{theirs: ours[name] for theirs, name in SIZES.items()},
        "rope_theta": ours.rope_theta, "rope_scaling": None, "sliding_window": None,
        "layer_types": ["full_attention"] * ours.num_layers, "num_target_layers": num_target_layers,
        "block_size": ours.block_size, "dtype": str(drafter.dtype).removeprefix("torch."),
        "dflash_config": {"mask_token_id": ours.mask_token_id, "target_layer_ids": [tap - 1 for tap in ours.taps]},
        # read by nobody else: what the file alone does not say
        "mmspec": provenance(drafter),
    }  # fmt: skip
    return write_drafter(Path(folder), config, drafter.state_dict())


def _translate(theirs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of a :class:`BlockDrafter` from their configuration."""
    inner = theirs.get("dflash_config") or {}
    if sliding := set(theirs.get("layer_types") or []) - {"full_attention"}:
        raise ValueError(f"{name} has layers {sorted(sliding)}; only 'full_attention' is read.")
    wanted = {
        **{field: theirs.get(field) for field in SIZES},
        "rope_theta": rope_theta_of(theirs, name),
        "block_size": first_given(theirs.get("block_size"), inner.get("block_size")),
        "mask_token_id": first_given(inner.get("mask_token_id"), theirs.get("mask_token_id")),
        "target_layer_ids": first_given(inner.get("target_layer_ids"), theirs.get("target_layer_ids")),
    }
    check_given(wanted, name)
    return {
        **{ours: wanted[field] for field, ours in SIZES.items()},
        **{field: wanted[field] for field in ("rope_theta", "block_size", "mask_token_id")},
        "taps": [int(layer) + 1 for layer in wanted["target_layer_ids"]],
        "target": (theirs.get("mmspec") or {}).get("target"),
    }
