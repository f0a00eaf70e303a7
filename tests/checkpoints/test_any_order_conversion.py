"""Released RandAR and ARPG names are read strictly, and every tensor goes where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.checkpoints.any_order import LOADERS, convert_any_order, load_arpg, load_randar
from tests.oracles.any_order import NETWORKS, full_logits, tiny_network

OPTIONS = {"image_size": 8, "downsample": 4, "num_heads": 2}
ORDER, TOKENS = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 0, 2, 2])


def released(kind: str) -> dict[str, Tensor]:
    """The tensors of the tiny network under the names of the released files."""
    state, theirs = tiny_network(kind).state_dict(), {}
    blocks = {
        "content.": ("layers.self_dec.", "attn."),
        "queries.": ("layers.cross_dec.", "attn."),
        "layers.": ("layers.", "attention."),
    }
    top = {
        "token_embedding.weight": "tok_embeddings.weight", "class_embedding.weight": "cls_embedding.embedding_table.weight",
        "norm.weight": "norm.weight", "head.weight": "output.weight" if kind == "randar" else "head.weight",
        "embedding.weight": "embeddings.weight", "content_norm.weight": "layers.norm.weight", "key.weight": "layers.to_k.weight",
        "value.weight": "layers.to_v.weight",
    }  # fmt: skip
    for name, tensor in state.items():
        if name == "query_embedding":
            theirs["pos_instruct_embeddings"] = tensor[None].clone()
        elif name in top:
            theirs[top[name]] = tensor
        else:
            theirs |= _of_layer(kind, name, tensor, blocks)
    return {name: tensor.contiguous() for name, tensor in theirs.items()}


def _of_layer(kind: str, name: str, tensor: Tensor, blocks: dict[str, tuple[str, str]]) -> dict[str, Tensor]:
    stack, layer, part = name.split(".", 2)
    prefix, attention = blocks[stack + "."]
    prefix += layer + "."
    forward = "feed_forward." if kind == "randar" else "ffn."
    if part == "attention.qkv.weight" and kind == "arpg":
        return {
            f"{prefix}{attention}to_{n}.weight": rows.clone() for n, rows in zip("qkv", tensor.chunk(3), strict=True)
        }
    if part == "feed_forward.gate_up.weight":
        return {
            f"{prefix}{forward}{n}.weight": rows.clone() for n, rows in zip(("w1", "w3"), tensor.chunk(2), strict=True)
        }
    renamed = {
        "attention.qkv.weight": attention + "wqkv.weight", "query.weight": attention + "to_q.weight",
        "attention.out.weight": attention + ("wo.weight" if kind == "randar" else "proj.weight"),
        "out.weight": attention + "proj.weight", "feed_forward.down.weight": forward + "w2.weight",
        "attention_norm.weight": ("attention_norm" if kind == "randar" else "attn_norm") + ".weight",
        "feed_forward_norm.weight": "ffn_norm.weight",
    }  # fmt: skip
    return {prefix + renamed[part]: tensor}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_released_file_gives_the_same_laws(kind: str, tmp_path: Path) -> None:
    save_file(released(kind), tmp_path / "model.safetensors")
    model = LOADERS[kind](tmp_path / "model.safetensors", **OPTIONS)
    assert torch.equal(full_logits(model, 1, TOKENS, ORDER), full_logits(tiny_network(kind), 1, TOKENS, ORDER))
    half = LOADERS[kind](tmp_path / "model.safetensors", **OPTIONS, dtype=torch.float16)
    assert (half.dtype, half.rotary.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("kind", NETWORKS)
def test_missing_and_unexpected_tensors_are_named(kind: str, tmp_path: Path) -> None:
    state, file = released(kind), tmp_path / "model.safetensors"
    dropped = "norm.weight"
    save_file({name: tensor for name, tensor in state.items() if name != dropped}, file)
    with pytest.raises(ValueError, match=dropped):
        LOADERS[kind](file, **OPTIONS)
    save_file(state | {"more.weight": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match=r"more\.weight"):
        LOADERS[kind](file, **OPTIONS)


def test_other_decoders_are_refused(tmp_path: Path) -> None:
    save_file(released("arpg"), tmp_path / "arpg.safetensors")
    with pytest.raises(ValueError, match="no RandAR"):
        load_randar(tmp_path / "arpg.safetensors", **OPTIONS)
    save_file(released("randar"), tmp_path / "randar.safetensors")
    with pytest.raises(ValueError, match="no ARPG"):
        load_arpg(tmp_path / "randar.safetensors", **OPTIONS)
    with pytest.raises(ValueError, match="randar, arpg"):
        convert_any_order("maskgit", "a.pt", "b.pt", tmp_path / "out")
    with pytest.raises(FileExistsError):
        convert_any_order("randar", "a.pt", "b.pt", tmp_path)
