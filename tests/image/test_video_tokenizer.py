"""Finite scalar quantisation against golden values, and the causality that streaming rests on."""

from __future__ import annotations

import pytest
import torch

from mmspec.image.fsq import FiniteScalarQuantizer
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from tests.oracles.video import tiny_video_tokenizer

COSMOS_LEVELS = (8, 8, 8, 5, 5, 5)


def test_golden_quantisation() -> None:
    quantizer = FiniteScalarQuantizer(COSMOS_LEVELS)
    latent = torch.tensor([0.1, -0.7, 2, 0.3, -0.2, -3])
    bounded = torch.tensor([0.3373, -2.2701, 2.9085, 0.5832, -0.3951, -1.9921])
    torch.testing.assert_close(quantizer.bound(latent), bounded, atol=6e-5, rtol=0)
    assert quantizer.quantize(latent).tolist() == [0, -0.5, 0.75, 0.5, 0, -1]
    assert int(quantizer.indices(latent)) == 7124
    values = quantizer.values(torch.tensor([12345, 0, 63999]))
    assert values.tolist() == [[-0.75, 0.75, -1, 1, 1, -1], [-1] * 6, [0.75, 0.75, 0.75, 1, 1, 1]]


def test_every_code_comes_back() -> None:
    """Through its value, and through a latent that is that value before squashing, in half precision too."""
    quantizer = FiniteScalarQuantizer(COSMOS_LEVELS)
    codes = torch.arange(quantizer.num_codes)
    values = quantizer.values(codes)
    assert torch.equal(values.bfloat16().float(), values)  # multiples of 1/4 and 1/2
    scale, offset = values.new_tensor(quantizer._scale), values.new_tensor(quantizer._offset)
    bounded = values * values.new_tensor(quantizer._half)
    latents = torch.atanh(((bounded + offset) / scale).clamp(-0.9999, 0.9999)) - torch.atanh(offset / scale)
    assert torch.equal(quantizer.indices(latents), codes)


def test_gradients_pass_through_the_rounding() -> None:
    quantizer = FiniteScalarQuantizer((3, 4))
    latent = torch.tensor([[0.2, -0.3]], requires_grad=True)
    quantizer.quantize(latent).sum().backward()
    assert bool((latent.grad > 0).all())


@pytest.mark.parametrize("levels", [(), (8, 1)])
def test_impossible_levels_are_refused(levels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="levels"):
        FiniteScalarQuantizer(levels)


@pytest.fixture(scope="module")
def tokenizer() -> DiscreteVideoTokenizer:
    return tiny_video_tokenizer()


@torch.no_grad()
def test_the_head_of_a_clip_stands_for_itself(tokenizer: DiscreteVideoTokenizer) -> None:
    """Prefix decode is the head of the full decode, prefix encode has the head's codes."""
    videos = torch.rand(2, 3, 7, 12, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    codes = tokenizer.encode(videos)
    whole = tokenizer.decode(codes)
    assert codes.shape == (2, 4, 3, 4)
    assert whole.shape == videos.shape
    for frames in (1, 2, 3):
        head = tokenizer.pixel_frames(frames)
        torch.testing.assert_close(tokenizer.decode(codes[:, :frames]), whole[:, :, :head], atol=1e-5, rtol=0)
        torch.testing.assert_close(
            tokenizer.encode_latents(videos[:, :, :head]),
            tokenizer.encode_latents(videos)[:, :frames],
            atol=1e-5,
            rtol=0,
        )
        assert torch.equal(tokenizer.encode(videos[:, :, :head]), codes[:, :frames])


@torch.no_grad()
def test_repeating_the_last_frame_of_a_prompt_leaves_its_codes(tokenizer: DiscreteVideoTokenizer) -> None:
    video = torch.rand(1, 3, 3, 12, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    padded = torch.cat([video, video[:, :, -1:].expand(-1, -1, 4, -1, -1)], dim=2)
    assert torch.equal(tokenizer.encode(padded)[:, :2], tokenizer.encode(video))


def test_frame_counts() -> None:
    with torch.device("meta"):
        released = DiscreteVideoTokenizer(
            encoder_channels=(8, 8, 8, 8), decoder_channels=(8, 8, 8, 8), layers_per_block=1
        )
    for frames, latent in ((1, 1), (9, 2), (17, 3), (33, 5)):
        assert released.latent_frames(frames) == latent
        assert released.pixel_frames(latent) == frames
    assert released.pixel_frames(0) == 0
    for wrong in (0, 2, 8, 32):
        with pytest.raises(ValueError, match="multiple of 8"):
            released.latent_frames(wrong)


@pytest.mark.parametrize(
    "shape", [(1, 3, 7, 12), (1, 4, 7, 12, 16), (1, 3, 7, 10, 16), (1, 3, 6, 12, 16), (0, 3, 7, 12, 16)]
)
def test_wrong_videos_are_refused(tokenizer: DiscreteVideoTokenizer, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        tokenizer.encode(torch.zeros(shape))


def test_wrong_codes_are_refused(tokenizer: DiscreteVideoTokenizer) -> None:
    for codes in (torch.zeros(1, 3, 4).long(), torch.full((1, 1, 3, 4), 9), torch.full((1, 1, 3, 4), -1)):
        with pytest.raises(ValueError):
            tokenizer.decode(codes)


@pytest.mark.parametrize(
    "wrong", [{"patch_size": 3}, {"spatial_compression": 2}, {"temporal_compression": 12}, {"chunk_frames": 8}]
)
def test_impossible_networks_are_refused(wrong: dict[str, int]) -> None:
    settings = {"patch_size": 4, "spatial_compression": 8, "temporal_compression": 8, "chunk_frames": 9}
    with pytest.raises(ValueError):
        DiscreteVideoTokenizer(**{**settings, **wrong})


def test_saved_and_loaded_it_is_the_same(tokenizer: DiscreteVideoTokenizer, tmp_path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = DiscreteVideoTokenizer.from_pretrained(tmp_path)
    codes = torch.randint(9, (1, 2, 3, 4), generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.decode(codes), tokenizer.decode(codes))
