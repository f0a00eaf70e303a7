"""Released Cosmos files: names of the tokenizer, strictness, TorchScript, and the commands that write pipelines."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from mmspec.checkpoints.cosmos_dv import load_cosmos_dv
from mmspec.cli.app import app
from mmspec.cli.convert_video import parse_shape
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from tests.oracles.cosmos import VOCAB, cosmos_state

LEVELS = (4, 4, 4)  # 64 codes, as the tiny decoder has


@pytest.fixture(scope="module")
def tokenizer() -> DiscreteVideoTokenizer:
    """Three levels and all kinds of layers, 8 pixels a code and 4 frames a latent frame, other widths everywhere."""
    torch.manual_seed(0)
    model = DiscreteVideoTokenizer(
        encoder_channels=(4, 6, 8, 10), decoder_channels=(5, 7, 9, 11), layers_per_block=2, latent_channels=6,
        levels=LEVELS, attention_resolutions=(), resolution=64, patch_size=2, spatial_compression=8, temporal_compression=4, chunk_frames=5,
    )  # fmt: skip
    return model.eval()


# written from the documented list, in the other direction
_TO_RELEASED = (
    (r"\.to_([qkv])\.", r".\1.conv3d."),
    (r"\.to_out\.0\.", ".proj_out.conv3d."),
    (r"\.conv_s\.", ".0.conv3d."),
    (r"\.conv_t\.", ".1.conv3d."),
    (r"(samplers\.0)\.conv(\d)\.", r"\1.conv\2.conv3d."),
    (r"conv_shortcut\.", "nin_shortcut.conv3d."),
    (r"quant_conv\.", "quant_conv.conv3d."),
    (r"downsamplers\.0", "downsample"),
    (r"upsamplers\.0", "upsample"),
    (r"mid_block\.resnets\.0", "mid.block_1"),
    (r"mid_block\.resnets\.1", "mid.block_2"),
    (r"mid_block\.attentions\.0", "mid.attn_1.0"),
    (r"mid_block\.temp_attentions\.0", "mid.attn_1.1"),
    (r"\.resnets\.", ".block."),
    (r"down_blocks\.", "down."),
    (r"up_blocks\.(\d)", lambda m: f"up.{2 - int(m[1])}"),
)


def released(model: DiscreteVideoTokenizer) -> dict[str, torch.Tensor]:
    state = {}
    for name, tensor in model.state_dict().items():
        for pattern, replacement in _TO_RELEASED:
            name = re.sub(pattern, replacement, name)
        state[name] = tensor
    buffers = {"encoder.patcher3d.wavelets": torch.ones(2), "quantizer._levels": torch.tensor(LEVELS)}
    return state | buffers | {"decoder.unpatcher3d._arange": torch.arange(2)}


def test_documented_names_are_read(tokenizer: DiscreteVideoTokenizer, tmp_path) -> None:
    state = released(tokenizer)
    assert {"encoder.conv_in.0.conv3d.weight", "decoder.up.0.block.2.conv2.1.conv3d.bias"} <= state.keys()
    assert {"encoder.mid.attn_1.1.q.conv3d.weight", "post_quant_conv.conv3d.weight"} <= state.keys()
    torch.save(state, tmp_path / "whole.pt")
    for half in ("encoder", "decoder"):
        own = {k: v for k, v in state.items() if k.startswith(half) or (half == "encoder") == k.startswith("quant")}
        torch.save(own, tmp_path / f"{half}.pt")
    video = torch.rand(1, 3, 5, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for files in (["whole.pt"], ["encoder.pt", "decoder.pt"]):
        loaded = load_cosmos_dv(*(tmp_path / file for file in files), levels=LEVELS, chunk_frames=5)
        codes = loaded.encode(video)
        assert torch.equal(codes, tokenizer.encode(video))
        assert torch.equal(loaded.decode(codes), tokenizer.decode(codes))


class _Holder(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_torchscript_archives_are_read(tmp_path) -> None:
    torch.jit.script(_Holder(torch.ones(3))).save(str(tmp_path / "autoencoder.jit"))
    with pytest.raises(ValueError, match=r"autoencoder\.jit is no Cosmos video tokenizer"):
        load_cosmos_dv(tmp_path / "autoencoder.jit")
    (tmp_path / "broken.jit").write_bytes(b"PK not an archive")
    with pytest.raises(ValueError, match="damaged"):
        load_cosmos_dv(tmp_path / "broken.jit")


@pytest.mark.parametrize("change", ["missing", "unexpected", "misshapen"])
def test_files_that_do_not_fit_are_refused(tokenizer: DiscreteVideoTokenizer, tmp_path, change: str) -> None:
    state = released(tokenizer)
    name = "encoder.down.1.block.1.norm2.norm.bias"
    if change == "missing":
        del state[name]
    elif change == "unexpected":
        state["encoder.extra.weight"] = torch.zeros(1)
    else:
        state[name] = torch.zeros(3)
    torch.save(state, tmp_path / "tokenizer.pt")
    with pytest.raises(ValueError, match=r"down_blocks\.1\.resnets\.1\.norm2\.norm\.bias|encoder\.extra\.weight"):
        load_cosmos_dv(tmp_path / "tokenizer.pt", levels=LEVELS, chunk_frames=5)


def test_levels_must_fit_the_channels(tokenizer: DiscreteVideoTokenizer, tmp_path) -> None:
    torch.save(released(tokenizer), tmp_path / "tokenizer.pt")
    with pytest.raises(ValueError, match="3 channels"):
        load_cosmos_dv(tmp_path / "tokenizer.pt")


def mmspec(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_commands_write_a_pipeline(tokenizer: DiscreteVideoTokenizer, tmp_path, monkeypatch) -> None:
    from mmspec.pipelines.video import VideoPipeline

    tiny = partial(load_cosmos_dv, levels=LEVELS, chunk_frames=5)  # the released levels are not in the file
    monkeypatch.setattr("mmspec.checkpoints.cosmos_writing.load_cosmos_dv", tiny)
    torch.save(released(tokenizer), tmp_path / "tokenizer.pt")
    torch.save({"model": cosmos_state(by_text=False)}, tmp_path / "model.pt")
    result = mmspec("convert", "cosmos-dv", tmp_path / "tokenizer.pt", "--out", tmp_path / "dv")
    assert result.exit_code == 0, result.stderr
    words = ("--video-tokenizer", tmp_path / "dv", "--latent-shape", "2x3x4", "--out", tmp_path / "pipe")
    result = mmspec("convert", "cosmos-ar", tmp_path / "model.pt", *words)
    assert result.exit_code == 0, result.stderr
    pipe = VideoPipeline.from_pretrained(tmp_path / "pipe")
    assert (pipe.num_frames, pipe.frame_size, pipe.layout.num_codes) == (5, (24, 32), VOCAB)
    result = mmspec("convert", "cosmos-ar", tmp_path / "model.pt", *words)
    assert result.exit_code == 2
    assert "not an empty folder" in result.stderr


def test_shapes_are_read() -> None:
    assert parse_shape("5x40x64") == (5, 40, 64)
    for wrong in ("5x40", "axbxc", "5x0x3", ""):
        with pytest.raises(ValueError, match="5x40x64"):
            parse_shape(wrong)
