"""The Cosmos decoder against golden logits of the official code, and what positions and caches must hold."""

from __future__ import annotations

import pytest
import torch

from mmspec.checkpoints.cosmos_ar import load_cosmos_ar
from mmspec.image.video_ar import VideoARTransformer
from mmspec.image.video_positions import Yarn, rotary_frequencies, rotary_table
from mmspec.runner.cache import SpecCache
from tests.oracles.cosmos import LATENT_SHAPE, cosmos_state, golden_context, golden_tokens

GOLDEN = {
    "base": (
        (-0.31215, -0.53723, 0.67476, 0.08179), (0.23549, -1.45010, 0.74328, 0.94841), 0.739913,
        [58, 42, 49, 20, 27, 57],
    ),
    "yarn": (
        (-0.31215, -0.53723, 0.67476, 0.08179), (0.24003, -1.50125, 0.77327, 0.97932), 0.738710,
        [58, 42, 49, 20, 27, 57],
    ),
    "video2world": (
        (-0.06157, 0.70120, -0.41172, -0.42330), (0.45862, -0.50653, -0.11673, 0.58532), 0.387036,
        [14, 45, 52, 13, 46, 50],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Load a golden variant through the converter, wrapped and prefixed as some files are."""
    folder = tmp_path_factory.mktemp("cosmos")

    def loaded(variant):
        path = folder / f"{variant}.pt"
        if not path.exists():
            state = {f"model.{name}": tensor for name, tensor in cosmos_state(variant == "video2world").items()}
            torch.save({"model": state | {"model.layers.0.attention._extra_state": None}}, path)
        return load_cosmos_ar(path, latent_shape=LATENT_SHAPE, yarn=variant == "yarn")

    return loaded


def positions(count):
    return torch.arange(count)[None]


@pytest.mark.parametrize("variant", GOLDEN)
def test_golden_logits(load, variant):
    model, tokens, context = load(variant), golden_tokens(), None
    if variant == "video2world":
        tokens = torch.cat([torch.tensor([[64]]), tokens], dim=1)
        context = model.read_context(golden_context())
    logits = model(tokens, position_ids=positions(tokens.shape[1]), context=context).logits[0]
    first, last, mean, best = GOLDEN[variant]
    torch.testing.assert_close(logits[0, :4], torch.tensor(first), atol=2e-5, rtol=0)
    torch.testing.assert_close(logits[-1, :4], torch.tensor(last), atol=2e-5, rtol=0)
    assert logits.abs().mean().item() == pytest.approx(mean, abs=2e-6)
    assert logits[:6].argmax(-1).tolist() == best
