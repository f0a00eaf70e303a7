"""transformers' causal language models behind the loop: greedy equals ``generate``, every drafter equals plain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.models.hf import CausalLMModel, check_rollback
from mmspec.runner.runner import Runner
from tests.oracles.decode import decode, seeds

VOCAB, BUDGET = 48, 14
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
PROMPTS = [[5, 9, 2, 7, 5, 9], [3], [11, 4, 8, 11]]


def build(name: str, seed: int = 0) -> PreTrainedModel:
    family, _, attention = name.partition("-")
    classes = {
        "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, num_key_value_heads=2)),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8)),
        "gptneox": (GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES)),
    }
    model_class, config = classes[family]
    torch.manual_seed(seed)
    model = model_class._from_config(config, attn_implementation=attention or "sdpa").eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" not in key and parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


MODELS = pytest.mark.parametrize("name", ["llama-sdpa", "llama-eager", "qwen3-sdpa", "gptneox-eager"])


def padded(prompts: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, prompts))
    return torch.tensor([prompt + [value] * (longest - len(prompt)) for prompt in prompts])


def open_runner(model: PreTrainedModel, prompts: list[list[int]]) -> Runner:
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    return Runner(CausalLMModel(model, padded(prompts, 0), lengths), Guidance(), BUDGET, 16)


@torch.no_grad()
def run(
    model: PreTrainedModel, prompts: list[list[int]], drafter: Any = None, temperature: float = 0.0, first: int = 0,
    budget: int = BUDGET, draft_model: PreTrainedModel | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    return decode(
        open_runner(model, prompts), seeds(len(prompts), first), budget, drafter, sampling=SamplingParams(temperature),
        prompt_ids=padded(prompts, -1), draft_target=lambda network: open_runner(network, prompts),
    )  # fmt: skip


@MODELS
def test_greedy_equals_generate(name: str) -> None:
    model = build(name)
    tokens, _ = run(model, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        wanted = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=BUDGET, min_new_tokens=BUDGET
        )
        assert tokens[row].tolist() == wanted[0, len(prompt) :].tolist()


def drafters(name: str) -> dict[str, Any]:
    return {
        "jacobi": JacobiDrafter(window=5, controller="fixed"),
        "jacobi-law": JacobiDrafter(window=20, coupling="maximal", initializer="law", controller="fixed"),
        "ngram": NGramDrafter(num_draft_tokens=4),
        "itself": ModelDrafter(3, model=build(name)),
        "other": ModelDrafter(4, model=build(name, seed=1)),
    }


@MODELS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_equals_plain(name: str, temperature: float) -> None:
    model = build(name)
    plain, _ = run(model, PROMPTS, None, temperature)
    for kind, drafter in drafters(name).items():
        tokens, stats = run(model, PROMPTS, drafter, temperature)
        assert torch.equal(tokens, plain), kind
        assert [row.tokens for row in stats.rows] == [BUDGET] * len(PROMPTS)
        if kind == "itself":
            assert stats.acceptance_rate == 1.0


@MODELS
def test_ragged_rows_equal_solo(name: str) -> None:
    model, drafter = build(name), JacobiDrafter(window=6, controller="fixed")
    for prompts in (PROMPTS, PROMPTS[::-1]):
        together, _ = run(model, prompts, drafter, 1.0)
        for row, prompt in enumerate(prompts):
            alone, _ = run(model, [prompt], drafter, 1.0, first=row)
            assert torch.equal(alone[0], together[row])


def test_prompt_and_budget_that_fill_all_positions() -> None:
    """Fault 34: drafts reach beyond the last position, the output does not."""
    config = LlamaConfig(**{**SIZES, "max_position_embeddings": 20}, num_key_value_heads=2)
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(config).eval()
    prompts = [[1, 2, 3, 4, 5, 6], [7, 8]]
    plain, _ = run(model, prompts, None, 1.0)
    for drafter in (JacobiDrafter(window=8, controller="fixed"), NGramDrafter(), ModelDrafter(7, model=model)):
        assert torch.equal(run(model, prompts, drafter, 1.0)[0], plain)


@pytest.mark.parametrize("budget", [2, 3, 5, 7])
def test_budget_is_exact_without_any_end_token(budget: int) -> None:
    """Faults 02 and 04."""
    model = build("llama")
    plain, _ = run(model, PROMPTS, budget=budget)
    for drafter in drafters("llama").values():
        tokens, _ = run(model, PROMPTS, drafter, budget=budget)
        assert tokens.shape == (3, budget)
        assert torch.equal(tokens, plain)


def test_tied_logits_go_to_the_lower_id_in_both_modes() -> None:
    """Fault 09: every second row of the head repeats the one before, so the two best tokens tie exactly."""
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight[1::2] = model.lm_head.weight[0::2]
    plain, _ = run(model, PROMPTS)
    assert not (plain % 2).any()
    for drafter in drafters("llama").values():
        assert torch.equal(run(model, PROMPTS, drafter)[0], plain)


def test_a_sliding_window_is_refused_by_name() -> None:
    torch.manual_seed(0)
    config = MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)
    model = MistralForCausalLM._from_config(config).eval()
    with pytest.raises(ValueError, match=r"MistralForCausalLM.*sliding"):
        check_rollback(model)
    qwen = Qwen3ForCausalLM._from_config(
        Qwen3Config(
            **SIZES, num_key_value_heads=2, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=1
        )
    )
    with pytest.raises(ValueError, match="sliding_attention"):
        CausalLMModel(qwen, torch.tensor([[1]]), torch.tensor([1]))
