"""The recursive MTP head: any drafts, the same tokens; a chain is the head applied to itself; others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.drafters.feature_session import FeatureSession
from mmspec.drafters.mtp import MTPDrafter
from mmspec.runner.cache import SpecCache
from mmspec.training.unrolling import GrowingKeys
from tests.drafters.test_block_law import FAIL, PASS, TakesTheFirst, deviation, law, model
from tests.oracles.vlm import BUDGET, adapter_of, build, prompts, run, tiny_mtp, tiny_vlm

__all__ = ["law", "model"]  # fixtures

FAMILIES = pytest.mark.parametrize("family", ["llava", "qwen3_vl", "glm_ocr"])


def shapes(model: Any) -> dict[str, MTPDrafter]:
    drafter = tiny_mtp(model)
    return {
        "chain": drafter.with_settings(num_nodes=5),
        "tree": drafter.with_settings(tree="dynamic", num_nodes=9, beam=3, branching=3),
        "coupled": drafter.with_settings(tree="dynamic", mode="coupled", num_nodes=12, branching=40),
        "static": drafter.with_settings(tree="static", num_nodes=7),
        "root alone": drafter.with_settings(num_nodes=1),
        "sandwich": tiny_mtp(model, sandwich_norms=True, norm_output=False),
        "own positions": tiny_mtp(model, mrope_section=[2, 3, 3]),
    }


@FAMILIES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_shape_equals_plain(family: str, temperature: float) -> None:
    model, inputs = tiny_vlm(family), prompts(family)
    plain, _ = run(model, inputs, None, temperature)
    for kind, drafter in shapes(model).items():
        tokens, stats = run(model, inputs, drafter, temperature)
        assert torch.equal(tokens, plain), kind
        assert [row.tokens for row in stats.rows] == [BUDGET] * 3
        assert (stats.draft_forwards > 1) == (kind != "root alone")  # the prompt is read anyway


@pytest.mark.parametrize("section", [None, [2, 3, 3]])
def test_rows_equal_solo(section: list[int] | None) -> None:
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")
    drafter = tiny_mtp(model, mode="coupled", tree="dynamic", num_nodes=9, branching=20, mrope_section=section)
    together, stats = run(model, inputs, drafter, 1.0)
    for row, each in enumerate(inputs):
        alone, own = run(model, [each], drafter, 1.0, first=row)
        assert torch.equal(alone[0], together[row])
        assert own.rows[0].accepted == stats.rows[row].accepted  # its drafts were the same, too


def test_a_chain_is_the_head_applied_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafted chain behind a prompt equals an unrolled pass over all pairs that feeds the head's own tokens."""
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")[0]
    drafter = tiny_mtp(model, num_nodes=4, mrope_section=[3, 3, 2])
    drafts: list[Any] = []
    propose = FeatureSession.propose

    def kept(self: FeatureSession, *rest: Any) -> Any:
        drafts.append(propose(self, *rest))
        return drafts[-1]

    monkeypatch.setattr(FeatureSession, "propose", kept)
    run(model, [inputs], drafter)
    drafted = drafts[0].tokens[0]
    with torch.no_grad():
        prompt = adapter_of(model).encode(inputs)
        decoder = adapter_of(model).decoder(model, [prompt], torch.device("cpu"))
        decoder.taps = (decoder.num_layers,)
        count, cache = len(prompt), SpecCache(1, len(prompt), torch.device("cpu"))
        cache.plan(count, count)
        seen = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
        mask = torch.zeros(1, 1, count, count).masked_fill(~seen, -torch.inf)
        states = decoder.prefill(cache, prompt.positions, mask).hidden  # type: ignore[assignment]
        embeddings = torch.cat([prompt.embeddings[None, 1:], decoder.embed_tokens(drafted[None, :1])], dim=1)
        place, none, keys = torch.arange(1, count + 1)[None], torch.zeros(1, dtype=torch.long), GrowingKeys()
        states = drafter(embeddings, states, drafter.rotary(place, none, decoder), seen, keys)
        for step in range(1, 4):
            assert int(drafter.predict(states[:, -1:], decoder).argmax()) == int(drafted[step])
            token = decoder.embed_tokens(drafted[None, step : step + 1])
            own = torch.ones(1, 1, 1, count + step, dtype=torch.bool)
            states = drafter(token, states[:, -1:], drafter.rotary(place[:, -1:] + step, none, decoder), own, keys)


def test_positions_of_its_own_are_those_of_the_target() -> None:
    """Of the slot whose state is read: three axes inside a picture, one behind it."""
    model, inputs = tiny_vlm("qwen2_5_vl"), prompts("qwen2_5_vl")
    adapter = adapter_of(model)
    encoded = [adapter.encode(each) for each in inputs]
    decoder = adapter.decoder(model, encoded, torch.device("cpu"))
    slots = torch.arange(14).expand(3, -1)
    found = decoder.positions_at(slots)
    for row, prompt in enumerate(encoded):
        assert torch.equal(found[:, row, : len(prompt)], prompt.positions)
        behind = torch.arange(len(prompt), 14) - prompt.offset
        assert torch.equal(found[:, row, len(prompt) :], behind.expand(3, -1))
    decoder.select_rows(torch.tensor([2, 0]))
    assert torch.equal(decoder.positions_at(slots[:2]), found[:, [2, 0]])


def head(model: Any, **settings: Any) -> MTPDrafter:
    return tiny_mtp(model, num_heads=2, num_kv_heads=2, head_dim=4, **settings)


@pytest.mark.parametrize("rule", ["coupled", "match"])
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_drafts_leave_the_law(model: Any, law: Any, rule: str, tree: str) -> None:
    drafter = head(model, tree=tree, num_nodes=6, branching=3)
    assert deviation(model, law, ACCEPTANCE_RULES.create(rule), drafter) < PASS


def test_drawn_chains_leave_the_law(model: Any, law: Any) -> None:
    drafter = head(model, mode="sampled", num_nodes=3)
    assert deviation(model, law, ACCEPTANCE_RULES.create("ratio"), drafter) < PASS


def test_a_rule_that_believes_drafts_does_not(model: Any, law: Any) -> None:
    assert deviation(model, law, TakesTheFirst(), head(model, num_nodes=4)) > FAIL


def test_saved_and_loaded_it_drafts_alike(tmp_path: Path) -> None:
    model, inputs = tiny_vlm("glm_ocr"), prompts("glm_ocr")
    drafter = tiny_mtp(model, sandwich_norms=True, mrope_section=[2, 3, 3])
    drafter.save_pretrained(tmp_path)
    loaded = MTPDrafter.from_pretrained(tmp_path)
    assert run(model, inputs, loaded)[1].rows == run(model, inputs, drafter)[1].rows
    assert MTPDrafter.from_pretrained(tmp_path, tree="dynamic", num_nodes=9).max_nodes == 9


def test_a_head_of_another_target_is_refused() -> None:
    drafter = tiny_mtp(tiny_vlm("llava"))
    drafter.check_target(tiny_vlm("llava"))
    with pytest.raises(ValueError, match="other weights"):
        drafter.check_target(build("llava", seed=5))
    with pytest.raises(ValueError, match="class is LlavaForConditionalGeneration"):
        drafter.check_target(tiny_vlm("glm_ocr"))
    with pytest.raises(ValueError, match="hidden size of 32"):
        tiny_mtp(tiny_vlm("llava"), hidden_size=32, target=None).check_target(tiny_vlm("llava"))
    with pytest.raises(ValueError, match="vocabulary of 128"):
        drafter.check_vocabulary(64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tree": "bush"}, "`tree`"),
        ({"mode": "drawn"}, "`mode`"),
        ({"mrope_section": [2, 3]}, "add up to 8"),
        ({"num_kv_heads": 3}, "multiple"),
        ({"num_nodes": 0}, "`num_nodes`"),
        ({"replacement": True, "tree": "dynamic"}, "`replacement`"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_mtp(tiny_vlm("llava"), **change)
