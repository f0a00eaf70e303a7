"""Block drafters in z-lab's layout: a round trip, the count of the layers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.checkpoints.dflash import load_dflash_drafter, save_dflash_drafter
from tests.oracles.vlm import prompts, run, tiny_block, tiny_vlm


def saved(folder: Path) -> Any:
    drafter = tiny_block(tiny_vlm("llava"))
    save_dflash_drafter(drafter, folder, num_target_layers=3)
    return drafter


def change(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_a_round_trip(tmp_path: Path) -> None:
    model, drafter = tiny_vlm("llava"), saved(tmp_path)
    loaded = load_dflash_drafter(tmp_path, target=model)
    assert all(torch.equal(value, drafter.state_dict()[name]) for name, value in loaded.state_dict().items())
    ours, theirs = ({k: v for k, v in dict(d.config).items() if not k.startswith("_")} for d in (drafter, loaded))
    assert {**ours, "taps": list(ours["taps"])} == {**theirs, "taps": list(theirs["taps"])}
    inputs = prompts("llava")
    assert run(model, inputs, loaded)[1].rows == run(model, inputs, drafter)[1].rows


def test_layers_are_counted_from_zero_in_the_file(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["dflash_config"]["target_layer_ids"] == [0, 1]
    # 11 tensors a layer and 3 more, under the names of the releases
    assert len(load_file(tmp_path / "model.safetensors")) == 11 * 2 + 3
    assert "layers.0.self_attn.q_norm.weight" in load_file(tmp_path / "model.safetensors")


def test_newer_files_keep_the_block_size_inside(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(tmp_path, block_size=None)
    with pytest.raises(ValueError, match="lacks block_size"):
        load_dflash_drafter(tmp_path)
    del config["block_size"]
    config["dflash_config"]["block_size"] = 6
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_dflash_drafter(tmp_path, num_nodes=5).config.block_size == 6


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["DominoDraftModel"]}, "DominoDraftModel"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "scales its positions"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"intermediate_size": 64}, "mlp"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    saved(tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=words):
        load_dflash_drafter(tmp_path)


def test_missing_tensors_and_other_targets_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match="other weights"):
        load_dflash_drafter(tmp_path).check_target(tiny_vlm("llava", "sdpa", 1))
    change(tmp_path, vocab_size=500)
    with pytest.raises(ValueError, match="vocabulary of 500"):
        load_dflash_drafter(tmp_path, target=tiny_vlm("llava"))
    change(tmp_path, vocab_size=128, dflash_config={"mask_token_id": 0, "target_layer_ids": [0, 2]})
    with pytest.raises(ValueError, match="reads layer 3"):
        load_dflash_drafter(tmp_path, target=tiny_vlm("llava"))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["hidden_norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="hidden_norm"):
        load_dflash_drafter(tmp_path)
    with pytest.raises(ValueError, match="reads layer 2"):
        save_dflash_drafter(tiny_block(tiny_vlm("llava")), tmp_path, num_target_layers=2)
