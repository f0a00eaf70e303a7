"""Tiny random LlamaGen weights under the names of the released files."""

from __future__ import annotations

import pytest
import torch
from diffusers import VQModel

WIDTH, INNER, VOCABULARY, LAYERS = 16, 24, 20, 2


def _decoder(condition):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator)

    state = {"tok_embeddings.weight": random(VOCABULARY, WIDTH)}
    if condition == "class":
        state["cls_embedding.embedding_table.weight"] = random(6, WIDTH)
    else:
        state["cls_embedding.cap_proj.fc1.weight"] = random(WIDTH, 8)
        state["cls_embedding.cap_proj.fc2.weight"] = random(WIDTH, WIDTH)
        state["cls_embedding.uncond_embedding"] = random(5, 8)
    for layer in range(LAYERS):
        name = f"layers.{layer}."
        state[name + "attention.wqkv.weight"] = random(3 * WIDTH, WIDTH)
        state[name + "attention.wo.weight"] = random(WIDTH, WIDTH)
        state[name + "feed_forward.w1.weight"] = random(INNER, WIDTH)
        state[name + "feed_forward.w3.weight"] = random(INNER, WIDTH)
        state[name + "feed_forward.w2.weight"] = random(WIDTH, INNER)
        state[name + "attention_norm.weight"] = random(WIDTH)
        state[name + "ffn_norm.weight"] = random(WIDTH)
    return state | {"norm.weight": random(WIDTH), "output.weight": random(VOCABULARY, WIDTH)}


@pytest.fixture(params=["class", "caption"])
def decoder_state(request):
    """A decoder's tensors under the authors' names, of either condition."""
    return _decoder(request.param)


@pytest.fixture
def caption_state():
    return _decoder("caption")


@pytest.fixture
def class_state():
    return _decoder("class")


@pytest.fixture
def vq_model():
    """A tiny VQ model of LlamaGen's design, 2 pixels a code, with rows of the codebook that are not unit vectors."""
    torch.manual_seed(0)
    return VQModel(
        down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=2,
        latent_channels=4,
        num_vq_embeddings=VOCABULARY,
        vq_embed_dim=3,
        lookup_from_codebook=True,
    ).eval()


_TO_AUTHORS = {
    "down_blocks": "conv_blocks",
    "up_blocks": "conv_blocks",
    "resnets": "res",
    "attentions": "attn",
    "mid_block.res.0": "mid.0",
    "mid_block.attn.0": "mid.1",
    "mid_block.res.1": "mid.2",
    "downsamplers.0": "downsample",
    "upsamplers.0": "upsample",
    "group_norm": "norm",
    "conv_norm_out": "norm_out",
    "conv_shortcut": "nin_shortcut",
    "to_out.0": "proj_out",
    "to_": "",
}


@pytest.fixture
def vq_state(vq_model):
    """The tensors of ``vq_model`` under the authors' names, and the training statistic that some files hold."""
    state = {"quantize.codebook_used": torch.zeros(64)}
    for name, tensor in vq_model.state_dict().items():
        is_attention = "attentions" in name and name.endswith("weight") and "norm" not in name
        for ours, theirs in _TO_AUTHORS.items():
            name = name.replace(ours, theirs)
        state[name] = tensor[..., None, None] if is_attention else tensor
    return state
