"""Compiled, captured and offloaded targets return the same tokens as eager ones."""

from __future__ import annotations

import pytest
import torch

from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from tests.oracles.tiny import tiny_pipeline, tiny_transformer

PROMPTS = ["a red apple", "very big green tree on moon"]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.slow
def test_compiled_equals_eager_without_growing_the_number_of_graphs() -> None:
    one_layer = tiny_transformer(num_layers=1)  # compiling takes most of the time
    drafter = JacobiDrafter(window=4, controller="fixed")
    pipe = tiny_pipeline(transformer=one_layer, drafter=drafter, guidance_scale=1.0)
    eager = pipe(PROMPTS[0], seed=3).tokens
    pipe.set_runner("compile")
    pipe(PROMPTS[0], seed=3)
    torch._dynamo.utils.counters.clear()
    compiled = pipe(PROMPTS[0], seed=3).tokens
    assert torch.equal(eager, compiled)
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert not torch._dynamo.utils.counters["graph_break"]
    pipe.set_runner("eager")
    assert torch.equal(pipe(PROMPTS[0], seed=3).tokens, eager)


def test_unknown_or_impossible_modes_are_refused() -> None:
    pipe = tiny_pipeline()
    with pytest.raises(ValueError, match="eager, compile, cuda-graph"):
        pipe.set_runner("fast")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="CUDA"):
            pipe.set_runner("cuda-graph")


def test_warm_up_measures_every_width_up_to_the_output() -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=8))
    seconds = pipe.warm_up(batch_size=2)
    assert list(seconds) == [1, 2, 4, 8]
    assert all(value > 0 for value in seconds.values())
    assert pipe.costs(branches=2).covers(2)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("mode", ["eager", "compile", "cuda-graph"])
def test_cuda_modes_equal_plain_decoding_on_cuda(mode: str) -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=8)).to("cuda")
    plain = pipe(PROMPTS, seed=3, speculate=False).tokens
    pipe.set_runner(mode)
    assert torch.equal(pipe(PROMPTS, seed=3).tokens, plain)


@pytest.mark.gpu
@needs_cuda
def test_drafter_on_the_cpu_of_a_target_on_cuda() -> None:
    pipe = tiny_pipeline().to("cuda")
    plain = pipe(PROMPTS, seed=3, speculate=False).tokens
    pipe.drafter = ModelDrafter(model=tiny_transformer(seed=5), num_draft_tokens=3)
    assert torch.equal(pipe(PROMPTS, seed=3).tokens, plain)


@pytest.mark.gpu
@needs_cuda
def test_offload_to_the_cpu_changes_no_token() -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=8)).to("cuda")
    plain = pipe(PROMPTS, seed=3).tokens
    offloaded = tiny_pipeline(drafter=JacobiDrafter(window=8))
    offloaded.enable_model_cpu_offload()
    assert torch.equal(offloaded(PROMPTS, seed=3).tokens, plain)
