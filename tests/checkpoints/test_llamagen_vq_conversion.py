import pytest
import torch
import torch.nn.functional as F
from diffusers import VQModel
from safetensors.torch import load_file, save_file

from mmspec.checkpoints.llamagen_vq import convert_llamagen_vq, infer_vq_config, load_llamagen_vq


def saved(state, path):
    torch.save({"model": state}, path)
    return path


def test_every_tensor_is_only_renamed_and_the_codebook_normalised(vq_model, vq_state, tmp_path):
    converted = load_llamagen_vq(saved(vq_state, tmp_path / "vq.pt")).state_dict()
    for name, tensor in vq_model.state_dict().items():
        expected = F.normalize(tensor, dim=-1) if name == "quantize.embedding.weight" else tensor
        assert torch.equal(converted[name], expected), name
    assert converted.keys() == vq_model.state_dict().keys()


def test_saved_folder_reads_back(vq_state, tmp_path):
    vq_state.pop("quantize.codebook_used")
    save_file({name: tensor.contiguous() for name, tensor in vq_state.items()}, tmp_path / "vq.safetensors")
    folder = convert_llamagen_vq(tmp_path / "vq.safetensors", tmp_path, dtype=torch.float64)
    stored = load_file(folder / "diffusion_pytorch_model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float64}
    assert VQModel.from_pretrained(folder).config.block_out_channels == [32, 64]


def test_missing_tensors_are_named(vq_state, tmp_path):
    del vq_state["quantize.codebook_used"]
    for name in [*sorted(vq_state)[::9], "quantize.embedding.weight", "post_quant_conv.weight", "quant_conv.bias"]:
        rest = {other: tensor for other, tensor in vq_state.items() if other != name}
        # The second name: what tells the channels of a level is asked for by pattern.
        names = rf"{name}|encoder\.conv_blocks\.N\.res\.M\.norm2\.weight"
        with pytest.raises(ValueError, match=names):
            load_llamagen_vq(saved(rest, tmp_path / "vq.pt"))


def test_extra_and_misshapen_tensors_are_named(vq_state, tmp_path):
    with pytest.raises(ValueError, match=r"1 unexpected: loss\.logvar"):
        load_llamagen_vq(saved(vq_state | {"loss.logvar": torch.zeros(1)}, tmp_path / "vq.pt"))
    wrong = {"decoder.mid.1.q.weight": torch.zeros(64, 64)}  # the right numbers, but not as a convolution
    with pytest.raises(
        ValueError, match=r"decoder\.mid\.1\.q\.weight has shape \(64, 64\) instead of \(64, 64, 1, 1\)"
    ):
        load_llamagen_vq(saved(vq_state | wrong, tmp_path / "vq.pt"))


def test_decoder_file_is_no_vq(class_state, tmp_path):
    with pytest.raises(ValueError, match="no LlamaGen VQ tokenizer"):
        load_llamagen_vq(saved(class_state, tmp_path / "vq.pt"))


def test_released_tokenizer_has_the_published_size():
    channels = (128, 128, 256, 256, 512)
    tensors = {
        f"encoder.conv_blocks.{level}.res.{block}.norm2.weight": torch.empty(size)
        for level, size in enumerate(channels)
        for block in (0, 1)
    }
    tensors |= {
        "post_quant_conv.weight": torch.empty(256, 8, 1, 1),
        "quantize.embedding.weight": torch.empty(16384, 8),
    }
    with torch.device("meta"):
        state = VQModel(**infer_vq_config(tensors, "vq.pt")).state_dict()
    assert len(state) == 343
    assert round(sum(tensor.numel() for tensor in state.values()) / 1e5) == 719
