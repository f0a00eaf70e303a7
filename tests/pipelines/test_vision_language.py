"""Questions about pictures: the call's arguments, its errors, and that speculation never changes an answer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec import AutoVisionLanguagePipeline, ScaffoldDrafter, VisionLanguagePipeline
from mmspec.drafters.feature import FeatureDrafter
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.training.vlm_tokenizer import VOCAB_SIZE, picture_processor
from mmspec.vlm.images import load_image
from tests.oracles.vlm import reading_model, tiny_block, tiny_eagle3, tiny_mtp

BUDGET = 12


def picture(seed: int = 0, size: tuple[int, int] = (48, 32)) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.fixture
def pipe() -> VisionLanguagePipeline:
    pipe = VisionLanguagePipeline(reading_model(), picture_processor(), NGramDrafter(num_draft_tokens=4))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def ask(pipe: VisionLanguagePipeline, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "prompt": ["what is this?", "read", "say more"], "max_new_tokens": BUDGET,
        "images": [picture(), picture(1, (16, 64)), []], "seed": 3,
    }  # fmt: skip
    return pipe(**{**settings, **changes})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_no_answer(pipe: VisionLanguagePipeline, temperature: float) -> None:
    plain = ask(pipe, temperature=temperature, speculate=False)
    assert len(set(map(tuple, plain.tokens))) == 3
    for drafter in (
        NGramDrafter(),
        JacobiDrafter(window=5, controller="fixed"),
        ModelDrafter(3, model=reading_model()),
        ModelDrafter(3, model=reading_model(1)),
        tiny_block(reading_model(), num_nodes=12),
        tiny_eagle3(reading_model(), compression="pool"),
        tiny_mtp(reading_model(), tree="dynamic", num_nodes=9),
    ):
        pipe.drafter = drafter
        output = ask(pipe, temperature=temperature)
        assert output.tokens == plain.tokens
        assert output.texts == plain.texts
        assert output.stats.lossless


def test_greedy_equals_generate(pipe: VisionLanguagePipeline) -> None:
    output = pipe("what is this?", picture(), max_new_tokens=BUDGET, min_new_tokens=BUDGET)
    processor = pipe.processor
    inputs = processor(text=["<s><image>what is this?<answer>"], images=[picture()], return_tensors="pt")
    wanted = pipe.model.generate(**inputs, do_sample=False, max_new_tokens=BUDGET, min_new_tokens=BUDGET)
    assert output.tokens[0] == wanted[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_rows_do_not_depend_on_their_batch(pipe: VisionLanguagePipeline, micro_batch_size: int) -> None:
    together = ask(pipe, temperature=1.0)
    assert ask(pipe, temperature=1.0, micro_batch_size=micro_batch_size).tokens == together.tokens
    alone = pipe("read", picture(1, (16, 64)), max_new_tokens=BUDGET, temperature=1.0, seed=4)
    assert alone.tokens[0] == together.tokens[1]


def test_messages_equal_a_prompt(pipe: VisionLanguagePipeline) -> None:
    by_prompt = pipe("what is this?", picture(), max_new_tokens=4)
    parts = [{"type": "image", "image": picture()}, {"type": "text", "text": "what is this?"}]
    talk = [{"role": "user", "content": parts}]
    assert pipe(messages=talk, max_new_tokens=4).tokens == by_prompt.tokens
    assert pipe(messages=[talk, talk], max_new_tokens=4).tokens == by_prompt.tokens * 2
    later = [{"role": "user", "content": [{"type": "image"}, parts[1]]}]
    assert pipe(messages=later, images=picture(), max_new_tokens=4).tokens == by_prompt.tokens


def test_several_pictures_in_one_prompt(pipe: VisionLanguagePipeline) -> None:
    both = [picture(), picture(1)]
    pair = pipe("compare", both, max_new_tokens=6, seed=0)
    assert pipe(["compare"], [both], max_new_tokens=6, seed=0).tokens == pair.tokens
    assert pipe("compare", both[::-1], max_new_tokens=6, seed=0).tokens != pair.tokens


def kinds_of_pictures() -> dict[str, Any]:
    """One of each kind that users have and the vision tower does not expect."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 48), dtype=np.uint8)
    turned, rotated = io.BytesIO(), Image.Exif()
    rotated[0x0112] = 6
    picture().save(turned, "JPEG", exif=rotated)
    return {
        "grey": Image.fromarray(noise), "alpha": picture().convert("RGBA"), "cmyk": picture().convert("CMYK"),
        "palette": picture().convert("P"), "16 bits": Image.fromarray(noise.astype(np.uint16) * 257),
        "one pixel": Image.new("RGB", (1, 1), "red"), "narrow": picture(2, (16, 384)), "turned": turned.getvalue(),
    }  # fmt: skip


@pytest.mark.parametrize("kind", sorted(kinds_of_pictures()))
def test_every_kind_of_picture_is_answered(pipe: VisionLanguagePipeline, kind: str) -> None:
    """And the text-only question after it as if it had not been there."""
    text = pipe("hello", max_new_tokens=6).tokens
    shown = kinds_of_pictures()[kind]
    plain = pipe("read", shown, max_new_tokens=8, speculate=False)
    pipe.drafter = tiny_block(reading_model(), num_nodes=9)
    assert pipe("read", shown, max_new_tokens=8).tokens == plain.tokens
    assert pipe("hello", max_new_tokens=6).tokens == text
    assert pipe("read", load_image(shown), max_new_tokens=8).tokens == plain.tokens


@pytest.mark.parametrize("size", [(1, 400), (4000, 1)])
def test_pictures_too_narrow_for_the_processor_are_named(pipe: VisionLanguagePipeline, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"LlavaProcessor cannot read pictures of {size[0]} x {size[1]} pixels"):
        pipe("read", picture(2, size), max_new_tokens=4)


def written(pipe: VisionLanguagePipeline) -> str:
    [text] = pipe("what is this?", picture(), max_new_tokens=BUDGET, min_new_tokens=BUDGET, speculate=False).texts
    assert len(text) == BUDGET
    return text


def test_a_stop_string_ends_the_answer_wherever_a_draft_ends(pipe: VisionLanguagePipeline) -> None:
    text = written(pipe)
    for first in (0, 3, 6):
        stop = text[first : first + 3]
        place = text.find(stop)
        for drafter in (
            None,
            NGramDrafter(),
            ModelDrafter(5, model=reading_model()),
            tiny_block(reading_model(), num_nodes=9),
            tiny_mtp(reading_model()),
        ):
            pipe.drafter = drafter
            output = pipe(
                "what is this?", picture(), max_new_tokens=BUDGET, min_new_tokens=BUDGET, stop_strings=["@@@", stop]
            )
            assert output.texts == [text[:place]]
            assert len(output.tokens[0]) == place + 3
            assert output.stats.finish_reasons == ["stop"]
            assert output.stats.tokens == place + 3


def test_a_stop_string_ends_one_row_of_a_batch(pipe: VisionLanguagePipeline) -> None:
    whole = ask(pipe, min_new_tokens=BUDGET)
    stop = whole.texts[0][4:6]
    cut = ask(pipe, min_new_tokens=BUDGET, stop_strings=stop)
    assert cut.texts == [text.partition(stop)[0] for text in whole.texts]


def test_streamed_text_only_grows_and_ends_like_a_call(pipe: VisionLanguagePipeline) -> None:
    text = written(pipe)
    for stop in (None, [text[5:8]]):
        arguments: dict[str, Any] = {"max_new_tokens": BUDGET, "min_new_tokens": BUDGET, "stop_strings": stop}
        parts = list(pipe.stream("what is this?", picture(), **arguments))
        assert "".join(part.delta for part in parts) == parts[-1].text
        assert all(parts[-1].text.startswith(part.text) for part in parts)
        assert parts[-1].finished
        assert parts[-1].output.texts == pipe("what is this?", picture(), **arguments).texts
        assert [parts[-1].text] == parts[-1].output.texts


def test_no_stop_token_before_the_minimum(pipe: VisionLanguagePipeline) -> None:
    text = pipe("what is this?", picture(), max_new_tokens=BUDGET).tokens[0]
    stop = text[2]  # a token that would end it early
    assert len(pipe("what is this?", picture(), max_new_tokens=BUDGET, stop_tokens=[stop]).tokens[0]) <= 3
    for drafter in (
        None,
        NGramDrafter(),
        ModelDrafter(4, model=reading_model()),
        tiny_block(reading_model()),
        tiny_mtp(reading_model()),
    ):
        pipe.drafter = drafter
        longer = pipe("what is this?", picture(), max_new_tokens=BUDGET, min_new_tokens=8, stop_tokens=[stop]).tokens[
            0
        ]
        assert len(longer) > 8
        assert stop not in longer[:8]


SCHEMA: dict[str, Any] = {
    "properties": {"name": {"type": "string"}, "kind": {"enum": ["animal", "food"]}, "count": {"type": "integer"}},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_answers_are_plain_decodings(pipe: VisionLanguagePipeline, temperature: float) -> None:
    """A random model's values never end, so a quote and the end are made likely."""
    call: dict[str, Any] = {
        "json_schema": SCHEMA,
        "stop_tokens": [2],
        "max_new_tokens": 90,
        "temperature": temperature,
    }
    quote = pipe.processor.tokenizer.encode('",}', add_special_tokens=False)
    weight = pipe.model.lm_head.weight
    kept = weight[quote].clone()
    try:
        with torch.no_grad():
            weight[quote] = weight.mean(0) + weight.std() * torch.tensor([[3.0], [2.0], [2.5]])  # no ties
        plain = ask(pipe, speculate=False, **call)
        ended = [row for row, reason in zip(plain.texts, plain.stats.finish_reasons, strict=True) if reason == "stop"]
        assert ended
        assert all(list(json.loads(text)) == ["name", "kind", "count"] for text in ended)
        drafters = (
            ScaffoldDrafter(), NGramDrafter(), tiny_block(reading_model(), num_nodes=12),
            tiny_eagle3(reading_model()), ModelDrafter(3, model=reading_model(1)), JacobiDrafter(window=5, controller="fixed"),
        )  # fmt: skip
        for drafter in drafters:
            pipe.drafter = drafter
            output = ask(pipe, **call)
            assert output.tokens == plain.tokens, drafter
            if isinstance(drafter, ScaffoldDrafter):
                rounds = [
                    (ours.rounds, theirs.rounds)
                    for ours, theirs in zip(output.stats.rows, plain.stats.rows, strict=True)
                    if theirs.finish_reason == "stop"
                ]
                assert all(ours < 0.7 * theirs for ours, theirs in rounds)
    finally:
        with torch.no_grad():
            weight[quote] = kept


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}])
def test_laws_of_paths_equal_generate(pipe: VisionLanguagePipeline, options: dict[str, Any]) -> None:
    """Whatever the draft: a node's penalty depends on its own path."""
    inputs = pipe.processor(text=["<s><image>what is this?<answer>"], images=[picture()], return_tensors="pt")
    wanted = pipe.model.generate(**inputs, do_sample=False, max_new_tokens=24, **options)
    tokens = wanted[0, inputs["input_ids"].shape[1] :].tolist()
    free = pipe("what is this?", picture(), max_new_tokens=24, speculate=False)
    assert tokens != free.tokens[0]  # the option matters here
    for drafter in (
        None,
        NGramDrafter(),
        ModelDrafter(4, model=reading_model()),
        tiny_block(reading_model(), num_nodes=9),
        tiny_eagle3(reading_model()),
        tiny_mtp(reading_model()),
    ):
        pipe.drafter = drafter
        assert pipe("what is this?", picture(), max_new_tokens=24, **options).tokens[0] == tokens
    together = ask(pipe, max_new_tokens=24, **options)
    assert ask(pipe, max_new_tokens=24, micro_batch_size=1, **options).tokens == together.tokens


def test_options_of_the_generation_config_are_applied(pipe: VisionLanguagePipeline) -> None:
    wanted = pipe("what is this?", picture(), max_new_tokens=16, repetition_penalty=1.5).tokens
    config = pipe.model.generation_config
    config.repetition_penalty = 1.5
    try:
        assert pipe("what is this?", picture(), max_new_tokens=16).tokens == wanted
        assert pipe("what is this?", picture(), max_new_tokens=16, repetition_penalty=1.0).tokens != wanted
    finally:
        config.repetition_penalty = None


def test_a_call_leaves_nothing_behind(pipe: VisionLanguagePipeline) -> None:
    first = ask(pipe, temperature=1.0)
    state = torch.get_rng_state()
    pipe("hello", max_new_tokens=3)
    with pytest.raises(ValueError, match="empty file"):
        pipe("what?", b"")
    assert ask(pipe, temperature=1.0).tokens == first.tokens
    assert torch.equal(torch.get_rng_state(), state)


def test_a_callback_can_stop_the_call(pipe: VisionLanguagePipeline) -> None:
    def stop(pipe: Any, step: int, length: int, tensors: dict[str, Any]) -> None:
        pipe._interrupt = True

    output = ask(pipe, callback_on_step_end=stop, micro_batch_size=1)
    assert output.stats.finish_reasons == ["interrupted"] * 3
    assert [len(row) for row in output.tokens] == [1, 0, 0]


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nothing": ({"prompt": None}, ValueError, "exactly one of"),
    "no text": ({"prompt": []}, TypeError, "non-empty"),
    "one picture for three": ({"images": Image.new("RGB", (16, 16))}, ValueError, "3 prompts, but one picture"),
    "two pictures for three": ({"images": [Image.new("RGB", (16, 16))] * 2}, ValueError, "has 2 entries"),
    "named twice": ({"prompt": "<image>what?", "images": Image.new("RGB", (16, 16))}, ValueError, "names 2 pictures"),
    "named, not given": ({"prompt": "<image>what?", "images": None}, ValueError, "names 1 pictures.*but 0"),
    "budget": ({"max_new_tokens": 0}, ValueError, "max_new_tokens"),
    "minimum": ({"min_new_tokens": 13}, ValueError, "min_new_tokens"),
    "too long": ({"max_new_tokens": 600}, ValueError, "512 positions"),
    "stop string": ({"stop_strings": [""]}, ValueError, "must not be empty"),
    "penalty": ({"repetition_penalty": 0.0}, ValueError, "repetition_penalty"),
    "schema": (
        {"json_schema": {"properties": {"a": {"type": "list"}}}, "stop_tokens": [2]},
        ValueError,
        "type of 'a'",
    ),
    "endless schema": ({"json_schema": SCHEMA}, ValueError, "needs a stop token"),
    "schema and stop": ({"json_schema": SCHEMA, "stop_strings": "}"}, ValueError, "leave out"),
    "stop token": ({"stop_tokens": [400]}, ValueError, "stop_tokens"),
    "output": ({"output_type": "json"}, ValueError, "output_type"),
    "temperature": ({"temperature": -1}, ValueError, "temperature"),
    "seeds": ({"seed": [1, 2]}, ValueError, "2 entries for 3"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_arguments_are_named(pipe: VisionLanguagePipeline, name: str) -> None:
    changes, error, words = BAD[name]
    with pytest.raises(error, match=words):
        ask(pipe, **changes)


def test_pictures_that_messages_lack_or_leave(pipe: VisionLanguagePipeline) -> None:
    talk = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
    with pytest.raises(ValueError, match="more pictures than the 0"):
        pipe(messages=talk)
    with pytest.raises(ValueError, match="1 more than the messages name"):
        pipe(messages=talk, images=[picture(), picture()])
    with pytest.raises(ValueError, match="`role`"):
        pipe(messages=[{"role": "robot", "content": "hi"}])
    with pytest.raises(ValueError, match="`type`"):
        pipe(messages=[{"role": "user", "content": [{"type": "audio"}]}])


def test_drafters_that_do_not_fit_are_refused_before_the_first_forward(pipe: VisionLanguagePipeline) -> None:
    others = {
        "class": tiny_block(reading_model(), target={"class": "Other", "settings": {}, "head": []}),
        "hidden size": FeatureDrafter(hidden_size=32, num_heads=2, vocab_size=VOCAB_SIZE),
        "does not hand out": FeatureDrafter(hidden_size=64, num_heads=2, vocab_size=VOCAB_SIZE),
        "vocabulary": tiny_block(reading_model(), vocab_size=64),
    }
    for words, drafter in others.items():
        pipe.drafter = drafter
        with pytest.raises(ValueError, match=words):
            ask(pipe)


def test_saved_and_loaded_it_answers_alike(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    wanted = ask(pipe, temperature=1.0)
    pipe.save_pretrained(tmp_path / "saved")
    for loaded in (
        VisionLanguagePipeline.from_pretrained(tmp_path / "saved"),
        AutoVisionLanguagePipeline.from_pretrained(tmp_path / "saved"),
    ):
        loaded.set_progress_bar_config(disable=True)
        assert isinstance(loaded.drafter, NGramDrafter)
        assert ask(loaded, temperature=1.0).tokens == wanted.tokens
    pipe.model.save_pretrained(tmp_path / "bare")
    pipe.processor.save_pretrained(tmp_path / "bare")
    bare = AutoVisionLanguagePipeline.from_pretrained(tmp_path / "bare")
    bare.set_progress_bar_config(disable=True)
    assert ask(bare, temperature=1.0).tokens == wanted.tokens


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'llama' model"):
        AutoVisionLanguagePipeline.from_pretrained(tmp_path)
