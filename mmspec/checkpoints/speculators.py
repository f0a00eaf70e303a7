"""Block drafters and EAGLE-3 heads in the layout of the speculators library, which vLLM serves: reading and writing.

Layers are counted as ours are. The layer of an EAGLE-3 head is ``layers.0``; embedding and output head of the target come
along in the file and are left out here, since the target's own serve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.checkpoints.dflash import assemble_block
from mmspec.checkpoints.drafter_fields import SIZES, check_layers, provenance, write_drafter
from mmspec.checkpoints.eagle3 import assemble, default_taps_of, head_fields, with_vocabulary
from mmspec.checkpoints.reading import read_tensors
from mmspec.drafters.block import BlockDrafter
from mmspec.drafters.eagle3 import Eagle3Drafter
from mmspec.models.loading import read_json

_OWN, _THEIRS = "midlayer.", "layers.0."


def load_speculator(
    folder: str | Path, *, target: Any = None, dtype: torch.dtype | None = None, **settings: Any
) -> BlockDrafter | Eagle3Drafter:
    """Load a drafter as speculators writes it.

    Args:
        folder: With ``config.json`` and safetensors.
        target: The model that it drafts for; then sizes are checked and the drafter remembers it.
        dtype: Type of the weights; by default the file's.
        settings: Of the drafter that say how to draft, such as ``num_nodes``.

    Raises:
        ValueError: If the drafter is of another kind, a tensor is missing, unexpected or of another shape, or it does not
            fit ``target``.
    """
    folder = Path(folder)
    theirs, name = read_json(folder / "config.json"), str(folder)
    kind = theirs.get("speculators_model_type")
    merged = {**(theirs.get("transformer_layer_config") or {}), **theirs}
    tensors = read_tensors(folder)
    if kind == "eagle3":
        if theirs.get("norm_before_fc"):
            raise ValueError(f"{name} has one norm for all layers that it reads (norm_before_fc), which is not read.")
        known = theirs.get("eagle_aux_hidden_state_layer_ids")
        taps = default_taps_of(target, name) if known is None else [int(layer) for layer in known]
        renamed = {key.replace(_THEIRS, _OWN, 1): value for key, value in tensors.items()}
        return assemble(merged, taps, renamed, name, target, dtype, settings)
    if kind == "dflash":
        if theirs.get("sample_from_anchor"):
            raise ValueError(f"{name} drafts from its first slot on (sample_from_anchor), which is not read.")
        layers = [int(layer) - 1 for layer in theirs.get("aux_hidden_state_layer_ids") or []] or None
        merged |= {"target_layer_ids": layers, "layer_types": merged.get("layer_types")}
        kept = {key: value for key, value in tensors.items() if key not in ("embed_tokens.weight", "lm_head.weight")}
        return assemble_block(merged, kept, name, target, dtype, settings)
    raise ValueError(f"{name} holds a {kind!r} speculator; 'dflash' and 'eagle3' are read.")


def save_speculator(
    drafter: BlockDrafter | Eagle3Drafter, folder: str | Path, target: Any, verifier: str = ""
) -> Path:
    """Write ``drafter`` as speculators does.

    Args:
        drafter: What to write.
        folder: Where; made if need be.
        target: The model that it drafts for, whose embedding and head come along.
        verifier: Name of the target, under which a server finds it.

    Raises:
        ValueError: If the drafter is not of ``target``.
    """
    drafter.check_target(target)
    check_layers(drafter, target.config.get_text_config().num_hidden_layers)
    eagle = isinstance(drafter, Eagle3Drafter)
    config = {
        "speculators_model_type": "eagle3" if eagle else "dflash",
        "architectures": ["Eagle3Speculator" if eagle else "DFlashSpeculator"],
        "speculators_config": _proposals(drafter, target, verifier),
        "tie_word_embeddings": False, "target_hidden_size": None,
        **(_eagle_fields(drafter) if isinstance(drafter, Eagle3Drafter) else _block_fields(drafter)),
        "mmspec": provenance(drafter),
    }  # fmt: skip
    return write_drafter(Path(folder), config, _tensors(drafter, target))


def _tensors(drafter: BlockDrafter | Eagle3Drafter, target: Any) -> dict[str, Tensor]:
    embedding = target.get_input_embeddings().weight.detach().to(drafter.dtype)
    if isinstance(drafter, Eagle3Drafter):
        own = {key.replace(_OWN, _THEIRS, 1): value for key, value in with_vocabulary(drafter).items()}
        return {**own, "embed_tokens.weight": embedding.clone()}
    head = target.get_output_embeddings().weight.detach().to(drafter.dtype)
    return {**drafter.state_dict(), "embed_tokens.weight": embedding.clone(), "lm_head.weight": head.clone()}


def _proposals(drafter: BlockDrafter | Eagle3Drafter, target: Any, verifier: str) -> dict[str, Any]:
    eagle = isinstance(drafter, Eagle3Drafter)
    count = drafter.config.depth if eagle else drafter.config.block_size - 1
    proposal = {
        "proposal_type": "greedy", "speculative_tokens": count, "verifier_accept_k": 1, "accept_tolerance": 0.0,
    }  # fmt: skip
    return {
        "algorithm": "eagle3" if eagle else "dflash", "proposal_methods": [proposal], "default_proposal_method": "greedy",
        "verifier": {"name_or_path": verifier or None, "architectures": [type(target).__name__]},
    }  # fmt: skip


def _eagle_fields(drafter: Eagle3Drafter) -> dict[str, Any]:
    fields = head_fields(drafter)
    own = {name: fields.pop(name) for name in ("draft_vocab_size", "norm_before_residual", "fc_norm", "norm_output")}
    return {
        **own, "norm_before_fc": False, "eagle_aux_hidden_state_layer_ids": list(drafter.config.taps),
        "transformer_layer_config": {"model_type": "llama", **fields},
    }  # fmt: skip


def _block_fields(drafter: BlockDrafter) -> dict[str, Any]:
    ours = drafter.config
    return {
        "block_size": ours.block_size, "mask_token_id": ours.mask_token_id, "draft_vocab_size": ours.vocab_size,
        "aux_hidden_state_layer_ids": list(ours.taps), "sample_from_anchor": False, "sliding_window_non_causal": False,
        "transformer_layer_config": {
            "model_type": "qwen3", **{theirs: ours[name] for theirs, name in SIZES.items()}, "hidden_act": "silu",
            "attention_bias": False, "rope_theta": ours.rope_theta, "rope_scaling": None,
            "layer_types": ["full_attention"] * ours.num_layers,
        },
    }  # fmt: skip
