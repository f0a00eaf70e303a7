"""Every family behind the loop: greedy equals ``generate``, trees equal their paths, rows equal the same row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.verify import Verdict
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.vlm.adapters.base import TEXT_INPUTS
from tests.oracles.vlm import (
    BUDGET,
    GRID_FAMILIES,
    IMAGE,
    VIDEO_FAMILIES,
    adapter_of,
    build,
    open_runner,
    prompt,
    prompts,
    run,
    tiny_block,
    tiny_vlm,
    watching,
)

NAMES = [
    "llava", "llava_next", "llava_onevision", "pixtral", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm_ocr", "smolvlm", "idefics3", "internvl", "paligemma",
    "got_ocr2",
]  # fmt: skip
FAMILIES = pytest.mark.parametrize("family", NAMES)
QUICK = pytest.mark.parametrize("family", ["llava", "qwen3_vl", "smolvlm"])


def generated(model: Any, inputs: dict[str, Any], budget: int = BUDGET) -> list[int]:
    """What transformers' own loop makes of one prompt."""
    ids = inputs["input_ids"]
    own = dict(inputs)
    if model.config.model_type in GRID_FAMILIES:
        own["mm_token_type_ids"] = adapter_of(model).kinds(ids[0])[None]
    if model.config.model_type == "paligemma":
        own["token_type_ids"] = torch.zeros_like(ids)
    with torch.no_grad():
        out = model.generate(**own, do_sample=False, max_new_tokens=budget, min_new_tokens=budget)
    return out[0, ids.shape[1] :].tolist()


@FAMILIES
def test_greedy_equals_generate(family: str) -> None:
    model = tiny_vlm(family)
    inputs = prompts(family)
    tokens, _ = run(model, inputs)
    for row, each in enumerate(inputs):
        if family == "paligemma" and "pixel_values" not in each:
            continue  # its own class insists on a picture
        assert tokens[row].tolist() == generated(model, each)


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_videos_are_read_as_generate_reads_them(family: str) -> None:
    """A video alone, in the middle of a text, and before a picture; ragged rows, any draft."""
    model = tiny_vlm(family)
    inputs = [watching(family, [1, 6], [5, 9, 7]), watching(family, [1], [4, 8], seed=3, pictured=True)]
    if family == "llava_onevision":
        inputs[1]["batch_num_images"] = torch.tensor([1])
    inputs.append(prompts(family)[1])
    plain, _ = run(model, inputs)
    for row, each in enumerate(inputs):
        if family == "glm_ocr" and row == 1:
            continue  # its own class takes the places of the picture for those of the video
        assert plain[row].tolist() == generated(model, each)
    one, other = (open_runner(model, [watching(family, [1], [5], seed)]).prefill().logits for seed in (0, 1))
    assert (one - other).abs().max() > 1e-3  # the video matters
    for drafter in (NGramDrafter(num_draft_tokens=4), tiny_block(model, num_nodes=7, branching=3)):
        assert torch.equal(run(model, inputs, drafter)[0], plain)


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_videos_and_their_places_must_agree(family: str) -> None:
    adapter, inputs = adapter_of(tiny_vlm(family)), watching(family, [1], [5, 9])
    with pytest.raises(ValueError, match="places for videos"):
        adapter.encode({"input_ids": inputs["input_ids"]})
    with pytest.raises(ValueError, match="places for videos"):
        adapter.encode(inputs | {"input_ids": inputs["input_ids"][:, :4], "attention_mask": None})


def test_a_model_without_videos_says_so() -> None:
    """Its processor would not make such inputs."""
    inputs = prompts("llava")[0] | {"pixel_values_videos": torch.zeros(1, 4, 3, 28, 28)}
    with pytest.raises(ValueError, match=r"LlavaForConditionalGeneration reads no videos"):
        adapter_of(tiny_vlm("llava")).encode(inputs)


@FAMILIES
def test_several_pictures_in_one_prompt(family: str) -> None:
    """Each goes to its own places, in their order."""
    model, first, second = tiny_vlm(family), prompt(family, [], [], 0), prompt(family, [], [], 1)
    apart = [6] if family in GRID_FAMILIES else []
    marks = first["input_ids"][0].tolist()
    ids = torch.tensor([[1, *marks, *apart, *marks, 5, 9]])

    def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        dim = 1 if family in ("smolvlm", "idefics3") else 0
        return {name: torch.cat([one[name], other[name]], dim=dim) for name in one if name not in TEXT_INPUTS}

    inputs = {"input_ids": ids, **both(first, second)}
    tokens, _ = run(model, [inputs])
    assert tokens[0].tolist() == generated(model, inputs)
    swapped = {"input_ids": ids, **both(second, first)}
    one, other = (open_runner(model, [each]).prefill().logits for each in (inputs, swapped))
    assert (one - other).abs().max() > 1e-3
    assert torch.equal(run(model, [inputs], tiny_block(model, num_nodes=7, branching=3))[0], tokens)


def tree() -> tuple[Tensor, Tensor]:
    """A tree of three branches over random tokens, the same for all rows."""
    tokens = torch.tensor([[0, 20, 31, 42, 53, 64, 75]])
    return tokens, torch.tensor([[0, 0, 0, 1, 1, 2, 3]])


@FAMILIES
def test_nodes_of_a_tree_equal_their_paths(family: str) -> None:
    """Runs under both kinds of attention: a wrong mask shows in one of them only."""
    tokens, parent = tree()
    for attention in ("sdpa", "eager"):
        model, inputs = tiny_vlm(family, attention), prompts(family)
        runner = open_runner(model, inputs)
        runner.prefill()
        root = torch.tensor([7, 8, 9])
        drafted = torch.cat([root[:, None], tokens[:, 1:].expand(3, -1)], dim=1)
        draft = Draft(drafted, DraftLaw.DETERMINISTIC, parent=parent.expand(3, -1))
        logits = runner.verify(draft, 1).logits
        for node in (0, 4, 6):
            path = [n for n in range(7) if bool(draft.ancestors[0, node, n])]
            alone = open_runner(model, inputs)
            alone.prefill()
            for step, place in enumerate(path):
                chain = Draft(drafted[:, [place]], DraftLaw.DETERMINISTIC)
                wanted = alone.verify(chain, 1 + step).logits
                kept = torch.ones(3, dtype=torch.long)
                alone.commit(Verdict(kept - 1, drafted[:, place], drafted[:, [place]]), kept)
            assert torch.allclose(logits[:, node], wanted[:, 0], atol=1e-5, rtol=0)


@FAMILIES
def test_the_cache_goes_on_behind_a_committed_path(family: str) -> None:
    """Compaction of a branch, then a forward, equals the same tokens fed one after the other."""
    model, inputs = tiny_vlm(family), prompts(family)
    tokens, parent = tree()
    drafted = torch.cat([torch.tensor([[7], [8], [9]]), tokens[:, 1:].expand(3, -1)], dim=1)
    runner, path = open_runner(model, inputs), torch.tensor([[0, 1, 3, 6]] * 3)
    runner.prefill()
    runner.verify(Draft(drafted, DraftLaw.DETERMINISTIC, parent=parent.expand(3, -1)), 1)
    kept = torch.tensor([4, 2, 3])  # ragged: the rows keep parts of the path
    runner.commit(Verdict(kept - 1, kept, drafted, path=path), kept)
    follow = Draft(torch.tensor([[33], [44], [55]]), DraftLaw.DETERMINISTIC)
    logits = runner.verify(follow, 5).logits
    for row in range(3):
        alone = open_runner(model, [inputs[row]])
        alone.prefill()
        fed = drafted[row, path[row, : kept[row]]].tolist() + [int(follow.tokens[row, 0])]
        wanted = alone.verify(Draft(torch.tensor([fed]), DraftLaw.DETERMINISTIC), 1).logits[:, -1]
        assert torch.allclose(logits[row], wanted, atol=1e-5, rtol=0)


@FAMILIES
def test_the_cache_goes_on_where_it_was_cropped(family: str) -> None:
    """Several tokens in one forward equal one after the other; those that are taken back leave nothing behind."""
    model, inputs = tiny_vlm(family), prompts(family)
    tokens, count = torch.tensor([[7, 20, 31, 42], [8, 20, 31, 42], [9, 20, 31, 42]]), torch.tensor([1, 3, 2])
    runner, one = open_runner(model, inputs), open_runner(model, inputs)
    runner.prefill()
    one.prefill()
    chain, kept = runner.verify(Draft(tokens, DraftLaw.DETERMINISTIC), 1).logits, torch.full((3,), 4)
    runner.commit(Verdict(kept - 1, tokens[:, -1], tokens), kept)
    for step in range(4):
        draft = Draft(tokens[:, [step]], DraftLaw.DETERMINISTIC)
        wanted = one.verify(draft, 1 + step).logits[:, 0]
        one.commit(Verdict(kept * 0, tokens[:, step], draft.tokens), torch.ones_like(kept))
        assert torch.allclose(chain[:, step], wanted, atol=1e-5, rtol=0)
    runner.rollback(count)
    follow = torch.tensor([[33], [44], [55]])
    logits = runner.verify(Draft(follow, DraftLaw.DETERMINISTIC), 5).logits
    for row in range(3):
        alone = open_runner(model, [inputs[row]])
        alone.prefill()
        fed = torch.cat([tokens[row, : 4 - count[row]], follow[row]])[None]
        wanted = alone.verify(Draft(fed, DraftLaw.DETERMINISTIC), 1).logits[:, -1]
        assert torch.allclose(logits[row], wanted, atol=1e-5, rtol=0)


def drafters(family: str) -> dict[str, Any]:
    return {
        "ngram": NGramDrafter(num_draft_tokens=4),
        "jacobi": JacobiDrafter(window=4, controller="fixed"),
        "itself": ModelDrafter(4, model=tiny_vlm(family)),
        "other": ModelDrafter(2, model=tiny_vlm(family, "sdpa", 1)),
    }


@FAMILIES
def test_every_drafter_equals_plain(family: str) -> None:
    model, inputs = tiny_vlm(family), prompts(family)
    for temperature in (0.0, 1.0):
        plain, _ = run(model, inputs, None, temperature)
        for kind, drafter in drafters(family).items():
            if temperature and kind == "other":
                continue
            tokens, stats = run(model, inputs, drafter, temperature)
            assert torch.equal(tokens, plain), kind
            if kind == "itself":
                assert stats.acceptance_rate == 1.0


@FAMILIES
def test_ragged_rows_equal_solo(family: str) -> None:
    model, inputs = tiny_vlm(family), prompts(family)
    drafter = JacobiDrafter(window=5, controller="fixed")
    together, _ = run(model, inputs, drafter, 1.0)
    logits = open_runner(model, inputs).prefill().logits
    for row, each in enumerate(inputs):
        alone, _ = run(model, [each], drafter, 1.0, first=row)
        assert torch.equal(alone[0], together[row])
        solo = open_runner(model, [each]).prefill().logits
        assert torch.allclose(solo[0], logits[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", GRID_FAMILIES)
def test_what_the_model_remembers_of_another_prompt_is_not_read(family: str) -> None:
    """The trap of stale rope deltas: a text-only prompt after one with a picture."""
    model = build(family)
    text = [prompt(family, [1, 11, 4, 8], [], seed=None)]
    first, _ = run(model, text)
    generated(model, prompts(family)[0])  # leaves its offset on the model
    assert model.model.rope_deltas is not None
    assert torch.equal(run(model, text)[0], first)
    model.model.rope_deltas = torch.full_like(model.model.rope_deltas, 50)
    assert torch.equal(run(model, text)[0], first)


@pytest.mark.parametrize("family", GRID_FAMILIES)
def test_kinds_of_tokens_are_made_up_if_missing_and_checked_if_given(family: str) -> None:
    model = tiny_vlm(family)
    adapter, inputs = adapter_of(model), prompts(family)[0]
    right = (inputs["input_ids"] == IMAGE).int()
    bare, given = adapter.encode(inputs), adapter.encode(inputs | {"mm_token_type_ids": right})
    assert torch.equal(bare.positions, given.positions)
    assert bare.offset > 0  # a picture takes fewer positions than slots
    with pytest.raises(ValueError, match="mm_token_type_ids"):
        adapter.encode(inputs | {"mm_token_type_ids": 1 - right})


@QUICK
def test_a_boolean_mask_is_refused(family: str) -> None:
    runner = open_runner(tiny_vlm(family), prompts(family)[:1])
    runner.prefill()
    mask = torch.ones(1, 1, 1, 20, dtype=torch.bool)
    with pytest.raises(TypeError, match="additive"):
        runner.model.decode(torch.tensor([[5]]), runner.cache, torch.tensor([[9]]), mask)


@QUICK
def test_pictures_and_placeholders_must_agree(family: str) -> None:
    adapter = adapter_of(tiny_vlm(family))
    inputs = prompts(family)[0]
    with pytest.raises(ValueError, match="places for pictures"):
        adapter.encode({"input_ids": inputs["input_ids"]})
    with pytest.raises(ValueError, match="places for pictures"):
        adapter.encode(inputs | {"input_ids": inputs["input_ids"][:, :3], "attention_mask": None})
    with pytest.raises(ValueError, match="attention_mask"):
        adapter.encode(inputs | {"attention_mask": torch.zeros_like(inputs["input_ids"])})


def test_sliding_layers_are_refused_by_name() -> None:
    from mmspec.models.hf import check_rollback

    with pytest.raises(ValueError, match=r"Gemma3ForConditionalGeneration.*sliding_attention"):
        check_rollback(build("gemma3"))


def test_a_text_only_prompt_reads_no_picture() -> None:
    """Negative control: the picture does matter to the tiny models."""
    for family in NAMES:
        model = tiny_vlm(family)
        one, other = (open_runner(model, [prompt(family, [1], [5], seed)]).prefill().logits for seed in (0, 1))
        assert (one - other).abs().max() > 1e-3, family
