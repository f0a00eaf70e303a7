"""A smaller vision-language model as the drafter: it looks at the pictures itself, in its own width, and changes no token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmspec import ModelDrafter, VisionLanguagePipeline
from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.training.vlm_tokenizer import picture_processor
from tests.oracles.saved_vlm import picture
from tests.oracles.vlm import SMALL, configs, open_runner, prompts, reading_model, run, tiny_vlm

FAMILIES = pytest.mark.parametrize("family", ["llava", "qwen3_vl", "smolvlm"])


def smaller(family: str, **changes: Any) -> Any:
    """A model of ``family`` with the target's tokens and patches, half its width and one layer."""
    model_class, config_class, settings = configs(family)
    text = {**settings["text_config"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, **changes}  # fmt: skip
    vision = settings["vision_config"]
    if "out_hidden_size" in vision:
        vision = {**vision, "out_hidden_size": 32}
    config = getattr(transformers, config_class)(
        **{**settings, "text_config": text, "vision_config": vision}, tie_word_embeddings=False
    )
    torch.manual_seed(4)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.std() < 0.1:
                parameter.mul_(4)
    return model


@FAMILIES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_changes(family: str, temperature: float) -> None:
    model, inputs = tiny_vlm(family), prompts(family)
    plain, _ = run(model, inputs, None, temperature)
    tokens, stats = run(model, inputs, ModelDrafter(3, model=smaller(family)), temperature)
    assert torch.equal(tokens, plain)
    assert stats.draft_forwards > 3
    for row, each in enumerate(inputs):
        alone, own = run(model, [each], ModelDrafter(3, model=smaller(family)), temperature, first=row)
        assert torch.equal(alone[0], plain[row])
        assert own.rows[0].accepted == stats.rows[row].accepted


@FAMILIES
def test_the_draft_model_looks_itself(family: str) -> None:
    """Negative control: its own logits behind the prompt depend on the picture."""
    model, draft = tiny_vlm(family), smaller(family)
    first, *_, last = prompts(family)
    one, other = (
        open_runner(model, [{**each, "input_ids": first["input_ids"]}], draft).prefill().logits
        for each in (first, {**first, "pixel_values": -first["pixel_values"]})
    )
    assert (one - other).abs().max() > 1e-3
    own = open_runner(draft, [last]).prefill().logits
    assert torch.allclose(open_runner(model, [last], draft).prefill().logits, own, atol=1e-5)


def small_reader() -> Any:
    """A model of the embedded one's kind with a smaller language model and vision tower."""
    config = reading_model().config.to_dict()
    config["text_config"] |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                              "num_key_value_heads": 1, "intermediate_size": 48}  # fmt: skip
    config["vision_config"] |= {**SMALL, "num_hidden_layers": 1}
    torch.manual_seed(5)
    made = transformers.LlavaConfig.from_dict(config)
    return transformers.LlavaForConditionalGeneration._from_config(made, attn_implementation="sdpa").eval()


def test_it_is_saved_with_the_pipeline(tmp_path: Path) -> None:
    pipe = VisionLanguagePipeline(reading_model(), picture_processor(), ModelDrafter(3, model=small_reader()))
    pipe.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {"max_new_tokens": 10, "temperature": 1.0, "seed": 2}
    plain = pipe("read", picture(), speculate=False, **call)
    wanted = pipe("read", picture(), **call)
    assert wanted.tokens == plain.tokens
    pipe.save_pretrained(tmp_path)
    loaded = VisionLanguagePipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert isinstance(loaded.drafter, ModelDrafter)
    again = loaded("read", picture(), **call)
    assert again.tokens == wanted.tokens
    assert again.stats.rows == wanted.stats.rows  # its drafts were the same, too


def test_drawn_drafts_fit_rules_that_read_their_law() -> None:
    pipe = VisionLanguagePipeline(reading_model(), picture_processor(), ModelDrafter(3, model=small_reader()))
    pipe.set_progress_bar_config(disable=True)
    pipe.acceptance = ACCEPTANCE_RULES.create("ratio")
    output = pipe("read", picture(), max_new_tokens=10, temperature=1.0, seed=2)
    assert len(output.tokens[0]) == 10
    assert output.stats.guarantee.value == "SAME_LAW"


def test_models_that_do_not_fit_are_refused() -> None:
    pipe = VisionLanguagePipeline(reading_model(), picture_processor(), ModelDrafter(3, model=tiny_vlm("llava")))
    with pytest.raises(ValueError, match=r"vocabulary of 128 tokens but the target's has 102"):
        pipe("hello", max_new_tokens=4)
    pipe.drafter = ModelDrafter(3)
    with pytest.raises(ValueError, match="needs `model`"):
        pipe("hello", max_new_tokens=4)
    coarse = smaller("qwen3_vl")
    inputs = prompts("qwen3_vl")[:1]
    coarse.model.visual.spatial_merge_size = coarse.config.vision_config.spatial_merge_size = 2
    inputs[0]["input_ids"] = inputs[0]["input_ids"][:, :-4]  # places for fewer embeddings than the picture has
    with pytest.raises(ValueError, match="places for pictures"):
        run(tiny_vlm("qwen3_vl"), inputs, ModelDrafter(3, model=coarse))
