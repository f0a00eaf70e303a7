"""EAGLE-3 heads in the layout of SpecForge, which SGLang serves: reading and writing.

The tensors bear the same names but for the norms of the taps. ``d2t`` says how much larger a drafted token is in the target's
vocabulary, ``t2d`` which of its tokens can be drafted; the second follows from the first.
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
from mmspec.drafters.eagle3 import Eagle3Drafter
from mmspec.drafters.fingerprint import fingerprint
from mmspec.models.loading import read_json

_IGNORED = ("embed_tokens.weight", "t2d")
ARCHITECTURES = ("LlamaForCausalLMEagle3",)


def load_eagle3_drafter(
    folder: str | Path, *, target: Any = None, dtype: torch.dtype | None = None, **settings: Any
) -> Eagle3Drafter:
    """Load a head as SpecForge writes it.

    Args:
        folder: With ``config.json`` and safetensors.
        target: The model that it drafts for; then sizes are checked and the head remembers it. It is needed where the file
            does not say which layers are read.
        dtype: Type of the weights; by default the file's.
        settings: Of :class:`Eagle3Drafter` that say how to draft, such as ``num_nodes``.

    Raises:
        ValueError: If the configuration is of another kind, a tensor is missing, unexpected or of another shape, or the
            head does not fit ``target``.
    """
    folder = Path(folder)
    theirs, name = read_json(folder / "config.json"), str(folder)
    kind = (theirs.get("architectures") or [""])[0]
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{name} holds a {kind or 'model without a name'}; EAGLE-3 heads are {', '.join(ARCHITECTURES)}."
        )
    known = (theirs.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    taps = default_taps_of(target, name) if known is None else [int(layer) + 1 for layer in known]
    return assemble(theirs, taps, read_tensors(folder), name, target, dtype, settings)


def default_taps_of(target: Any, name: str) -> list[int]:
    """Layers that are read where a file does not say which: the second, the middle one, the fourth last.

    Raises:
        ValueError: Without a target.
    """
    if target is None:
        raise ValueError(f"{name} does not say which layers of the target it reads; give the `target`.")
    layers = target.config.get_text_config().num_hidden_layers
    return [2, layers // 2, layers - 3]


def assemble(
    theirs: Mapping[str, Any],
    taps: list[int],
    tensors: dict[str, Tensor],
    name: str,
    target: Any,
    dtype: torch.dtype | None,
    settings: Mapping[str, Any],
) -> Eagle3Drafter:
    """A head of the fields ``theirs`` and ``tensors`` with the names of SpecForge, checked."""
    wanted = {field: theirs.get(field) for field in SIZES if field != "num_hidden_layers"}
    wanted["head_dim"] = first_given(
        wanted["head_dim"], (theirs.get("hidden_size") or 0) // (theirs.get("num_attention_heads") or 1) or None
    )
    wanted["rope_theta"] = rope_theta_of(theirs, name)
    check_given(wanted, name)
    if first_given(theirs.get("target_hidden_size"), theirs["hidden_size"]) != theirs["hidden_size"]:
        raise ValueError(f"{name} is of another width than its target, which is not read.")
    if theirs.get("num_hidden_layers", 1) != 1:
        raise ValueError(f"{name} has {theirs['num_hidden_layers']} layers; EAGLE-3 heads have one.")
    drafted = first_given(theirs.get("draft_vocab_size"), theirs["vocab_size"])
    config = {ours: wanted[field] for field, ours in SIZES.items() if field != "num_hidden_layers"}
    config |= {
        "rope_theta": wanted["rope_theta"], "taps": taps, "draft_vocab_size": None if drafted == theirs["vocab_size"] else drafted,
        "norm_before_residual": bool(theirs.get("norm_before_residual")), "tap_norms": bool(theirs.get("fc_norm")),
        "norm_output": bool(theirs.get("norm_output")), "target": (theirs.get("mmspec") or {}).get("target"),
    }  # fmt: skip
    if target is not None:
        check_sizes(config, target, name)
        config["target"] = fingerprint(target)
    ignored = _IGNORED if config["draft_vocab_size"] else (*_IGNORED, "d2t")
    kept = {key: value for key, value in tensors.items() if key not in ignored}
    with torch.device("meta"):
        head = Eagle3Drafter(**{**config, **settings})
    check_tensors(kept, {key: tuple(value.shape) for key, value in head.state_dict().items()}, name)
    state = {key: value if key == "d2t" else value.to(dtype or value.dtype) for key, value in kept.items()}
    head.load_state_dict(state, assign=True)
    return head.requires_grad_(False).eval()


def save_eagle3_drafter(drafter: Eagle3Drafter, folder: str | Path, num_target_layers: int) -> Path:
    """Write ``drafter`` as SpecForge does.

    Args:
        drafter: What to write.
        folder: Where; made if need be.
        num_target_layers: Layers of the target.

    Raises:
        ValueError: If a layer that the head reads is not below the target's last.
    """
    check_layers(drafter, num_target_layers)
    ours = drafter.config
    layers = [tap - 1 for tap in ours.taps]
    config = {
        "architectures": [ARCHITECTURES[0]], "model_type": "llama", **head_fields(drafter),
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers},
        "mmspec": provenance(drafter),
    }  # fmt: skip
    return write_drafter(Path(folder), config, with_vocabulary(drafter))


def head_fields(drafter: Eagle3Drafter) -> dict[str, Any]:
    """Sizes and switches of a head under the names of its file."""
    ours = drafter.config
    return {
        **{theirs: ours[name] for theirs, name in SIZES.items() if name != "num_layers"},
        "num_hidden_layers": 1, "hidden_act": "silu", "attention_bias": False, "rope_theta": ours.rope_theta,
        "rope_scaling": None, "tie_word_embeddings": False, "draft_vocab_size": drafter.lm_head.out_features,
        "norm_before_residual": ours.norm_before_residual, "fc_norm": ours.tap_norms, "norm_output": ours.norm_output,
        "dtype": str(drafter.dtype).removeprefix("torch."),
    }  # fmt: skip


def with_vocabulary(drafter: Eagle3Drafter) -> dict[str, Tensor]:
    """The tensors of a head with both tables of its vocabulary."""
    drafted = drafter.drafted_tokens
    known = torch.zeros(drafter.config.vocab_size, dtype=torch.bool)
    known[drafted] = True
    return {**drafter.state_dict(), "d2t": drafted - torch.arange(len(drafted)), "t2d": known}
