"""Fields that the published layouts of drafters share, and the checks that reading and writing them need.

Three ways to count the target's layers are in use. ``taps`` of ours and ``aux_hidden_state_layer_ids`` of speculators count
outputs from 1; ``target_layer_ids`` of z-lab and ``eagle_aux_hidden_state_layer_ids`` within SGLang's ``eagle_config`` count
the same outputs from 0. An error of one raises nothing anywhere and only stops drafts from being accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mmspec.drafters.base import hidden_size_of
from mmspec.drafters.network import DrafterNetwork

SIZES = {
    "hidden_size": "hidden_size", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads", "head_dim": "head_dim", "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size", "rms_norm_eps": "norm_eps",
}  # fmt: skip
"""Field of their configuration -> setting of ours."""


def first_given(*values: Any) -> Any:
    """The first value that is given; older and newer files keep a field in different places."""
    return next((value for value in values if value is not None), None)


def check_given(wanted: Mapping[str, Any], name: str) -> None:
    """Raise ValueError naming the fields that have no value."""
    if missing := sorted(field for field, value in wanted.items() if value is None):
        raise ValueError(f"{name} lacks {', '.join(missing)} in its config.json.")


def rope_theta_of(theirs: Mapping[str, Any], name: str) -> float | None:
    """The base of the rotary angles.

    Raises:
        ValueError: If positions are scaled, or have several axes.
    """
    rope = (theirs.get("rope_parameters") or {}) | (theirs.get("rope_scaling") or {})
    if rope.get("rope_type", rope.get("type", "default")) != "default" or "mrope_section" in rope:
        raise ValueError(f"{name} scales its positions ({rope}), which is not read.")
    return first_given(theirs.get("rope_theta"), rope.get("rope_theta"))


def check_sizes(config: Mapping[str, Any], target: Any, name: str) -> None:
    """Raise ValueError if the settings ``config`` of a drafter do not fit ``target``."""
    text = target.config.get_text_config() if hasattr(target.config, "get_text_config") else target.config
    if config["hidden_size"] != hidden_size_of(target):
        raise ValueError(
            f"{name} has a hidden size of {config['hidden_size']}, the target's is {hidden_size_of(target)}."
        )
    if config["taps"][-1] >= text.num_hidden_layers:
        raise ValueError(f"{name} reads layer {config['taps'][-1]}, but the target has {text.num_hidden_layers}.")
    if config["vocab_size"] != text.vocab_size:
        raise ValueError(f"{name} has a vocabulary of {config['vocab_size']}, the target's is {text.vocab_size}.")


def check_layers(drafter: DrafterNetwork, num_target_layers: int) -> None:
    """Raise ValueError if ``drafter`` reads a layer that is not below the target's last, or has parts that no layout holds."""
    if drafter.config.get("markov_rank"):
        raise ValueError("The correction of `markov_rank` has no place in this layout; train a drafter without it.")
    if drafter.config.get("compression"):
        raise ValueError("`compression` of pictures has no place in this layout; train a drafter without it.")
    last = drafter.config.taps[-1]
    if last >= num_target_layers:
        raise ValueError(f"`num_target_layers` is {num_target_layers}, but the drafter reads layer {last}.")


def provenance(drafter: DrafterNetwork) -> dict[str, Any]:
    """What the files of others do not say; read by nobody else."""
    config = drafter.config
    return {"taps": list(config.taps), "capture": "layer_output", "positions": "stream", "target": config.target}


def write_drafter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write ``config.json`` and one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder
