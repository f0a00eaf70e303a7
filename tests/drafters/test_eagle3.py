"""The EAGLE-3 head: any drafts, the same tokens; cached steps equal one pass; a part of the vocabulary; others refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.drafters.eagle3 import Eagle3Drafter
from mmspec.drafters.feature_session import FeatureSession
from mmspec.training.unrolling import GrowingKeys
from tests.oracles.vlm import BUDGET, adapter_of, build, prompts, run, tiny_eagle3, tiny_vlm

FAMILIES = pytest.mark.parametrize("family", ["llava", "qwen3_vl"])


def shapes(model: Any) -> dict[str, Eagle3Drafter]:
    drafter = tiny_eagle3(model)
    return {
        "chain": drafter.with_settings(tree="chain", num_nodes=5),
        "tree": drafter,
        "coupled": drafter.with_settings(mode="coupled", num_nodes=12, branching=40),
        "static": drafter.with_settings(tree="static", num_nodes=7),
        "root alone": drafter.with_settings(num_nodes=1),
        "3.1": tiny_eagle3(model, tap_norms=True, norm_output=True, norm_before_residual=True),
        "half": tiny_eagle3(model, draft_vocab_size=64, tree="chain", num_nodes=5),
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


def test_rows_equal_solo() -> None:
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")
    drafter = tiny_eagle3(model, mode="coupled", branching=20)
    together, stats = run(model, inputs, drafter, 1.0)
    for row, each in enumerate(inputs):
        alone, own = run(model, [each], drafter, 1.0, first=row)
        assert torch.equal(alone[0], together[row])
        assert own.rows[0].accepted == stats.rows[row].accepted  # its drafts were the same, too


def test_a_chain_reads_what_training_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafted chain behind a prompt equals an unrolled pass over all pairs that feeds the drafter's own tokens."""
    model, inputs = tiny_vlm("llava"), prompts("llava")[0]
    drafter = tiny_eagle3(model, tree="chain", num_nodes=4)
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
        decoder.taps = tuple(drafter.config.taps)
        mask = torch.zeros(1, 1, len(prompt), len(prompt)).masked_fill(
            ~torch.ones(len(prompt), len(prompt)).bool().tril(), -torch.inf
        )
        from mmspec.runner.cache import SpecCache

        cache = SpecCache(1, len(prompt), torch.device("cpu"))
        cache.plan(len(prompt), len(prompt))
        features = drafter.read_states(decoder.prefill(cache, prompt.positions, mask).hidden)
        embeddings = torch.cat([prompt.embeddings[None, 1:], decoder.embed_tokens(drafted[None, :1])], dim=1)
        count = len(prompt)
        place, none = torch.arange(1, count + 1)[None], torch.zeros(1, dtype=torch.long)
        keys, seen = GrowingKeys(), torch.ones(count, count, dtype=torch.bool).tril()[None, None]
        states = drafter(embeddings, features, drafter.rotary(place, none, decoder), seen, keys)
        for step in range(1, 4):
            assert int(drafter.predict(states[:, -1:], decoder).argmax()) == int(drafted[step])
            token = decoder.embed_tokens(drafted[None, step : step + 1])
            own = torch.ones(1, 1, 1, count + step, dtype=torch.bool)
            states = drafter(token, states[:, -1:], drafter.rotary(place[:, -1:] + step, none, decoder), own, keys)


def test_tokens_that_cannot_be_drafted_are_not() -> None:
    model = tiny_vlm("llava")
    drafter = tiny_eagle3(model, draft_vocab_size=64)
    logits = drafter.predict(torch.randn(1, 2, 64), None)
    assert logits.shape[-1] == 128
    assert (
        torch.isfinite(logits[0, 0]).nonzero()[:, 0].tolist()
        == drafter.drafted_tokens.tolist()
        == list(range(0, 128, 2))
    )


def test_saved_and_loaded_it_drafts_alike(tmp_path: Path) -> None:
    model, inputs = tiny_vlm("llava"), prompts("llava")
    drafter = tiny_eagle3(model, draft_vocab_size=64, tap_norms=True)
    drafter.save_pretrained(tmp_path)
    loaded = Eagle3Drafter.from_pretrained(tmp_path)
    assert torch.equal(loaded.d2t, drafter.d2t)
    assert run(model, inputs, loaded)[1].rows == run(model, inputs, drafter)[1].rows


def test_a_head_of_another_target_is_refused() -> None:
    drafter = tiny_eagle3(tiny_vlm("llava"))
    drafter.check_target(tiny_vlm("llava"))
    with pytest.raises(ValueError, match="other weights"):
        drafter.check_target(build("llava", seed=5))
    with pytest.raises(ValueError, match="below the 3 layers"):
        run(tiny_vlm("llava"), prompts("llava"), tiny_eagle3(tiny_vlm("llava"), taps=(1, 3)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tree": "bush"}, "`tree`"),
        ({"mode": "sampled"}, "`mode`"),
        ({"taps": (2, 1)}, "ascending"),
        ({"draft_vocab_size": 999}, "`draft_vocab_size`"),
        ({"num_kv_heads": 3}, "multiple"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_eagle3(tiny_vlm("llava"), **change)
