"""2-D initialisers on a real grid with guidance and batches: every one with every coupling and rule that takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.drafters.initializers import INITIALIZERS
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.tiny import tiny_pipeline

PROMPTS, SEEDS = ["a cat", "a very old red house on the", "blue moon"], [3, 1, 4]
GUIDED: dict[str, dict[str, Any]] = {
    "cfg": {"guidance_scale": 2.0},
    "cfg-until-6": {"guidance_scale": 3.0, "guided_until": 6},
    "negative": {"guidance_scale": 2.5, "negative_prompt": "green dog"},
}
EVERY = pytest.mark.parametrize("initializer", INITIALIZERS)
COUPLED = pytest.mark.parametrize("coupling", COUPLINGS)


@pytest.fixture(scope="module")
def pipe() -> LlamaGenPipeline:
    return tiny_pipeline()


def tokens(pipe: LlamaGenPipeline, prompt: Any, **arguments: Any) -> Tensor:
    return pipe(prompt, output_type="tokens", **arguments).tokens


@EVERY
@COUPLED
def test_guided_batches_equal_plain(pipe: LlamaGenPipeline, coupling: str, initializer: str) -> None:
    """Windows inside a row of 5 and across its end."""
    pipe.acceptance = None
    for settings in GUIDED.values():
        plain = tokens(pipe, PROMPTS, seed=SEEDS, speculate=False, **settings)
        for window in (4, 8):
            pipe.drafter = JacobiDrafter(window=window, coupling=coupling, initializer=initializer, controller="fixed")
            assert torch.equal(tokens(pipe, PROMPTS, seed=SEEDS, **settings), plain)


@pytest.mark.parametrize("rule", ["match", "ratio"])
@EVERY
@COUPLED
def test_guided_rows_equal_solo(pipe: LlamaGenPipeline, coupling: str, initializer: str, rule: str) -> None:
    pipe.drafter = JacobiDrafter(window=7, coupling=coupling, initializer=initializer, controller="fixed")
    pipe.acceptance = ACCEPTANCE_RULES.create(rule)
    together = tokens(pipe, PROMPTS, seed=SEEDS)
    for row, prompt in enumerate(PROMPTS):
        assert torch.equal(tokens(pipe, prompt, seed=SEEDS[row])[0], together[row])
