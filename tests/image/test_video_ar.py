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


def test_rotary_table() -> None:
    """The spot check of the official code at (t, h, w) = (2, 3, 5), head of 24, and YaRN's factors."""
    table = rotary_table((3, 4, 6), 24, 500000.0)
    angles = torch.atan2(table[:, 1, 12:], table[:, 0, 12:])[2 * 24 + 3 * 6 + 5]
    expected = [2.0, 0.07521, 0.00283, 0.00011, 3.0, 0.11282, 0.00424, 0.00016, 5.0, 0.18803, 0.00707, 0.00027]
    turned = torch.remainder(torch.tensor(expected) - angles + torch.pi, 2 * torch.pi) - torch.pi
    assert turned.abs().max() < 1e-5
    plain, stretched = (rotary_frequencies(24, 500000.0, yarn) for yarn in (None, Yarn(2, 4, 1, (3, 40, 64))))
    torch.testing.assert_close(stretched[0] / plain[0], torch.full((4,), 0.5))
    wide = rotary_frequencies(128, 500000.0, Yarn(2, 4, 1, (3, 40, 64)))[1] / rotary_frequencies(128, 500000.0)[1]
    torch.testing.assert_close(wide[:5], torch.tensor([1.0, 0.9013, 0.6374, 0.5, 0.5]), atol=6e-5, rtol=0)
    prefixed = rotary_table((3, 4, 6), 24, 500000.0, prefix=1)
    assert torch.equal(prefixed[1:], table)
    assert bool((prefixed[0, 0] == 1).all())
    assert not prefixed[0, 1].any()


@torch.no_grad()
def test_positions_are_three_dimensional(load) -> None:
    """Rows and columns are told apart; a shift of all latent frames changes nothing without absolute embeddings."""
    model, tokens = load("base"), golden_tokens()[:, :12]
    logits = model(tokens, position_ids=positions(12)).logits
    later = model(tokens, position_ids=positions(12) + 12).logits
    torch.testing.assert_close(logits, later, atol=2e-5, rtol=0)
    transposed = torch.arange(12).view(3, 4).T.flatten()[None]
    assert (logits - model(tokens, position_ids=transposed).logits).abs().max() > 1e-2
    by_text = load("video2world")
    context = by_text.read_context(golden_context())
    early, shifted = (by_text(tokens, position_ids=positions(12) + s, context=context).logits for s in (1, 13))
    assert (early - shifted).abs().max() > 1e-2


@pytest.mark.parametrize("variant", GOLDEN)
@pytest.mark.parametrize("window", [1, 2, 4, 5, 15])
@torch.no_grad()
def test_windows_equal_the_full_forward(load, variant: str, window: int) -> None:
    """Also after a rejected tail of other codes was written to the same slots first."""
    model, tokens = load(variant), golden_tokens()
    context = None if variant != "video2world" else golden_context()
    whole = model(tokens, position_ids=positions(24), context=context).logits
    cache, past = SpecCache(1, 48, torch.device("cpu")), 24 - window
    cache.plan(past, past)
    output = model(tokens[:, :past], position_ids=positions(past), context=context, cache=cache)
    read = output.context
    cache.lengths = cache.lengths + past
    for codes in (63 - tokens[:, past:], tokens[:, past:]):
        cache.plan(window, past + window)
        place = past + positions(window)
        logits = model(codes, position_ids=place, context=read, cache=cache).logits
    torch.testing.assert_close(logits, whole[:, past:], atol=2e-5, rtol=0)


def test_a_context_must_fit_the_model(load) -> None:
    for variant, context in (("base", golden_context()), ("video2world", None)):
        with pytest.raises(ValueError, match="cross-attention"):
            load(variant)(golden_tokens(), position_ids=positions(24), context=context)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_kv_heads": 3},
        {"num_embeddings": 40},
        {"begin_token": 3},
        {"latent_shape": (2, 3)},
        {"head_dim": 5},
        {"yarn_scale": 2.0, "yarn_beta_fast": 0.5},
    ],
)
def test_impossible_networks_are_refused(wrong: dict) -> None:
    settings = {
        "vocab_size": 64, "hidden_size": 24, "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6,
        "intermediate_size": 8, "latent_shape": LATENT_SHAPE,
    }  # fmt: skip
    with pytest.raises(ValueError):
        VideoARTransformer(**{**settings, **wrong})


def test_released_sizes_are_read_off_the_tensors(load) -> None:
    config = load("video2world").config
    read = (config.vocab_size, config.num_embeddings, config.begin_token, config.context_dim, config.num_kv_heads)
    assert read == (64, 128, 64, 16, 2)
    assert config.absolute_positions
    assert load("yarn").config.yarn_scale == 2.0
    assert load("base").config.yarn_scale == 1.0


@pytest.mark.parametrize("change", ["missing", "unexpected", "misshapen"])
def test_files_that_do_not_fit_are_refused(tmp_path, change: str) -> None:
    state = cosmos_state(by_text=False)
    if change == "missing":
        del state["layers.1.attention.k_norm.weight"]
    elif change == "unexpected":
        state["layers.1.attention.bias"] = torch.zeros(3)
    else:
        state["layers.1.feed_forward.w2.weight"] = torch.zeros(96, 63)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"layers\.1\.(attention\.(k_norm|bias)|feed_forward\.w2)"):
        load_cosmos_ar(tmp_path / "model.pt", latent_shape=LATENT_SHAPE)
