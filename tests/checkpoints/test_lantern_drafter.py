"""Published LANTERN drafters: names, layout and arithmetic, against an independent forward; strict about names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from mmspec.checkpoints.lantern_drafter import convert_lantern_drafter, load_lantern_drafter
from mmspec.cli.app import app
from mmspec.drafters.feature import FeatureDrafter
from tests.oracles.tiny import tiny_pipeline, tiny_transformer

WIDTH, INNER, VOCABULARY, HEADS = 32, 48, 24, 2


def published(layers: int = 1, bias: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    state = {"embed_tokens.weight": random(VOCABULARY, WIDTH), "fc.weight": random(WIDTH, 2 * WIDTH)}
    if bias:
        state["fc.bias"] = random(WIDTH)
    for layer in range(layers):
        name = f"layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            state[f"{name}self_attn.{part}.weight"] = random(WIDTH, WIDTH)
        for part in ("gate_proj", "up_proj"):
            state[f"{name}mlp.{part}.weight"] = random(INNER, WIDTH)
        state[f"{name}mlp.down_proj.weight"] = random(WIDTH, INNER)
        state[f"{name}post_attention_layernorm.weight"] = 1 + random(WIDTH)
        if layer:
            state[f"{name}input_layernorm.weight"] = 1 + random(WIDTH)
    return state


def write(state: dict[str, Tensor], folder: Path) -> Path:
    save_file(state, folder / "model.safetensors")
    return folder / "model.safetensors"


def reference(state: dict[str, Tensor], codes: Tensor, features: Tensor, angles: Tensor, layers: int) -> Tensor:
    """States of one sequence, with complex numbers for the rotation: codes (N,), features (N, D), angles (N, P / 2)."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def rotate(x: Tensor) -> Tensor:
        pairs = (
            torch.view_as_complex(x.view(len(x), HEADS, -1, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        return torch.view_as_real(pairs).flatten(2)

    x = torch.cat([state["embed_tokens.weight"][codes], features], dim=-1) @ state["fc.weight"].T + state["fc.bias"]
    causal = torch.full((len(codes), len(codes)), -torch.inf).triu(1)
    for layer in range(layers):
        name = f"layers.{layer}."
        inside = norm(x, state[name + "input_layernorm.weight"]) if layer else x
        q, k, v = (inside @ state[f"{name}self_attn.{part}_proj.weight"].T for part in "qkv")
        q, k, v = rotate(q), rotate(k), v.view(len(v), HEADS, -1)
        scores = torch.einsum("qhp,khp->hqk", q, k) / (WIDTH // HEADS) ** 0.5 + causal
        mixed = torch.einsum("hqk,khp->qhp", scores.softmax(-1), v).flatten(1)
        x = x + mixed @ state[f"{name}self_attn.o_proj.weight"].T
        inside = norm(x, state[f"{name}post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(inside @ state[f"{name}mlp.gate_proj.weight"].T)
        x = x + (gate * (inside @ state[f"{name}mlp.up_proj.weight"].T)) @ state[f"{name}mlp.down_proj.weight"].T
    return x


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_arithmetic_equals_the_published_one(layers: int, tmp_path: Path) -> None:
    state = published(layers)
    drafter = load_lantern_drafter(write(state, tmp_path), num_heads=HEADS)
    generator = torch.Generator().manual_seed(1)
    codes, features = torch.tensor([3, 0, 7, 7, 23]), torch.randn(5, WIDTH, generator=generator)
    angles = torch.randn(5, WIDTH // HEADS // 2, generator=generator)
    sine = angles.sin().repeat_interleave(2, -1)
    sine[:, 0::2] *= -1
    rotary = (angles.cos().repeat_interleave(2, -1)[None, :, None], sine[None, :, None])
    embeddings = drafter.embed(codes[None], None)
    ours = drafter(embeddings, features[None], rotary, None, None)[0]
    assert torch.allclose(ours, reference(state, codes, features, angles, layers), atol=1e-5)


def test_a_converted_drafter_drafts_for_its_target_alone(tmp_path: Path) -> None:
    pipe = tiny_pipeline()
    pipe.save_pretrained(tmp_path / "pipe")
    convert_lantern_drafter(write(published(), tmp_path), tmp_path / "drafter", target=tmp_path / "pipe")
    drafter = FeatureDrafter.from_pretrained(tmp_path / "drafter")
    assert drafter.config.own_embedding
    assert not drafter.config.mask_padding
    assert (drafter.config.tree, drafter.config.num_nodes, drafter.config.beam) == ("dynamic", 59, 10)
    pipe.drafter = drafter
    call = {"prompt": ["a cat", "a very old house"], "seed": 3, "output_type": "tokens"}
    assert torch.equal(pipe(**call).tokens, pipe(**call, speculate=False).tokens)
    pipe.transformer = tiny_transformer(seed=9)
    with pytest.raises(ValueError, match="other weights"):
        pipe(**call)


def test_an_embedding_equal_to_the_targets_is_dropped(tmp_path: Path) -> None:
    target = tiny_transformer()
    state = {**published(), "embed_tokens.weight": target.token_embedding.weight.detach().clone()}
    drafter = load_lantern_drafter(write(state, tmp_path), target=target)
    assert not drafter.config.own_embedding
    assert "token_embedding.weight" not in drafter.state_dict()


def test_names_before_the_tensors_and_a_missing_bias_are_understood(tmp_path: Path) -> None:
    state = {"ea_layer." + name: tensor for name, tensor in published(bias=False).items()}
    drafter = load_lantern_drafter(write(state, tmp_path), num_heads=HEADS)
    assert not drafter.config.joint_bias


@pytest.mark.parametrize("name", sorted(published(2)))
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    if name == "fc.bias":
        pytest.skip("a drafter may have no bias")
    state = {key: value for key, value in published(2).items() if key != name}
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_lantern_drafter(write(state, tmp_path), num_heads=HEADS)


@pytest.mark.parametrize("name", ["layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.bias", "head.weight"])
def test_an_unexpected_tensor_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_lantern_drafter(write({**published(), name: torch.zeros(WIDTH)}, tmp_path), num_heads=HEADS)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = write(published(), tmp_path)
    with pytest.raises(ValueError, match=r"width 32.*num_heads"):
        load_lantern_drafter(path)
    with pytest.raises(ValueError, match=r"`vocab_size` is 24, the target's 5"):
        load_lantern_drafter(path, target=tiny_transformer(vocab_size=5))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    with pytest.raises(FileExistsError):
        convert_lantern_drafter(path, tmp_path / "full", num_heads=HEADS)


def test_the_command_converts_and_the_image_command_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_pipeline().save_pretrained("pipe")
    path = write(published(), tmp_path)

    def mmspec(*words: object) -> object:
        return CliRunner().invoke(app, [str(word) for word in words])

    result = mmspec("convert", "lantern-drafter", path, "pipe/feature_drafter", "--target", "pipe")
    assert result.exit_code == 0, result.stderr
    assert "--drafter feature" in result.stdout
    picture = ("image", "--model", "./pipe", "--seed", 1, "a cat", "--drafter", "feature", "--set")
    result = mmspec(*picture, "drafter.num_nodes=8")
    assert result.exit_code == 0, result.stderr
    assert Path("outputs/a-cat-0001.png").is_file()
    assert mmspec("convert", "lantern-drafter", tmp_path / "none", "out").exit_code == 2
    result = mmspec(*picture, "drafter.colour=red")
    assert result.exit_code == 2
    assert "colour" in result.stderr
