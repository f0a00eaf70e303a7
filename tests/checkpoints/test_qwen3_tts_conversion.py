"""Qwen3-TTS: released names become the native talker, whose stacks compute what transformers' Qwen3 layers compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model
from typer.testing import CliRunner

from mmspec.checkpoints.qwen3_tts import load_qwen3_tts, talker_settings
from mmspec.cli.app import app
from mmspec.speech.residual_drafter import ResidualDrafter
from mmspec.speech.talker import SpeechTalker
from mmspec.speech.talker_model import TalkerModel
from tests.oracles.synthesis import decode_frames

BOOKS, CODES, SPECIALS = 4, 16, 8
SIZES = {"talker": (32, 3, 4, 2, 16, 48), "predictor": (24, 2, 2, 1, 12, 40)}


def qwen(kind: str) -> Qwen3Model:
    width, layers, heads, kv_heads, head_dim, inner = SIZES[kind]
    config = Qwen3Config(
        vocab_size=8, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    torch.manual_seed(3)
    model = Qwen3Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1))
    return model


def release_config() -> dict[str, Any]:
    def sizes(kind: str) -> dict[str, Any]:
        width, layers, heads, kv_heads, head_dim, inner = SIZES[kind]
        return {
            "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
        }  # fmt: skip

    talker = {
        **sizes("talker"), "vocab_size": CODES + SPECIALS, "num_code_groups": BOOKS, "text_vocab_size": 50,
        "text_hidden_size": 20, "codec_pad_id": CODES, "codec_bos_id": CODES + 1, "codec_eos_token_id": CODES + 2,
        "code_predictor_config": {**sizes("predictor"), "vocab_size": CODES, "num_code_groups": BOOKS},
    }  # fmt: skip
    return {"model_type": "qwen3_tts", "tts_pad_token_id": 40, "talker_config": talker}


@pytest.fixture(scope="module")
def models() -> dict[str, Qwen3Model]:
    return {kind: qwen(kind) for kind in SIZES}


@pytest.fixture(scope="module")
def tensors(models: dict[str, Qwen3Model]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    made = {
        "talker.model.text_embedding.weight": random(50, 20),
        "talker.model.codec_embedding.weight": random(CODES + SPECIALS, 32),
        "talker.text_projection.linear_fc1.weight": random(20, 20),
        "talker.text_projection.linear_fc1.bias": random(20),
        "talker.text_projection.linear_fc2.weight": random(32, 20),
        "talker.text_projection.linear_fc2.bias": random(32),
        "talker.codec_head.weight": random(CODES + SPECIALS, 32),
        "talker.code_predictor.small_to_mtp_projection.weight": random(24, 32),
        "talker.code_predictor.small_to_mtp_projection.bias": random(24),
        "speaker_encoder.anything.weight": random(3, 3),
    }
    for kind, prefix in (("talker", "talker.model."), ("predictor", "talker.code_predictor.model.")):
        made |= {
            prefix + name: tensor.clone()
            for name, tensor in models[kind].state_dict().items()
            if not name.startswith("embed_tokens")
        }
    for book in range(BOOKS - 1):
        made[f"talker.code_predictor.model.codec_embedding.{book}.weight"] = random(CODES, 32)
        made[f"talker.code_predictor.lm_head.{book}.weight"] = random(CODES, 24)
    return made


@pytest.fixture(scope="module")
def release(tensors: dict[str, Tensor], tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("release")
    (folder / "config.json").write_text(json.dumps(release_config()))
    save_file(tensors, folder / "model.safetensors")
    return folder


@torch.no_grad()
def test_stacks_are_those_of_qwen3(release: Path, models: dict[str, Qwen3Model]) -> None:
    talker = load_qwen3_tts(release)
    for kind, stack in (("talker", talker.stack), ("predictor", talker.code_predictor.stack)):
        inputs = torch.randn(2, 7, SIZES[kind][0], generator=torch.Generator().manual_seed(2))
        theirs = models[kind](inputs_embeds=inputs).last_hidden_state
        assert torch.allclose(stack(inputs, torch.arange(7)[None]), theirs, atol=1e-4)


@torch.no_grad()
def test_predictor_follows_the_released_layout(release: Path, tensors: dict[str, Tensor], models: Any) -> None:
    """State, then code 0 of the talker's embedding, then codes of the predictor's; head p - 1 for code p."""
    talker = load_qwen3_tts(release)
    state, codes = torch.randn(1, 32), torch.tensor([[3, 1, 2]])
    own = [f"talker.code_predictor.model.codec_embedding.{book}.weight" for book in range(2)]
    names = ["talker.model.codec_embedding.weight", *own]
    embedded = [state, *(tensors[name][codes[:, place]] for place, name in enumerate(names))]
    joined = torch.stack(embedded, dim=1)
    weight, bias = (tensors[f"talker.code_predictor.small_to_mtp_projection.{part}"] for part in ("weight", "bias"))
    hidden = models["predictor"](inputs_embeds=joined @ weight.T + bias).last_hidden_state
    wanted = torch.stack(
        [hidden[0, p] @ tensors[f"talker.code_predictor.lm_head.{p - 1}.weight"].T for p in (1, 2, 3)]
    )
    model = TalkerModel(talker, [talker.read(torch.tensor([1]))], 1)
    ours = model.head(model.inner(state, codes)[:, 1:], torch.arange(1, 4))[0, :, :CODES]
    assert torch.allclose(ours, wanted, atol=1e-4)


def test_command_and_decoding(release: Path, tmp_path: Path) -> None:
    output = tmp_path / "talker"
    result = CliRunner().invoke(app, ["convert", "qwen3-tts", str(release), str(output)])
    assert result.exit_code == 0, result.output
    talker = SpeechTalker.from_pretrained(output).eval()
    with torch.no_grad():
        prompt = talker.read(torch.tensor([1, 2, 3]))
    rows = [
        decode_frames(TalkerModel(talker, [prompt], 4), [5], 4, drafter).rows for drafter in (None, ResidualDrafter())
    ]
    assert rows[0] == rows[1]
    assert CliRunner().invoke(app, ["convert", "qwen3-tts", str(release), str(output)]).exit_code != 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("talker.codec_head.weight", "1 missing: codec_head.weight"),
        ("talker.model.layers.1.mlp.up_proj.weight", "gate"),
    ],
)
def test_incomplete_releases(name: str, said: str, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(release_config()))
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=said):
        load_qwen3_tts(tmp_path)


def test_other_configurations_and_strange_tensors(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="talker_config"):
        talker_settings({"model_type": "llama"})
    (tmp_path / "config.json").write_text(json.dumps(release_config()))
    save_file({**tensors, "talker.extra.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"unexpected: talker\.extra\.weight"):
        load_qwen3_tts(tmp_path)
