import inspect

import pytest
import torch

from mmspec.image.llamagen import LlamaGenTransformer, feed_forward_size
from mmspec.image.llamagen_configs import RELEASED, SIZES, image_grid, llamagen_config


@pytest.mark.parametrize("name", SIZES)
def test_parameter_count_is_the_published_one(name):
    with torch.device("meta"):
        model = LlamaGenTransformer(**llamagen_config(name, 256, "class"))
    count = sum(parameter.numel() for parameter in model.parameters())
    published = SIZES[name].parameters
    digit = 1e6 if published < 1e9 else 1e7 if name == "XXL" else 1e8  # the last digit that the authors give
    assert abs(count - published) <= 0.6 * digit


@pytest.mark.parametrize("name", SIZES)
def test_feed_forward_width_follows_the_rule(name):
    assert SIZES[name].intermediate_size == feed_forward_size(SIZES[name].hidden_size)


def test_config_holds_only_arguments_of_the_model():
    legal = inspect.signature(LlamaGenTransformer.__init__).parameters
    assert llamagen_config("B", 256, "caption").keys() <= legal.keys()


def test_caption_config_of_the_512_pixel_release():
    config = llamagen_config("GPT-XL", 512, "caption")
    assert (config["grid_height"], config["grid_width"]) == (32, 32)
    assert (config["condition_length"], config["caption_dim"], config["num_classes"]) == (120, 2048, None)


def test_released_table_names_existing_sizes():
    assert len(RELEASED) == 9
    for name, checkpoint in RELEASED.items():
        assert checkpoint.file == f"{name}.pt"
        llamagen_config(checkpoint.size, checkpoint.image_size, checkpoint.condition)


def test_grid_of_a_rectangle_keeps_height_first():
    assert image_grid((256, 512)) == (16, 32)
    assert image_grid(256, downsample=8) == (32, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("M", 256, "class"), "B, L, XL"),
        (("B", 250, "class"), "multiple of 16"),
        (("B", 0, "class"), "multiple of 16"),
        (("B", 256, "text"), "class, caption"),
    ],
)
def test_illegal_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        llamagen_config(*arguments)
