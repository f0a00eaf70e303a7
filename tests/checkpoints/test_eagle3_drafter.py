"""EAGLE-3 heads and speculators' layout: round trips, the count of the layers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.checkpoints.eagle3 import load_eagle3_drafter, save_eagle3_drafter
from mmspec.checkpoints.speculators import load_speculator, save_speculator
from tests.oracles.vlm import build, prompts, run, tiny_block, tiny_eagle3, tiny_vlm

HEADS: dict[str, dict[str, Any]] = {
    "whole": {}, "half": {"draft_vocab_size": 64}, "3.1": {"tap_norms": True, "norm_output": True, "norm_before_residual": True},
}  # fmt: skip


def change(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def settings(drafter: Any) -> dict[str, Any]:
    """Its configuration but for how it drafts, which files of others do not hold."""
    own = {key: value for key, value in dict(drafter.config).items() if not key.startswith("_")}
    return {**own, "taps": list(own["taps"]), "num_nodes": 0, "depth": 0, "beam": 0, "branching": 0}


@pytest.mark.parametrize("kind", sorted(HEADS))
@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_a_head_comes_back(tmp_path: Path, kind: str, layout: str) -> None:
    model = tiny_vlm("llava")
    head = tiny_eagle3(model, **HEADS[kind])
    if layout == "specforge":
        save_eagle3_drafter(head, tmp_path, 3)
        loaded = load_eagle3_drafter(tmp_path, target=model, num_nodes=9, depth=4, beam=3, branching=3)
    else:
        save_speculator(head, tmp_path, model)
        loaded = load_speculator(tmp_path, target=model, num_nodes=9, depth=4, beam=3, branching=3)
    state = head.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert settings(loaded) == settings(head)
    if kind == "half":
        inputs = prompts("llava")
        assert run(model, inputs, loaded)[1].rows == run(model, inputs, head)[1].rows


def test_a_block_drafter_comes_back_from_speculators(tmp_path: Path) -> None:
    model = tiny_vlm("llava")
    drafter = tiny_block(model)
    save_speculator(drafter, tmp_path, model, "owner/target")
    loaded = load_speculator(tmp_path, target=model)
    assert all(torch.equal(value, drafter.state_dict()[name]) for name, value in loaded.state_dict().items())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["aux_hidden_state_layer_ids"] == list(loaded.config.taps) == [1, 2]
    assert config["speculators_config"]["verifier"]["name_or_path"] == "owner/target"
    change(tmp_path, sample_from_anchor=True)
    with pytest.raises(ValueError, match="sample_from_anchor"):
        load_speculator(tmp_path)


def test_names_and_counts_in_the_files(tmp_path: Path) -> None:
    head = tiny_eagle3(tiny_vlm("llava"), draft_vocab_size=64)
    save_eagle3_drafter(head, tmp_path / "a", 3)
    save_speculator(head, tmp_path / "b", tiny_vlm("llava"))
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert first["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1]
    assert second["eagle_aux_hidden_state_layer_ids"] == [1, 2]
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (64, 128)
    assert tensors["t2d"].nonzero()[:, 0].tolist() == (tensors["d2t"] + torch.arange(64)).tolist()
    assert {"layers.0.hidden_norm.weight", "embed_tokens.weight"} <= load_file(
        tmp_path / "b" / "model.safetensors"
    ).keys()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "holds a LlamaForCausalLM"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "scales its positions"),
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"intermediate_size": 64}, "mlp"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"target_hidden_size": 32}, "another width"),
        ({"eagle_config": None}, "give the `target`"),
    ],
)
def test_other_heads_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    save_eagle3_drafter(tiny_eagle3(tiny_vlm("llava")), tmp_path, 3)
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=words):
        load_eagle3_drafter(tmp_path)


def test_missing_tensors_and_other_targets_are_refused(tmp_path: Path) -> None:
    head = tiny_eagle3(tiny_vlm("llava"))
    save_eagle3_drafter(head, tmp_path, 3)
    with pytest.raises(ValueError, match="other weights"):
        load_eagle3_drafter(tmp_path).check_target(tiny_vlm("llava", "sdpa", 1))
    with pytest.raises(ValueError, match="other weights"):
        save_speculator(head, tmp_path / "other", build("llava", seed=5))
    with pytest.raises(ValueError, match="reads layer 2"):
        save_eagle3_drafter(head, tmp_path / "other", 2)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"norm\.weight"):
        load_eagle3_drafter(tmp_path)
    save_speculator(head, tmp_path / "kind", tiny_vlm("llava"))
    change(tmp_path / "kind", speculators_model_type="mtp")
    with pytest.raises(ValueError, match="'mtp' speculator"):
        load_speculator(tmp_path / "kind")
