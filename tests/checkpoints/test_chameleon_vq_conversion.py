"""Chameleon's VQ model under its own names: converted, it is the network that those names describe."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from diffusers import VQModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import ChameleonVQVAE, ChameleonVQVAEConfig

from mmspec.checkpoints.chameleon_vq import convert_chameleon_vq, infer_config, load_chameleon_vq
from mmspec.image.vq import decode_codes

CHANNELS, CODES, WIDTH, BLOCKS = (32, 64, 64), 12, 6, 2


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    """Random tensors under the names of Meta's file: transformers' encoder, and the decoder by its definition."""
    generator = torch.Generator().manual_seed(0)
    config = ChameleonVQVAEConfig(
        embed_dim=WIDTH, num_embeddings=CODES, latent_channels=8, resolution=16, base_channels=32,
        channel_multiplier=[1, 2, 2], num_res_blocks=BLOCKS,
    )  # fmt: skip
    shapes = {name: tuple(tensor.shape) for name, tensor in ChameleonVQVAE(config).state_dict().items()}
    shapes |= {"decoder.conv_in.weight": (64, 8, 3, 3), "decoder.conv_in.bias": (64,)}
    shapes |= {name.replace("encoder.mid.", "decoder.mid."): size for name, size in shapes.items() if ".mid." in name}
    size = 64
    for level in (2, 1, 0):
        for block in range(BLOCKS + 1):
            name, out = f"decoder.up.{level}.block.{block}.", CHANNELS[level]
            shapes |= {name + "norm1.weight": (size,), name + "norm1.bias": (size,)}
            shapes |= {name + "conv1.weight": (out, size, 3, 3), name + "conv1.bias": (out,)}
            shapes |= {name + "norm2.weight": (out,), name + "norm2.bias": (out,)}
            shapes |= {name + "conv2.weight": (out, out, 3, 3), name + "conv2.bias": (out,)}
            if size != out:
                shapes |= {name + "nin_shortcut.weight": (out, size, 1, 1), name + "nin_shortcut.bias": (out,)}
            size = out
        if level:
            name = f"decoder.up.{level}.upsample.conv."
            shapes |= {name + "weight": (size, size, 3, 3), name + "bias": (size,)}
    shapes |= {"decoder.norm_out.weight": (32,), "decoder.norm_out.bias": (32,)}
    shapes |= {"decoder.conv_out.weight": (3, 32, 3, 3), "decoder.conv_out.bias": (3,)}
    return {name: torch.randn(size, generator=generator) * 0.3 for name, size in shapes.items()}


def reference_decode(state: dict[str, Tensor], codes: Tensor) -> Tensor:
    """Pictures of ``codes`` (B, h, w) from the definition of the VQGAN decoder, level by level from the coarsest."""

    def conv(x: Tensor, name: str, padding: int = 1) -> Tensor:
        return F.conv2d(x, state[name + ".weight"], state[name + ".bias"], padding=padding)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.group_norm(x, 32, state[name + ".weight"], state[name + ".bias"], eps=1e-6)

    def residual(x: Tensor, name: str) -> Tensor:
        inner = conv(F.silu(norm(x, name + ".norm1")), name + ".conv1")
        inner = conv(F.silu(norm(inner, name + ".norm2")), name + ".conv2")
        return (conv(x, name + ".nin_shortcut", 0) if name + ".nin_shortcut.weight" in state else x) + inner

    def attention(x: Tensor, name: str) -> Tensor:
        normed = norm(x, name + ".norm")
        query, key, value = (conv(normed, f"{name}.{part}", 0).flatten(2) for part in "qkv")
        weights = (query.transpose(1, 2) @ key * x.shape[1] ** -0.5).softmax(-1)
        return x + conv((value @ weights.transpose(1, 2)).view_as(x), name + ".proj_out", 0)

    x = F.embedding(codes, state["quantize.embedding.weight"]).permute(0, 3, 1, 2)
    x = conv(conv(x, "post_quant_conv", 0), "decoder.conv_in")
    x = residual(x, "decoder.mid.block_1")
    x = residual(attention(x, "decoder.mid.attn_1"), "decoder.mid.block_2")
    for level in (2, 1, 0):
        for block in range(BLOCKS + 1):
            x = residual(x, f"decoder.up.{level}.block.{block}")
        if level:
            x = conv(F.interpolate(x, scale_factor=2.0, mode="nearest"), f"decoder.up.{level}.upsample.conv")
    return conv(F.silu(norm(x, "decoder.norm_out")), "decoder.conv_out")


def saved(state: dict[str, Tensor], path: Path) -> Path:
    torch.save({"state_dict": state}, path)
    return path


def test_pictures_are_those_of_the_definition(state: dict[str, Tensor], tmp_path: Path) -> None:
    vq = load_chameleon_vq(saved(state, tmp_path / "vqgan.ckpt"))
    codes = torch.randint(CODES, (2, 3, 5), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(decode_codes(vq, codes), reference_decode(state, codes), atol=2e-4, rtol=1e-4)


def test_codes_are_those_of_transformers_encoder(state: dict[str, Tensor], tmp_path: Path) -> None:
    from mmspec.image.vq import encode_images

    config = ChameleonVQVAEConfig(
        embed_dim=WIDTH, num_embeddings=CODES, latent_channels=8, resolution=16, base_channels=32,
        channel_multiplier=[1, 2, 2], num_res_blocks=BLOCKS,
    )  # fmt: skip
    theirs = ChameleonVQVAE(config).eval()
    theirs.load_state_dict({k: v for k, v in state.items() if not k.startswith("decoder.")}, strict=True)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = theirs.encode(images).image_tokens.view(2, 4, 4)
    got = encode_images(load_chameleon_vq(saved(state, tmp_path / "vqgan.ckpt")), images)
    assert torch.equal(got, wanted)


def test_training_tensors_and_prefixes_are_known(state: dict[str, Tensor], tmp_path: Path) -> None:
    with_loss = {**state, "loss.discriminator.main.0.weight": torch.zeros(2), "loss.logvar": torch.zeros(1)}
    plain = load_chameleon_vq(saved(with_loss, tmp_path / "vqgan.ckpt")).state_dict()
    inside = {f"model.vqmodel.{name}": tensor for name, tensor in state.items()} | {"lm_head.weight": torch.zeros(2)}
    save_file(inside, tmp_path / "model.safetensors")
    nested = load_chameleon_vq(tmp_path / "model.safetensors").state_dict()
    assert plain.keys() == nested.keys()
    assert all(torch.equal(plain[name], nested[name]) for name in plain)


def test_missing_extra_and_misshapen_tensors_are_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    for name in (
        "decoder.up.2.upsample.conv.bias",
        "decoder.mid.attn_1.q.weight",
        "encoder.down.0.downsample.conv.weight",
    ):
        rest = {other: tensor for other, tensor in state.items() if other != name}
        with pytest.raises(ValueError, match=f"1 missing: {name}"):
            load_chameleon_vq(saved(rest, tmp_path / "vqgan.ckpt"))
    with pytest.raises(ValueError, match=r"1 unexpected: decoder\.up\.0\.attn\.0\.q\.weight"):
        load_chameleon_vq(saved({**state, "decoder.up.0.attn.0.q.weight": torch.zeros(2)}, tmp_path / "vqgan.ckpt"))
    with pytest.raises(ValueError, match=r"decoder\.conv_out\.bias has shape \(4,\) instead of \(3,\)"):
        load_chameleon_vq(saved({**state, "decoder.conv_out.bias": torch.zeros(4)}, tmp_path / "vqgan.ckpt"))


def test_an_encoder_alone_is_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    """transformers' own checkpoints hold no decoder."""
    encoder = {name: tensor for name, tensor in state.items() if not name.startswith("decoder.")}
    with pytest.raises(ValueError, match=r"with its decoder.*decoder\.conv_in\.weight"):
        load_chameleon_vq(saved(encoder, tmp_path / "vqgan.ckpt"))


def test_written_folder_reads_back_and_is_not_overwritten(state: dict[str, Tensor], tmp_path: Path) -> None:
    file = saved(state, tmp_path / "vqgan.ckpt")
    folder = convert_chameleon_vq(file, tmp_path / "vq", dtype=torch.float16)
    assert VQModel.from_pretrained(folder, torch_dtype=torch.float16).config.block_out_channels == list(CHANNELS)
    with pytest.raises(FileExistsError, match="not an empty folder"):
        convert_chameleon_vq(file, folder)


def test_released_model_has_its_published_parts() -> None:
    """vqgan.yaml: 128 channels times 1, 1, 2, 2, 4; two blocks; 8192 codes of 256."""
    tensors = {
        f"encoder.down.{level}.block.{block}.norm2.weight": torch.empty(128 * factor)
        for level, factor in enumerate((1, 1, 2, 2, 4))
        for block in (0, 1)
    }
    tensors |= {
        "post_quant_conv.weight": torch.empty(256, 256, 1, 1),
        "quantize.embedding.weight": torch.empty(8192, 256),
        "decoder.conv_in.weight": torch.empty(512, 256, 3, 3),
    }
    with torch.device("meta"):
        model = VQModel(**infer_config(tensors, "vqgan.ckpt"))
        encoder = ChameleonVQVAE(ChameleonVQVAEConfig())
    ours = sum(t.numel() for n, t in model.state_dict().items() if not n.startswith("decoder."))
    assert ours == sum(tensor.numel() for tensor in encoder.state_dict().values())


def test_command(state: dict[str, Tensor], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from mmspec.cli.app import app

    file = saved(state, tmp_path / "vqgan.ckpt")
    result = CliRunner().invoke(app, ["convert", "chameleon-vq", str(file), str(tmp_path / "vq")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "vq" / "config.json").is_file()
    assert "from_pretrained" in result.output
