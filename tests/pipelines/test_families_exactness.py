"""Emu3, Janus, Anole and Lumina-mGPT: plain decoding is the family's own, and speculation changes no token of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.guidance import Guidance
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.image.grouped import GroupedAcceptance
from mmspec.image.lantern import LanternAcceptance
from mmspec.pipelines.image import ImagePipeline
from tests.oracles.families import (
    PIPELINES,
    chameleon_model,
    emu3_model,
    family_pipeline,
    janus_model,
)

SHORT, LONG = "a cat", "a very old red house on the moon"
PROMPTS = [SHORT, LONG, "blue sun"]
MODELS = {"emu3": emu3_model, "janus": janus_model, "anole": chameleon_model, "lumina": chameleon_model}
#: sizes with rows and columns of different length, where the family has them
SIZES = {"emu3": {"height": 6, "width": 10}, "lumina": {"height": 4, "width": 12}, "janus": {}, "anole": {}}
FAMILIES = pytest.mark.parametrize("family", PIPELINES)


@pytest.fixture(scope="module")
def pipes() -> dict[str, ImagePipeline]:
    return {name: family_pipeline(name) for name in PIPELINES}


def tokens(pipe: ImagePipeline, prompt: Any, **arguments: Any) -> Tensor:
    return pipe(prompt, output_type="tokens", **arguments).tokens


def drafters(pipe: ImagePipeline, family: str) -> dict[str, Any]:
    row = pipe.layout(**SIZES[family]).row_length
    windows = {1: "copy-left", 2: "mix", row: "copy-up", row + 1: "uniform", 99: "law"}
    return {
        **{f"{w}-{i}": JacobiDrafter(window=w, initializer=i, controller="fixed") for w, i in windows.items()},
        "maximal": JacobiDrafter(window=row + 2, coupling="maximal", initializer="law", controller="aimd"),
        "independent": JacobiDrafter(window=row + 2, coupling="independent", initializer="copy-left"),
        "ngram": NGramDrafter(num_draft_tokens=4),
        "other": ModelDrafter(3, model=MODELS[family](seed=1)),
    }


@FAMILIES
def test_every_drafter_equals_plain(family: str, pipes: dict[str, ImagePipeline]) -> None:
    """Faults 11, 34, 36: windows of 1, 2, a row, a row and one, more than the picture; guided, prompts of any length."""
    pipe, size = pipes[family], SIZES[family]
    grid = pipe.layout(**size)
    plain = tokens(pipe, PROMPTS, seed=7, speculate=False, **size)
    assert plain.shape == (3, grid.num_tokens)
    assert_spelt(pipe, plain, grid)
    for name, drafter in drafters(pipe, family).items():
        pipe.drafter = drafter
        output = pipe(PROMPTS, seed=7, output_type="tokens", **size)
        assert torch.equal(output.tokens, plain), name
        assert output.stats.finish_reasons == ["complete"] * 3
        assert output.stats.tokens == 3 * grid.num_tokens
    pipe.drafter = None


def assert_spelt(pipe: ImagePipeline, own: Tensor, grid: Any) -> None:
    """Fault 36: codes at the cells, and the right structural tokens around them, in the model's own ids."""
    ids = pipe.token_ids(grid)
    if ids is None:
        assert bool((own < grid.num_codes).all())
        return
    codes = set(ids[: grid.num_codes].tolist())
    row = [None] * grid.columns + ([int(ids[grid.row_end])] if grid.row_end is not None else [])
    spelt = row * grid.rows + [int(ids[token]) for token in grid.footer]
    for tokens_of_row in own.tolist():
        assert all(
            got in codes if want is None else got == want for got, want in zip(tokens_of_row, spelt, strict=True)
        )


SETTINGS = {
    "no-cfg": {"guidance_scale": 1.0},
    "cfg-until-6": {"guidance_scale": 3.0, "guided_until": 6},
    "greedy": {"temperature": 0},
    "top-p": {"top_k": 0, "top_p": 0.6, "temperature": 0.8},
    "negative": {"negative_prompt": "green dog on the tree", "guidance_scale": 2.5},
}


@FAMILIES
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_equals_plain_under_every_setting(family: str, settings: dict, pipes: dict[str, ImagePipeline]) -> None:
    pipe = pipes[family]
    plain = tokens(pipe, PROMPTS, seed=3, speculate=False, **settings)
    pipe.drafter = JacobiDrafter(window=7, controller="fixed")
    assert torch.equal(tokens(pipe, PROMPTS, seed=3, **settings), plain)
    pipe.drafter = None


@FAMILIES
@pytest.mark.parametrize("rule", ["coupled", "match", "ratio"])
def test_rows_equal_solo(family: str, rule: str) -> None:
    """Faults 20, 26: unequal prompts, whose branches have lengths and positions of their own, in 1 to 3 rows."""
    drafter = JacobiDrafter(window=6, coupling="maximal", controller="fixed")
    pipe = family_pipeline(family, drafter=drafter, acceptance=ACCEPTANCE_RULES.create(rule))
    for prompts, seeds in ((PROMPTS, [3, 1, 4]), (PROMPTS[::-1], [4, 1, 3])):
        alone = torch.cat([tokens(pipe, p, seed=s) for p, s in zip(prompts, seeds, strict=True)])
        for count in (2, 3):
            assert torch.equal(tokens(pipe, prompts[:count], seed=seeds[:count]), alone[:count])
    twice = tokens(pipe, [SHORT, LONG], num_images_per_prompt=2, seed=0, micro_batch_size=3)
    for row in range(4):
        assert torch.equal(tokens(pipe, [SHORT, LONG][row // 2], seed=row)[0], twice[row])


@FAMILIES
def test_the_model_as_its_own_drafter_is_accepted_whole(family: str) -> None:
    """The draft model reads the same grammar and the same noise, so nothing is ever rejected."""
    pipe = family_pipeline(family, drafter=ModelDrafter(4, model=MODELS[family]()))
    stats = pipe(PROMPTS, seed=1, output_type="tokens").stats
    assert stats.acceptance_rate == 1.0


@pytest.mark.parametrize("family", ["emu3", "lumina"])
def test_relaxed_rules_leave_the_structure_as_it_is(family: str, tmp_path: Path) -> None:
    """A code may stand for its neighbours, a row end for nothing: every picture still parses."""
    drafter = JacobiDrafter(window=8, coupling="independent", controller="fixed")
    for rule in (LanternAcceptance(k=6, delta=0.9, cache_dir=str(tmp_path)), GroupedAcceptance()):
        pipe = family_pipeline(family, drafter=drafter, acceptance=rule)
        output = pipe(PROMPTS, num_images_per_prompt=4, seed=7, output_type="tokens", **SIZES[family])
        assert_spelt(pipe, output.tokens, pipe.layout(**SIZES[family]))
        assert not output.stats.guarantee.lossless


@torch.no_grad()
def reference(pipe: ImagePipeline, prompt: str, scale: float) -> list[int]:
    """Greedy tokens of the loop without cache, runner or mask: whole forwards of both branches, one token at a time."""
    grid = pipe.layout()
    conditions = pipe.encode_conditions(call(prompt), grid)
    model = pipe.decoder_model(pipe.network, conditions, Guidance(scale), torch.device("cpu"))
    grammar, made = grid.grammar(), []
    for place in range(grid.num_tokens):
        branches = []
        for ids in (conditions.conditional[0], conditions.unconditional[0]):
            embeds = model.embed_prompt(torch.tensor([ids]))
            if made:
                embeds = torch.cat([embeds, model.embed(torch.tensor([made]))], dim=1)
            branches.append(model.logits(model.trunk(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, -1:]))
        merged = branches[1] + scale * (branches[0] - branches[1])
        if grammar is not None:
            merged = grammar.mask(merged, torch.tensor([[place]]))
        made.append(int(merged.argmax()))
    return made


def call(prompt: str) -> Any:
    from mmspec.pipelines.image_call import ImageCall

    return ImageCall(prompt)


@FAMILIES
def test_greedy_equals_whole_forwards(family: str, pipes: dict[str, ImagePipeline]) -> None:
    pipe = pipes[family]
    grid = pipe.layout()
    made = torch.tensor([reference(pipe, LONG, 2.0)])
    ids = pipe.token_ids(grid)
    wanted = made if ids is None else ids[made]
    assert torch.equal(tokens(pipe, LONG, temperature=0, guidance_scale=2.0), wanted)


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_emu3_greedy_equals_generate(scale: float, pipes: dict[str, ImagePipeline]) -> None:
    """transformers' own recipe: its processor's prompts, a function of allowed tokens, guidance by a negative prompt."""
    pipe = pipes["emu3"]
    model, processor = pipe.model, pipe.processor
    codes = model.vocabulary_mapping.image_tokens
    # the processor's prompt generator knows Emu3's factor of 8 only
    sizes = {"return_for_image_generation": True, "ratio": "5:3", "image_area": 3 * 5 * 64, "return_tensors": "pt"}

    def allowed(batch: int, ids: Tensor) -> list[int]:
        after = len(ids) - int((ids == processor.tokenizer.image_wrapper_token_id).nonzero()[0])
        if after % 6 == 0:
            return [3]
        return {19: [4], 20: [7], 21: [2]}.get(after, codes)

    for prompt in (SHORT, LONG):
        inputs = processor(text=[prompt], **sizes)
        assert [int(side) for side in inputs.pop("image_sizes")[0]] == [3, 5]
        negative = processor(text=["green dog"], **sizes)
        made = model.generate(
            **inputs, max_new_tokens=21, do_sample=False, prefix_allowed_tokens_fn=allowed, guidance_scale=scale,
            negative_prompt_ids=negative["input_ids"], negative_prompt_attention_mask=negative["attention_mask"],
        )  # fmt: skip
        ours = tokens(
            pipe, prompt, negative_prompt="green dog", temperature=0, guidance_scale=scale, height=6, width=10
        )
        assert ours.tolist() == made[:, inputs["input_ids"].shape[1] :].tolist()


@torch.no_grad()
def test_janus_greedy_equals_generate(pipes: dict[str, ImagePipeline]) -> None:
    pipe = pipes["janus"]
    model, processor = pipe.model, pipe.processor
    for prompt in (SHORT, LONG):
        turns = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=[text], generation_mode="image", return_tensors="pt")
        config = type(model.generation_config)(
            bos_token_id=1, pad_token_id=0, eos_token_id=2, guidance_scale=2.5, do_sample=False, num_return_sequences=1,
            max_length=64, generation_kwargs={"boi_token_id": 4},
        )  # fmt: skip
        made = model.generate(**inputs, generation_mode="image", generation_config=config)
        assert torch.equal(tokens(pipe, prompt, temperature=0, guidance_scale=2.5), made)
