import pytest
import torch
from diffusers import VQModel
from safetensors.torch import load_file
from torch.testing import assert_close

from mmspec.checkpoints.llamagen_vq import load_llamagen_vq
from mmspec.image.vq import decode_codes, downsample_factor, encode_images


@pytest.fixture(scope="module")
def reference(golden):
    vq = load_llamagen_vq(golden / "llamagen/vq_tiny_weights.safetensors")
    return vq, load_file(golden / "llamagen/vq_tiny_io.safetensors")


@pytest.fixture(scope="module")
def vq():
    torch.manual_seed(0)
    model = VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 8),
        latent_channels=4,
        num_vq_embeddings=30,
        norm_num_groups=4,
        vq_embed_dim=3,
        lookup_from_codebook=True,
    ).eval()
    model.quantize.embedding.weight.data.normal_()  # rows of unequal length
    return model


def test_codebook_entries_and_picture_equal_the_reference(reference):
    vq, io = reference
    codes = io["codes"].unflatten(1, (4, 4))
    entries = vq.quantize.get_codebook_entry(codes, (2, 4, 4, 8))
    assert_close(entries, io["codebook_entry"], rtol=0, atol=1e-6)
    assert_close(decode_codes(vq, codes), io["image"], rtol=0, atol=2e-5)


def test_encoded_codes_equal_the_reference(reference):
    vq, io = reference
    assert_close(vq.encode(io["encode_input"]).latents, io["encode_prequant"], rtol=0, atol=1e-5)
    codes = encode_images(vq, io["encode_input"])
    assert torch.equal(codes.flatten(1), io["encode_indices"])
    assert_close(decode_codes(vq, codes), io["decode_of_encode"], rtol=0, atol=2e-5)


def test_neighbours_are_those_of_the_normalised_codebook(reference):
    vq, io = reference
    codebook = vq.quantize.embedding.weight
    neighbours = torch.cdist(codebook, codebook).fill_diagonal_(torch.inf).argsort(-1)[:, :-1]
    assert torch.equal(neighbours, io["nearest_by_normalised"])
    assert not torch.equal(neighbours, io["nearest_by_raw"])


def test_codes_are_the_nearest_rows_for_any_codebook(vq):
    images = torch.randn(3, 3, 6, 10)
    latents = vq.encode(images).latents.permute(0, 2, 3, 1)
    expected = torch.cdist(latents.flatten(0, 2).double(), vq.quantize.embedding.weight.double()).argmin(-1)
    codes = encode_images(vq, images)
    assert codes.shape == (3, 3, 5)
    assert torch.equal(codes.flatten(), expected)


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 9])
def test_micro_batches_change_nothing(vq, micro_batch):
    images = torch.randn(3, 3, 4, 6)
    codes = encode_images(vq, images)
    assert torch.equal(encode_images(vq, images, micro_batch=micro_batch), codes)
    assert_close(decode_codes(vq, codes, micro_batch=micro_batch), decode_codes(vq, codes), rtol=0, atol=1e-5)


def test_picture_of_codes_has_rows_first(vq):
    assert downsample_factor(vq) == 2
    assert decode_codes(vq, torch.zeros(1, 2, 3, dtype=torch.long)).shape == (1, 3, 4, 6)


def test_illegal_inputs_are_named(vq):
    with pytest.raises(ValueError, match="codebook has 30 rows"):
        decode_codes(vq, torch.full((1, 2, 2), 30))
    with pytest.raises(ValueError, match="rows, columns"):
        decode_codes(vq, torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="multiples of 2"):
        encode_images(vq, torch.zeros(1, 3, 5, 4))
    plain = VQModel(block_out_channels=(4,), norm_num_groups=4)
    with pytest.raises(ValueError, match="lookup_from_codebook"):
        decode_codes(plain, torch.zeros(1, 2, 2, dtype=torch.long))
