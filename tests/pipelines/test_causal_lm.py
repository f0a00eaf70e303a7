"""Any decoder-only language model behind the core: text in, text out, the same tokens with and without drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.acceptance.block import BlockAcceptance
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.base import SpecPipeline
from mmspec.pipelines.causal_lm import CausalLMPipeline
from tests.oracles.tiny import tiny_tokenizer

PROMPTS = [[3, 4, 5, 3, 4], [7], [1, 2, 3, 4, 5, 6, 7, 8]]


def tiny_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    settings: dict[str, Any] = {
        "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def pipe() -> CausalLMPipeline:
    pipe = CausalLMPipeline(tiny_model(), tiny_tokenizer())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def near_copy(model: LlamaForCausalLM) -> LlamaForCausalLM:
    copy = tiny_model()
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return copy


DRAFTERS = {
    "ngram": lambda model: NGramDrafter(),
    "jacobi": lambda model: JacobiDrafter(window=6, initializer="uniform"),
    "model": lambda model: ModelDrafter(model=near_copy(model), num_draft_tokens=4),
}


@pytest.mark.filterwarnings("ignore:Speculation brings nothing")
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculative_equals_plain_in_a_ragged_batch_and_alone(
    pipe: CausalLMPipeline, name: str, temperature: float
) -> None:
    pipe.drafter = DRAFTERS[name](pipe.model)
    call = {"max_new_tokens": 20, "temperature": temperature, "output_type": "tokens"}
    plain = pipe(input_ids=PROMPTS, seed=5, speculate=False, **call).tokens
    assert pipe(input_ids=PROMPTS, seed=5, **call).tokens == plain
    for row, prompt in enumerate(PROMPTS):
        assert pipe(input_ids=[prompt], seed=5 + row, **call).tokens == [plain[row]]


def test_greedy_equals_transformers_generate(pipe: CausalLMPipeline) -> None:
    tokens = pipe(input_ids=PROMPTS, max_new_tokens=20, temperature=0, output_type="tokens").tokens
    for prompt, row in zip(PROMPTS, tokens, strict=True):
        expected = pipe.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, pad_token_id=0)
        assert row == expected[0, len(prompt) :].tolist()


def test_block_verification_runs_with_a_draft_model_and_is_refused_with_shared_noise(pipe: CausalLMPipeline) -> None:
    pipe.drafter, pipe.acceptance = DRAFTERS["model"](pipe.model), BlockAcceptance()
    output = pipe(input_ids=PROMPTS, max_new_tokens=20, seed=1, output_type="tokens")
    assert output.stats.guarantee.value == "SAME_LAW"
    assert output.stats.forwards < 20
    pipe.drafter = JacobiDrafter(window=4)
    with pytest.raises(ValueError, match="CoupledAcceptance"):
        pipe(input_ids=PROMPTS, max_new_tokens=20, output_type="tokens")
    pipe.acceptance = None


def test_a_stop_token_ends_its_row_alone(pipe: CausalLMPipeline) -> None:
    pipe.drafter = None
    free = pipe(input_ids=PROMPTS, max_new_tokens=20, seed=5, output_type="tokens").tokens
    stop = free[0][6]
    pipe.drafter = DRAFTERS["model"](pipe.model)
    stopped = pipe(input_ids=PROMPTS, max_new_tokens=20, seed=5, stop_tokens=[stop], output_type="tokens")
    for row, full in zip(stopped.tokens, free, strict=True):
        assert row == (full[: full.index(stop) + 1] if stop in full else full)
    reasons = ["stop" if stop in full else "length" for full in free]
    assert stopped.stats.finish_reasons == reasons
    assert stopped.stats.tokens == sum(len(row) for row in stopped.tokens)


def test_text_goes_in_and_comes_out(pipe: CausalLMPipeline) -> None:
    output = pipe(["a red apple", "dog"], max_new_tokens=4, seed=0)
    assert output.texts is not None
    assert [len(row) for row in output.tokens] == [4, 4]
    assert all(isinstance(text, str) for text in output.texts)


def test_the_last_position_of_the_model_can_be_used(pipe: CausalLMPipeline) -> None:
    pipe.drafter = JacobiDrafter(window=8, controller="fixed", initializer="uniform")
    call = {"input_ids": [[1, 2, 3, 4]], "max_new_tokens": 44, "seed": 2, "output_type": "tokens"}
    assert pipe(**call).tokens == pipe(**call, speculate=False).tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": [[1, 2, 3]], "max_new_tokens": 46}, "3 tokens.*46.*48 positions"),
        ({"input_ids": [[1, 40]]}, r"\[0, 40\)"),
        ({"input_ids": [[]]}, "at least one token"),
        ({"input_ids": []}, "at least one prompt"),
        ({"input_ids": [[1]], "prompt": "a"}, "exactly one"),
        ({}, "exactly one"),
        ({"input_ids": [[1]], "max_new_tokens": 0}, "max_new_tokens"),
        ({"input_ids": [[1]], "top_k": 41}, "top_k"),
        ({"input_ids": [[1]], "output_type": "pil"}, "text, tokens"),
    ],
)
def test_bad_input_is_refused_before_any_forward(
    pipe: CausalLMPipeline, arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(pipe.model), "forward", lambda *a, **k: pytest.fail("a forward ran"))
    with pytest.raises((ValueError, TypeError), match=message):
        pipe(**arguments)


def test_saved_and_loaded_with_a_draft_model(pipe: CausalLMPipeline, tmp_path: Path) -> None:
    pipe.drafter = DRAFTERS["ngram"](pipe.model)
    pipe.save_pretrained(tmp_path)
    again = SpecPipeline.from_pretrained(tmp_path)
    assert isinstance(again, CausalLMPipeline)
    assert isinstance(again.drafter, NGramDrafter)
    call = {"input_ids": PROMPTS, "max_new_tokens": 8, "seed": 3, "output_type": "tokens", "speculate": False}
    assert again(**call).tokens == pipe(**call).tokens
