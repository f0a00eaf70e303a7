"""The families' calls: sizes, prompts, streams, callbacks, pictures as the model's own code makes them, and refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import nn

from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.image.chameleon import lumina_sizes
from mmspec.pipelines.image import ImagePipeline
from tests.oracles.families import (
    PIPELINES,
    chameleon_model,
    chameleon_pipeline,
    chameleon_vq,
    emu3_pipeline,
    family_pipeline,
    janus_pipeline,
    janus_processor,
)

PROMPTS = ["a cat", "a very old red house on the moon"]
FAMILIES = pytest.mark.parametrize("family", PIPELINES)


@pytest.fixture
def pipe(family: str) -> ImagePipeline:
    return family_pipeline(family, drafter=JacobiDrafter(window=6, controller="fixed"))


@FAMILIES
def test_streamed_rows_are_final_and_callbacks_see_the_models_own_ids(pipe: ImagePipeline) -> None:
    """Fault 71."""
    seen: list[tuple[list[int], torch.Tensor]] = []

    def callback(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        seen.append((list(tensors["lengths"]), tensors["tokens"].clone()))

    whole = pipe(
        PROMPTS, seed=4, callback_on_step_end=callback, callback_on_step_end_tensor_inputs=["tokens", "lengths"]
    )
    for lengths, partial in seen:
        for row, length in enumerate(lengths):
            assert torch.equal(partial[row, :length], whole.tokens[row, :length])
    parts = list(pipe.stream(PROMPTS, seed=4))
    for before, after in itertools.pairwise(parts):
        assert all(a <= b for a, b in zip(before.rows, after.rows, strict=True))
    assert parts[-1].rows == [pipe.grid[0]] * 2
    for part in parts:
        for image, rows in zip(part.images, part.rows, strict=True):
            assert (np.asarray(image)[rows * pipe.pixels_per_code :] == 255).all()
    assert torch.equal(parts[-1].output.tokens, whole.tokens)
    for streamed, called in zip(parts[-1].output.images, whole.images, strict=True):
        assert (np.asarray(streamed) == np.asarray(called)).all()


@FAMILIES
def test_interrupted_pictures_keep_their_rows(pipe: ImagePipeline) -> None:
    def callback(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        pipeline._interrupt = step == 2

    whole, output = pipe(PROMPTS, seed=1), pipe(PROMPTS, seed=1, callback_on_step_end=callback)
    assert output.stats.finish_reasons == ["interrupted"] * 2
    for row, counts in enumerate(output.stats.rows):
        assert torch.equal(output.tokens[row, : counts.tokens], whole.tokens[row, : counts.tokens])
        assert not output.tokens[row, counts.tokens :].any()
    assert [image.size for image in output.images] == [image.size for image in whole.images]


@torch.no_grad()
def test_emu3_pictures_are_those_of_its_own_code() -> None:
    pipe = emu3_pipeline()
    output = pipe(PROMPTS, seed=1, height=6, width=10)
    for row in range(2):
        pixels = pipe.model.decode_image_tokens(image_tokens=output.tokens[row : row + 1], height=3, width=5)
        [image] = pipe.processor.postprocess(list(pixels.float()), return_tensors="PIL.Image.Image")["pixel_values"]
        assert image.size == output.images[row].size == (10, 6)
        assert np.abs(np.asarray(image).astype(int) - np.asarray(output.images[row])).max() <= 1


@torch.no_grad()
def test_janus_pictures_are_those_of_its_own_code() -> None:
    pipe = janus_pipeline()
    output = pipe(PROMPTS, seed=1)
    # its processor cannot turn these back without torchvision, so its mean and deviation, both 0.5, are undone here
    pixels = (pipe.model.decode_image_tokens(output.tokens) * 0.5 + 0.5).clamp(0, 1) * 255
    for ours, image in zip(output.images, pixels.numpy(), strict=True):
        assert np.abs(image - np.asarray(ours)).max() <= 1


@FAMILIES
def test_codebook_rows_are_what_the_picture_decoder_reads(pipe: ImagePipeline) -> None:
    """Moving a row of the codebook moves the pictures that hold its code, and no others."""
    grid = pipe.layout()
    codes = torch.randint(4, (1, grid.rows, grid.columns), generator=torch.Generator().manual_seed(0))
    assert pipe.codebook.shape[0] == grid.num_codes
    before = pipe.decode_codes(codes)
    tables = [m.weight for m in pipe.network.modules() if isinstance(m, nn.Embedding)]
    tables += [m.weight for m in getattr(pipe, "vq", nn.Module()).modules() if isinstance(m, nn.Embedding)]
    with torch.no_grad():
        for table in tables:
            if table.shape == pipe.codebook.shape:
                table[9] += torch.arange(table.shape[1])
        assert torch.equal(pipe.decode_codes(codes), before)
        changed = codes.clone()
        changed[0, 1, 1] = 9
        assert not torch.equal(pipe.decode_codes(changed), before)


def test_aspect_ratios_and_sizes_of_emu3() -> None:
    pipe = emu3_pipeline(drafter=JacobiDrafter(window=6, controller="fixed"))
    for ratio, sides in {"1:1": (4, 4), "5:3": (3, 5), "3:5": (5, 3), "15:1": (1, 15)}.items():
        grid = pipe.layout(aspect_ratio=ratio)
        assert (grid.rows, grid.columns) == sides
    by_ratio = pipe("a cat", seed=1, aspect_ratio="5:3", output_type="tokens").tokens
    by_side = pipe("a cat", seed=1, height=6, width=10, output_type="tokens").tokens
    assert torch.equal(by_ratio, by_side)
    with pytest.warns(UserWarning, match="about 60 pixels"):
        assert pipe("a cat", seed=1, height=2, output_type="pil").images[0].size == (8, 2)


def test_sizes_of_lumina() -> None:
    pipe = chameleon_pipeline("lumina")
    for size in lumina_sizes(4):
        image = pipe("a cat", seed=1, height=4 * size[0], width=4 * size[1]).images[0]
        assert image.size == (4 * size[1], 4 * size[0])
    assert pipe.layout(aspect_ratio="3:1").columns == 6
    assert pipe.layout(aspect_ratio="4:1").columns == 8
    assert pipe.layout(aspect_ratio="1:5").rows == 8


def test_lumina_sizes_are_the_published_ones() -> None:
    """Its 512-pixel model: the widest pictures are 1024 x 256, 992 x 256, ...; and all in both orientations."""
    sizes = {(32 * columns, 32 * rows) for rows, columns in lumina_sizes(256)}
    wide = [
        "1024x256",
        "992x256",
        "960x256",
        "928x256",
        "896x256",
        "896x288",
        "864x288",
        "832x288",
        "800x288",
        "800x320",
    ]
    for text in wide:
        width, height = map(int, text.split("x"))
        assert {(width, height), (height, width)} <= sizes
    assert (512, 512) in sizes
    assert max(width for width, _ in sizes) == 1024


def test_janus_without_a_chat_template_reads_the_prompt_as_it_is() -> None:
    pipe = janus_pipeline(processor=janus_processor(chat=False))
    ids = pipe.prompt_ids("a cat", pipe.layout())
    assert ids[-1] == 4
    assert len(ids) < len(janus_pipeline().prompt_ids("a cat", pipe.layout()))
    assert pipe("a cat", seed=1, output_type="tokens").tokens.shape == (1, 16)


class Counting(ModelHook):
    """As an offloading hook: it acts on the forward of the whole model, or when it is asked to."""

    calls = 0

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return args, kwargs


@FAMILIES
def test_offloading_hooks_run_although_the_trunk_is_called(pipe: ImagePipeline) -> None:
    """Fault 15."""
    wanted = pipe(PROMPTS, seed=3, output_type="tokens").tokens
    hook = Counting()
    add_hook_to_module(pipe.network, hook)
    assert torch.equal(pipe(PROMPTS, seed=3, output_type="tokens").tokens, wanted)
    assert hook.calls


@pytest.mark.parametrize("family", ["emu3", "janus"])
def test_compiled_trunks_equal_eager_without_growing_the_number_of_graphs(
    pipe: ImagePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured by dynamo and run as it is; the kernels that inductor makes are LlamaGen's test to judge."""
    compile_for_real, made = torch.compile, []

    def compile_eagerly(network: nn.Module, **options: Any) -> Any:
        made.append(network)
        return compile_for_real(network, dynamic=False, backend="eager")

    wanted = pipe(PROMPTS[0], seed=3, output_type="tokens").tokens
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    pipe.set_runner("compile")
    pipe(PROMPTS[0], seed=3, output_type="tokens")
    assert len(made) == 1
    torch._dynamo.utils.counters.clear()
    assert torch.equal(pipe(PROMPTS[0], seed=3, output_type="tokens").tokens, wanted)
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert not torch._dynamo.utils.counters["graph_break"]


def test_an_output_layer_that_is_no_plain_one_gives_the_same_tokens() -> None:
    """A quantised or adapted layer is called whole."""

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner, self.weight = inner, inner.weight

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.inner(hidden)

    pipe = emu3_pipeline()
    wanted = pipe(PROMPTS, seed=3, output_type="tokens").tokens
    pipe.model.lm_head = Wrapped(pipe.model.lm_head)
    assert torch.equal(pipe(PROMPTS, seed=3, output_type="tokens").tokens, wanted)


def test_cut_prompts_keep_what_opens_the_picture() -> None:
    pipe = emu3_pipeline()
    long = "cat " * 100
    room = 96 - pipe.layout().num_tokens
    with pytest.raises(ValueError, match=f"106 tokens.*room for {room}"):
        pipe(long)
    kept = pipe.encode_conditions(_call(long, truncate_prompt=True), pipe.layout()).conditional[0]
    assert len(kept) == room
    assert kept[-5:] == pipe.opening_ids(pipe.layout())
    assert pipe(long, truncate_prompt=True, seed=1, output_type="tokens").tokens.shape[1] == 23


def _call(prompt: str, **arguments: Any) -> Any:
    from mmspec.pipelines.image_call import ImageCall

    return ImageCall(prompt, **arguments)


@FAMILIES
def test_a_prompt_cannot_spell_the_picture(pipe: ImagePipeline) -> None:
    word = {"Emu3Pipeline": "<|image token|>", "JanusPipeline": "<boi>", "ChameleonPipeline": "<racm3:break>"}
    with pytest.raises(ValueError, match="opens or ends a picture"):
        pipe(f"a cat {word[type(pipe).__name__]} dog")


BAD = {
    "nothing": ({}, ValueError, "prompt"),
    "classes": ({"class_labels": 1}, ValueError, "class_labels"),
    "both": ({"prompt": "a", "class_labels": 1}, ValueError, "class_labels"),
    "no prompts": ({"prompt": []}, ValueError, "prompt"),
    "number as prompt": ({"prompt": 3}, TypeError, "3"),
    "top_k": ({"prompt": "a", "top_k": 17}, ValueError, "16"),
    "guidance": ({"prompt": "a", "guidance_scale": -1.0}, ValueError, "-1"),
    "height": ({"prompt": "a", "height": 7}, ValueError, "7"),
    "zero height": ({"prompt": "a", "height": 0}, ValueError, "0"),
    "half a width": ({"prompt": "a", "width": 8.5}, TypeError, "8.5"),
    "far too large": ({"prompt": "a", "height": 800, "width": 800}, ValueError, "800"),
    "ratio": ({"prompt": "a", "aspect_ratio": "wide"}, ValueError, "wide"),
    "ratio of nothing": ({"prompt": "a", "aspect_ratio": "0:1"}, ValueError, "0:1"),
    "ratio and side": ({"prompt": "a", "aspect_ratio": "1:1", "height": 8}, ValueError, "not both"),
    "too long": ({"prompt": "cat " * 100}, ValueError, "truncate_prompt"),
    "negative too long": ({"prompt": "a", "negative_prompt": "cat " * 100}, ValueError, "truncate_prompt"),
    "negative count": ({"prompt": ["a", "a", "a"], "negative_prompt": ["a", "a"]}, ValueError, "2"),
    "no images": ({"prompt": "a", "num_images_per_prompt": 0}, ValueError, "0"),
    "output": ({"prompt": "a", "output_type": "latent"}, ValueError, "latent"),
    "seed": ({"prompt": "a", "seed": -1}, ValueError, "-1"),
}


@FAMILIES
def test_bad_input_is_refused_before_any_forward(pipe: ImagePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults 37 and 39."""

    def forward(*arguments: Any, **named: Any) -> None:
        pytest.fail("a model ran before the arguments were checked")

    for module in pipe.network.modules():
        monkeypatch.setattr(module, "forward", forward)
    for name, (arguments, error, named) in BAD.items():
        with pytest.raises(error) as caught:
            pipe(**arguments)
        assert type(caught.value) is error, name
        assert named in str(caught.value), name


def test_only_sizes_are_listed_in_errors() -> None:
    with pytest.raises(ValueError, match=r"4 x 12.*8 x 8.*16 x 4"):
        chameleon_pipeline("lumina").layout(height=8, width=12)
    with pytest.raises(ValueError, match="must be 8 x 8"):
        janus_pipeline().layout(height=8, width=12)
    with pytest.raises(ValueError, match="8 x 8 pixels only"):
        chameleon_pipeline("anole").layout(aspect_ratio="2:1")


def test_chameleon_without_a_picture_decoder_gives_tokens_only() -> None:
    pipe = chameleon_pipeline("anole", vq=None)
    assert pipe("a cat", seed=1, output_type="tokens").tokens.shape == (1, 17)
    with pytest.raises(ValueError, match="chameleon-vq"):
        pipe("a cat", seed=1)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"anole or lumina.*None"):
        chameleon_pipeline(None)
    vq = chameleon_vq()
    vq.register_to_config(num_vq_embeddings=8)
    with pytest.raises(ValueError, match="8 codes"):
        chameleon_pipeline("anole", vq=vq)
    model = chameleon_model()
    model.config.vocabulary_map = {k: v for k, v in model.config.vocabulary_map.items() if k != "<eoss>"}
    with pytest.raises(ValueError, match="<eoss>"):
        chameleon_pipeline("anole", model=model)


@FAMILIES
def test_a_draft_model_of_another_vocabulary_is_refused(pipe: ImagePipeline) -> None:
    pipe.drafter = ModelDrafter()
    with pytest.raises(ValueError, match="model"):
        pipe("a cat")
