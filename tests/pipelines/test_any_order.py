"""The any-order pipeline: windows equal plain decoding, kept cells stay, saved pipelines load, wrong calls are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec import AutoImagePipeline
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.pipelines.any_order import AnyOrderPipeline
from tests.oracles.any_order import NETWORKS, tiny_network
from tests.oracles.tiny import tiny_vq

NAMES = ["cat", "dog", "sun", "moon"]


def tiny_any_order(kind: str = "randar", **changes: object) -> AnyOrderPipeline:
    """Pictures of 6 x 8 pixels, 3 x 4 cells over seven codes."""
    settings: dict = {
        "guidance_scale": 2.0,
        "class_names": NAMES,
        "drafter": JacobiDrafter(6, initializer="uniform", controller="fixed"),
    }
    pipe = AnyOrderPipeline(tiny_network(kind, 7, (3, 4)), tiny_vq(7), **{**settings, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def left_half() -> Image.Image:
    """A mask that paints the right half of the cells anew."""
    return Image.fromarray(np.repeat(np.array([[0, 0, 0, 0, 255, 255, 255, 255]], dtype=np.uint8), 6, axis=0))


@pytest.mark.parametrize("kind", NETWORKS)
def test_speculation_changes_no_token_in_any_order(kind: str) -> None:
    pipe = tiny_any_order(kind)
    call = {"class_labels": ["cat", 2], "num_images_per_prompt": 2, "seed": [3, 4, 5, 6]}
    for order, order_seed in (("raster", 0), ("random", 0), ("random", 1)):
        which = {"order": order, "order_seed": order_seed, "output_type": "tokens"}
        fast = pipe(**call, **which)
        assert torch.equal(fast.tokens, pipe(**call, **which, speculate=False).tokens)
        assert fast.stats.forwards < 12
        assert torch.equal(fast.tokens, pipe(**call, **which, micro_batch_size=3).tokens)
        assert torch.equal(fast.tokens[1:2], pipe(class_labels="cat", seed=4, **which).tokens)
    assert not torch.equal(fast.tokens, pipe(**call, output_type="tokens").tokens)  # another order, other pictures
    assert fast.stats.guarantee.value == "SAME_TOKENS"


@pytest.mark.parametrize("kind", NETWORKS)
def test_kept_cells_stay_and_the_others_are_painted(kind: str) -> None:
    pipe = tiny_any_order(kind)
    tokens = torch.randint(7, (1, 12), generator=torch.Generator().manual_seed(0))
    pipe._known_tokens = lambda image, cells, count: tokens[:, cells].repeat(count, 1)  # a random VQ keeps no codes
    call = {"class_labels": [1, 3], "image": left_half(), "mask_image": left_half(), "output_type": "tokens"}
    painted = pipe(**call, seed=1)
    kept = torch.tensor([0, 1, 4, 5, 8, 9])
    assert torch.equal(painted.tokens[:, kept], tokens[:, kept].repeat(2, 1))
    assert torch.equal(painted.tokens, pipe(**call, seed=1, speculate=False).tokens)
    assert not torch.equal(painted.tokens, pipe(**call, seed=2).tokens)
    grouped = pipe(**call, seed=1, parallel_steps=3)
    assert torch.equal(grouped.tokens[:, kept], painted.tokens[:, kept])
    assert grouped.stats.forwards == 3


def test_known_cells_are_the_codes_of_the_picture() -> None:
    pipe = tiny_any_order()
    picture = Image.effect_noise((8, 6), 80).convert("RGB")
    codes = pipe._known_tokens(picture, torch.arange(12), 2)
    assert torch.equal(codes[0], codes[1])
    output = pipe(class_labels=0, image=picture, mask_image=left_half(), seed=0)
    kept = torch.tensor([0, 1, 4, 5, 8, 9])
    assert torch.equal(output.tokens[0, kept], codes[0, kept])
    assert output.images[0].size == (8, 6)


def test_native_groups_name_their_law() -> None:
    pipe = tiny_any_order()
    output = pipe(class_labels="sun", seed=1, parallel_steps=4, output_type="tokens")
    assert (output.stats.guarantee.value, output.stats.forwards, output.stats.method) == (
        "LAW_OF_TRANSFORM",
        4,
        "parallel",
    )
    one = pipe(class_labels="sun", seed=1, parallel_steps=12, output_type="tokens")
    assert one.stats.guarantee.value == "SAME_TOKENS"
    assert torch.equal(one.tokens, pipe(class_labels="sun", seed=1, speculate=False, output_type="tokens").tokens)


def test_streams_show_committed_cells_and_saved_pipelines_load(tmp_path: Path) -> None:
    pipe = tiny_any_order()
    whole = pipe(class_labels="dog", seed=2)
    parts = list(pipe.stream(class_labels="dog", seed=2))
    assert parts[-1].finished
    assert torch.equal(parts[-1].output.tokens, whole.tokens)
    white = [int((np.asarray(part.images[0]) == 255).all(-1).sum()) for part in parts]
    assert white[0] > white[-1]
    pipe.save_pretrained(tmp_path)
    loaded = AutoImagePipeline.from_pretrained(tmp_path)
    assert isinstance(loaded, AnyOrderPipeline)
    assert torch.equal(loaded(class_labels="dog", seed=2, output_type="tokens").tokens, whole.tokens)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"prompt": "a cat"}, "classes only"),
        ({}, "class_labels"),
        ({"class_labels": "bird"}, "cat, dog"),
        ({"class_labels": 4}, "0 to 3"),
        ({"class_labels": []}, "empty"),
        ({"class_labels": 0, "order": "spiral"}, "raster, random"),
        ({"class_labels": 0, "image": left_half()}, "together"),
        ({"class_labels": 0, "image": left_half(), "mask_image": np.zeros((6, 8))}, "nothing to paint"),
        ({"class_labels": 0, "image": [left_half()] * 2, "mask_image": left_half()}, "2 pictures for 1"),
        ({"class_labels": 0, "parallel_steps": 13}, "steps"),
        ({"class_labels": 0, "parallel_steps": 4, "speculate": False}, "parallel_steps"),
    ],
)
def test_wrong_calls_are_refused(arguments: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        tiny_any_order()(seed=0, **arguments)
