"""Block drafts leave the target's law as it is: all 256 texts of a tiny vision-language model are enumerated."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams, process
from mmspec.core.verify import RoundContext, Verdict, follow_target
from mmspec.runner.runner import Runner
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import string_numbers, z_score
from tests.oracles.vlm import adapter_of, picture, tiny_block

VOCAB, LENGTH, COUNT = 4, 4, 8000
SAMPLING = SamplingParams(temperature=0.8)
PASS, FAIL = 4.5, 8.0


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"model_type": "llama", "vocab_size": VOCAB, "head_dim": 4, "max_position_embeddings": 32, **sizes}
    vision = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, "projection_dim": 8, **sizes}
    config = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=3, image_seq_length=4, vision_feature_layer=-1,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "language_model" in name:
                parameter.normal_(std=0.6)
        model.lm_head.weight.normal_(std=0.3)
    return model


@torch.no_grad()
def open_target(model: Any, rows: int) -> Runner:
    adapter = adapter_of(model)
    prompt = adapter.encode({"input_ids": torch.tensor([[1, 3, 3, 3, 3, 2]]), **picture("llava")})
    return Runner(adapter.decoder(model, [prompt] * rows, torch.device("cpu")), Guidance(), LENGTH, 16)


@pytest.fixture(scope="module")
def law(model: Any) -> Tensor:
    """Probability of each of the 256 texts."""
    with torch.no_grad():
        strings = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
        target = open_target(model, len(strings))
        first = target.prefill().logits
        rest = target.verify(Draft(strings[:, :-1], DraftLaw.DETERMINISTIC), 1).logits
        log_p = process(torch.cat([first, rest], dim=1), SAMPLING).double().log_softmax(-1)
        return log_p.gather(-1, strings[..., None])[..., 0].sum(-1).exp()


def block(model: Any, **settings: Any) -> Any:
    return tiny_block(
        model, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=4, taps=(1,), block_size=3, **settings
    )  # fmt: skip


@torch.no_grad()
def deviation(model: Any, law: Tensor, rule: Any, drafter: Any) -> float:
    tokens, stats = decode(open_target(model, COUNT), seeds(COUNT), LENGTH, drafter, rule, SAMPLING)
    assert drafter is None or stats.acceptance_rate > 0.05
    return abs(z_score(string_numbers(tokens, VOCAB), law))


def test_the_enumerated_law_is_that_of_plain_decoding(model: Any, law: Tensor) -> None:
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-5)
    assert deviation(model, law, None, None) < PASS


@pytest.mark.parametrize("rule", ["coupled", "match"])
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_block_drafts_leave_the_law(model: Any, law: Tensor, rule: str, tree: str) -> None:
    drafter = block(model, tree=tree, num_nodes=6, branching=3)
    assert deviation(model, law, ACCEPTANCE_RULES.create(rule), drafter) < PASS


def test_drafts_that_know_the_noise_leave_the_law(model: Any, law: Tensor) -> None:
    drafter = block(model, mode="coupled", num_nodes=6, branching=3)
    assert deviation(model, law, CoupledAcceptance(), drafter) < PASS


class TakesTheFirst(CoupledAcceptance):
    """Negative control: believes the first draft token of every round."""

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        verdict = super().__call__(draft, logits, context)
        if draft.num_nodes == 1:
            return verdict
        assert verdict.chosen is not None
        chosen = verdict.chosen.clone()
        chosen[:, 0] = draft.tokens[:, 1]
        return follow_target(draft, chosen)


def test_a_rule_that_believes_drafts_does_not(model: Any, law: Tensor) -> None:
    assert deviation(model, law, TakesTheFirst(), block(model, num_nodes=6, branching=3)) > FAIL
