"""Speculation changes no token of a picture: drafters, windows, guidance, sampling, batches, seeds, micro-batches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.tiny import tiny_pipeline, tiny_transformer

SHORT, LONG = "a cat", "a very old red house on the"
PROMPTS = [SHORT, LONG, "blue moon"]
COLUMNS, TOTAL = 5, 15


@pytest.fixture(scope="module")
def pipe() -> LlamaGenPipeline:
    return tiny_pipeline()


def tokens(pipe: LlamaGenPipeline, prompt: Any, **arguments: Any) -> Tensor:
    return pipe(prompt, output_type="tokens", **arguments).tokens


DRAFTERS = {
    **{f"jacobi-{window}": JacobiDrafter(window=window, controller="fixed") for window in (1, 2, 5, 6, 99)},
    "jacobi-maximal-law": JacobiDrafter(window=7, coupling="maximal", initializer="law"),
    "jacobi-copy-up": JacobiDrafter(window=7, coupling="independent", initializer="copy-up", controller="aimd"),
    "ngram": NGramDrafter(num_draft_tokens=4),
    "model": ModelDrafter(3, model=tiny_transformer(seed=1)),
    "itself": ModelDrafter(4, model=tiny_transformer()),
}
SETTINGS = {
    "cfg": {"guidance_scale": 2.0},
    "no-cfg": {"guidance_scale": 1.0},
    "cfg-until-6": {"guidance_scale": 3.0, "guided_until": 6},
    "greedy": {"temperature": 0},
    "T.7-k5": {"temperature": 0.7, "top_k": 5},
    "top-p": {"top_k": 0, "top_p": 0.6},
    "negative": {"negative_prompt": "green dog", "guidance_scale": 2.5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=list(DRAFTERS))
def test_equals_plain(drafter: Any, settings: dict) -> None:
    """Faults 08, 11, 34, 36: fp32, windows of 1, 2, a row, a row and one, and more than the picture."""
    pipe = tiny_pipeline(drafter=drafter)
    plain = tokens(pipe, PROMPTS, seed=7, speculate=False, **settings)
    assert plain.shape == (3, TOTAL)
    output = pipe(PROMPTS, seed=7, output_type="tokens", **settings)
    assert torch.equal(output.tokens, plain)
    assert output.stats.finish_reasons == ["complete"] * 3
    assert output.stats.forwards <= TOTAL
    assert output.stats.tokens == 3 * TOTAL


@pytest.mark.parametrize("rule", ["coupled", "match", "ratio"])
@pytest.mark.parametrize("order", [1, -1])
def test_rows_equal_solo(rule: str, order: int) -> None:
    """Fault 20: captions of unequal length in 1 to 4 rows, both orders, with any rule."""
    pipe = tiny_pipeline(
        drafter=JacobiDrafter(window=6, coupling="maximal", controller="fixed"),
        acceptance=ACCEPTANCE_RULES.create(rule),
    )
    prompts, seeds = [SHORT, LONG, "blue moon", "the sun"][::order], [3, 1, 4, 15][::order]
    alone = torch.cat([tokens(pipe, p, seed=s) for p, s in zip(prompts, seeds, strict=True)])
    for count in (1, 2, 3, 4):
        assert torch.equal(tokens(pipe, prompts[:count], seed=seeds[:count]), alone[:count])


def test_images_per_prompt_follow_one_another_and_equal_solo(pipe: LlamaGenPipeline) -> None:
    """Faults 26 and 39."""
    pipe.drafter = JacobiDrafter(window=6)
    for count in (1, 2, 3):
        together = tokens(pipe, [SHORT, LONG], num_images_per_prompt=count, seed=0)
        assert len(together) == 2 * count
        for row in range(2 * count):
            alone = tokens(pipe, [SHORT, LONG][row // count], seed=row)
            assert torch.equal(alone[0], together[row])


def test_one_prompt_as_text_or_list(pipe: LlamaGenPipeline) -> None:
    """Fault 38."""
    assert torch.equal(tokens(pipe, SHORT, seed=5), tokens(pipe, [SHORT], seed=5))
    size = pipe.image_size
    assert torch.equal(tokens(pipe, SHORT, seed=5), tokens(pipe, SHORT, seed=5, height=size[0], width=size[1]))


def test_classes_by_number_and_name() -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=6))
    named = tokens(pipe, None, class_labels=["city", "food"], seed=2)
    assert torch.equal(named, tokens(pipe, None, class_labels=[3, 0], seed=2))
    assert torch.equal(named, tokens(pipe, None, class_labels=[3, 0], seed=2, speculate=False))
    assert torch.equal(named[:1], tokens(pipe, None, class_labels=3, seed=2))
    assert not torch.equal(named[0], named[1])


def test_micro_batches_equal_all_at_once(pipe: LlamaGenPipeline) -> None:
    """Fault 68."""
    whole = pipe(PROMPTS, num_images_per_prompt=2, seed=3, output_type="pt")
    for size in (1, 2, 4, 99):
        parts = pipe(PROMPTS, num_images_per_prompt=2, seed=3, micro_batch_size=size, output_type="pt")
        assert torch.equal(parts.tokens, whole.tokens)
        torch.testing.assert_close(parts.images, whole.images, atol=1e-5, rtol=1e-5)
        assert parts.stats.seeds == whole.stats.seeds == list(range(3, 9))
        assert len(parts.stats.rows) == 6


def test_generators_give_the_same_picture_in_any_batch(pipe: LlamaGenPipeline) -> None:
    """Fault 14."""

    def generators(count: int) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(i) for i in range(count)]

    alone = torch.cat([tokens(pipe, SHORT, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    for count in (1, 2, 3, 4):
        assert torch.equal(tokens(pipe, [SHORT] * count, generator=generators(count)), alone[:count])


def test_one_generator_gives_different_rows_that_can_be_made_again(pipe: LlamaGenPipeline) -> None:
    first = pipe([SHORT] * 3, generator=torch.Generator().manual_seed(0), output_type="tokens")
    torch.rand(1000)
    again = pipe([SHORT] * 3, generator=torch.Generator().manual_seed(0), output_type="tokens")
    assert torch.equal(first.tokens, again.tokens)
    assert len({tuple(row.tolist()) for row in first.tokens}) == 3
    assert torch.equal(tokens(pipe, SHORT, seed=first.stats.seeds[2])[0], first.tokens[2])


def test_no_seed_means_a_new_picture_whose_seed_is_reported(pipe: LlamaGenPipeline) -> None:
    """Fault 70."""
    outputs = [pipe(SHORT, output_type="tokens") for _ in range(2)]
    assert outputs[0].stats.seeds != outputs[1].stats.seeds
    assert not torch.equal(outputs[0].tokens, outputs[1].tokens)
    assert torch.equal(tokens(pipe, SHORT, seed=outputs[0].stats.seeds), outputs[0].tokens)


@pytest.mark.parametrize("source", ["seed", "generator", "none"])
def test_global_random_states_are_untouched(pipe: LlamaGenPipeline, source: str) -> None:
    """Faults 16 and 70."""
    arguments = {"seed": {"seed": 1}, "generator": {"generator": torch.Generator().manual_seed(1)}, "none": {}}[source]
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    pipe(PROMPTS, **arguments)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_stats_name_method_and_guarantee() -> None:
    """Fault 66: and a draft that equals the target's own choice everywhere is accepted whole."""
    pipe = tiny_pipeline(drafter=DRAFTERS["itself"])
    stats = pipe(PROMPTS, seed=1, output_type="tokens").stats
    assert stats.method == "model+coupled"
    assert stats.guarantee.value == "SAME_TOKENS"
    assert stats.acceptance_rate == 1.0
    assert stats.forwards == 1 + 3
    plain = pipe(PROMPTS, seed=1, output_type="tokens", speculate=False).stats
    assert (plain.method, plain.forwards) == ("plain", TOTAL)


def test_half_precision_drafter_equals_plain() -> None:
    """Fault 30: the drafter's dtype may differ from the target's."""
    pipe = tiny_pipeline(drafter=ModelDrafter(3, model=tiny_transformer(seed=1).to(torch.bfloat16)))
    assert torch.equal(tokens(pipe, PROMPTS, seed=7), tokens(pipe, PROMPTS, seed=7, speculate=False))
