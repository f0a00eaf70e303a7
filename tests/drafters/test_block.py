"""The block drafter: any drafts, the same tokens; a context that keeps step; the published head; other targets refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.core.trees import conditional_tree, marginal_tree
from mmspec.core.verify import RoundContext
from mmspec.drafters.block import BlockDrafter
from mmspec.drafters.block_network import default_taps
from mmspec.drafters.block_session import BlockSession
from tests.oracles.vlm import BUDGET, build, open_runner, prompts, run, tiny_block, tiny_vlm

FAMILIES = pytest.mark.parametrize("family", ["llava", "qwen3_vl", "smolvlm"])


def shapes(model: Any) -> dict[str, BlockDrafter]:
    drafter = tiny_block(model)
    return {
        "chain": drafter.with_settings(tree="chain"),
        "tree-7": drafter.with_settings(num_nodes=7, branching=3),
        "tree-31": drafter.with_settings(num_nodes=31, mode="coupled", branching=40),
        "graft": drafter.with_settings(num_nodes=12, branching=3, graft=5),
        "markov": tiny_block(model, markov_rank=4, num_nodes=12, branching=4),
        "markov chain": tiny_block(model, markov_rank=4, tree="chain", mode="coupled"),
        "markov coupled": tiny_block(model, markov_rank=4, num_nodes=12, branching=30, mode="coupled"),
        "short": drafter.with_settings(num_nodes=12, branching=3, num_slots=3),
        "short chain": drafter.with_settings(tree="chain", num_slots=4),
        "tree-1": drafter.with_settings(num_nodes=1),
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
        if kind == "tree-1":
            assert stats.draft_forwards == 0


def test_rows_equal_solo() -> None:
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")
    drafter = tiny_block(model, num_nodes=9, branching=20)
    together, stats = run(model, inputs, drafter, 1.0)
    for row, each in enumerate(inputs):
        alone, own = run(model, [each], drafter, 1.0, first=row)
        assert torch.equal(alone[0], together[row])
        assert own.rows[0].rounds == stats.rows[row].rounds  # its drafts were the same, too
        assert own.rows[0].accepted == stats.rows[row].accepted


def test_the_context_holds_what_the_target_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every draft: as many slots as the target's cache, and in them what one reading of the whole text gives."""
    model, inputs = tiny_vlm("llava"), prompts("llava")[0]
    drafter, seen = tiny_block(model, num_nodes=20, branching=60, mode="coupled"), []
    propose = BlockSession.propose

    def checked(self: BlockSession, context: RoundContext, width: int) -> Any:
        assert torch.equal(self.cache.lengths, self.target.cache.lengths)
        seen.append(self.cache.keys[1][0, : int(self.cache.lengths[0])].clone())
        return propose(self, context, width)

    monkeypatch.setattr(BlockSession, "propose", checked)
    tokens, stats = run(model, [inputs], drafter, 1.0)
    assert stats.rows[0].accepted > 0  # otherwise nothing moved
    text = torch.cat([inputs["input_ids"], tokens], dim=1)
    whole = open_runner(model, [inputs | {"input_ids": text, "attention_mask": None}])
    whole.model.taps = tuple(drafter.config.taps)
    with torch.no_grad():
        read = drafter.read_context(whole.prefill().hidden)
        keys, _ = drafter.layers[1].self_attn.keys_values(read, drafter.rotary(torch.arange(read.shape[1])[None]))
    for known in seen:
        assert torch.allclose(known, keys[0].transpose(0, 1)[: len(known)], atol=1e-4)


def test_the_packed_pass_of_training_equals_drafting() -> None:
    """One block behind a context in a cache, and the same in one pass with the context beside it."""
    model = tiny_vlm("llava")
    drafter = tiny_block(model)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 9, 2 * 64, generator=generator)
    block = torch.randn(1, 6, 64, generator=generator)
    with torch.no_grad():
        context = drafter.read_context(features)
        place = torch.arange(9)[None]
        mask = torch.ones(1, 1, 6, 15, dtype=torch.bool)
        positions = drafter.rotary(9 + torch.arange(6)[None])
        packed = drafter(block, positions, mask, context=(context, drafter.rotary(place)))
        from mmspec.runner.cache import SpecCache

        cache = SpecCache(1, 20, torch.device("cpu"))
        for first, last in ((0, 4), (4, 9)):  # in two parts, as rounds append
            cache.plan(last - first, last)
            rotary = drafter.rotary(place[:, first:last])
            for index, layer in enumerate(drafter.layers):
                cache.update(*layer.self_attn.keys_values(context[:, first:last], rotary), index)
            cache.lengths = cache.lengths + (last - first)
        cache.plan(6, 15)
        cached = drafter(block, positions, None, cache)
    assert torch.allclose(packed, cached, atol=1e-5)


def test_the_head_equals_that_of_transformers() -> None:
    """An independent oracle: the assistant of the Muse class is the same network under other names."""
    transformers = pytest.importorskip("transformers", minversion="5.24")
    drafter = tiny_block(tiny_vlm("llava"), norm_eps=1e-5)
    config = transformers.MuseGlimmerAssistantConfig(
        hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, rms_norm_eps=1e-5, block_size=6, mask_token_id=0, target_layer_ids=[0, 1],
        layer_types=["full_attention"] * 2, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    muse = transformers.MuseGlimmerAssistantModel(config).eval()
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    muse.load_state_dict({renamed.get(name, name): value for name, value in drafter.state_dict().items()}, strict=True)
    generator = torch.Generator().manual_seed(0)
    features, block = (torch.randn(1, n, d, generator=generator) for n, d in ((9, 128), (6, 64)))
    place = torch.arange(15)[None]
    with torch.no_grad():
        mask = torch.ones(1, 1, 6, 15, dtype=torch.bool)
        context = drafter.read_context(features), drafter.rotary(place[:, :9])
        ours = drafter(block, drafter.rotary(place[:, 9:]), mask, context=context)
        theirs = muse(noise_embeds=block, context_hidden_states=features, position_ids=place).last_hidden_state
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_every_conditional_tree_is_the_best_of_its_size() -> None:
    generator = torch.Generator().manual_seed(2)
    first = torch.rand(3, generator=generator).log().tolist()
    transitions = torch.rand(2, 3, 3, generator=generator).log().tolist()
    everything = {
        path: sum([first[path[0]], *(transitions[d][a][b] for d, (a, b) in enumerate(itertools.pairwise(path)))])
        for length in (1, 2, 3)
        for path in itertools.product(range(3), repeat=length)
    }
    for count in (1, 2, 5, 12, 40, 100):
        parent, depth, chosen = conditional_tree(first, transitions, count)
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, len(parent)):
            paths.append((*paths[parent[node]], chosen[node]))
            assert len(paths[node]) == depth[node]
        assert len(set(paths)) == len(paths) == min(count, 40)
        wanted = sorted(everything.values(), reverse=True)[: len(paths) - 1]
        assert [everything[p] for p in paths[1:]] == pytest.approx(wanted)


def test_a_correction_that_knows_the_next_token_makes_the_chain() -> None:
    """Token v is followed by v + 1, whatever the slots say."""
    model, inputs = tiny_vlm("llava"), prompts("llava")[:1]
    drafter = tiny_block(model, markov_rank=128, tree="chain")
    drafts: list[Any] = []

    class Kept(BlockSession):
        def propose(self, context: RoundContext, width: int) -> Any:
            drafts.append(super().propose(context, width))
            return drafts[-1]

    with torch.no_grad():
        drafter.markov.before.weight.copy_(torch.eye(128))
        drafter.markov.after.weight.copy_(1000 * torch.eye(128).roll(1, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmspec.drafters.block.BlockSession", Kept)
        run(model, inputs, drafter)
    tokens = drafts[0].tokens[0]
    assert tokens.tolist() == [(int(tokens[0]) + step) % 128 for step in range(6)]
    tree = drafter.with_settings(tree="dynamic", num_nodes=6, branching=2)
    assert run(model, inputs, tree)[0].tolist() == run(model, inputs)[0].tolist()


def test_a_graft_shares_the_nodes_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """What followed the last tokens before is in the draft, no node is there twice, and the width holds."""
    model, inputs = tiny_vlm("llava"), prompts("llava")
    drafter, drafts = tiny_block(model, num_nodes=10, branching=3, graft=4), []
    propose = BlockSession.propose

    def kept(self: BlockSession, context: RoundContext, width: int) -> Any:
        draft = propose(self, context, width)
        wanted = [
            copy[: self.max_new_tokens - int(context.generated[row]) - 1]
            for row, copy in enumerate(self._copies(context, 4))
        ]
        drafts.append((draft, wanted))
        return draft

    monkeypatch.setattr(BlockSession, "propose", kept)
    run(model, inputs, drafter, 1.0)
    copied = 0
    for draft, wanted in drafts:
        if draft.num_nodes == 1:
            continue
        assert draft.num_nodes <= 10
        for row, copy in enumerate(wanted):
            real = [n for n in range(draft.num_nodes) if bool(draft.valid[row, n])]
            edges = {(int(draft.parent[row, n]), int(draft.tokens[row, n])): n for n in real[1:]}
            assert len(edges) == len(real) - 1
            node = 0
            for token in copy:
                node = edges[node, token]
            copied += len(copy)
    assert copied > 0


def test_every_candidate_tree_is_the_best_of_its_size() -> None:
    generator = torch.Generator().manual_seed(1)
    edges = torch.rand(3, 3, generator=generator).log().sort(dim=1, descending=True).values.tolist()
    everything = {
        path: sum(edges[depth][rank] for depth, rank in enumerate(path))
        for length in (1, 2, 3)
        for path in itertools.product(range(3), repeat=length)
    }
    for count in (1, 2, 5, 12, 40, 100):
        parent, depth, rank = marginal_tree(edges, count)
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, len(parent)):
            assert parent[node] < node
            paths.append((*paths[parent[node]], rank[node]))
            assert len(paths[node]) == depth[node]
        assert len(set(paths)) == len(paths) == min(count, 40)
        wanted = sorted(everything.values(), reverse=True)[: len(paths) - 1]
        assert [everything[p] for p in paths[1:]] == pytest.approx(wanted)
    assert marginal_tree([], 5) == ([0], [0], [0])
    assert marginal_tree([[-float("inf")]], 5) == ([0], [0], [0])


def test_a_short_block_drafts_less_far(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny_vlm("llava"), prompts("llava")
    propose, depths = BlockSession.propose, []

    def kept(self: BlockSession, *rest: Any) -> Any:
        draft = propose(self, *rest)
        depths.append(int(draft.depth.max()))
        return draft

    monkeypatch.setattr(BlockSession, "propose", kept)
    for slots, deepest in ((None, 5), (4, 3), (2, 1)):
        depths.clear()
        run(model, inputs, tiny_block(model, num_slots=slots, tree="chain", num_nodes=9))
        assert max(depths) == deepest


def test_peaked_laws_give_a_chain() -> None:
    edges = [[-0.01, -5.0]] * 6
    assert marginal_tree(edges, 6)[0] == [0, 0, 1, 2, 3, 4]


def test_taps() -> None:
    assert default_taps(36, 5) == (2, 10, 18, 26, 34)
    assert default_taps(32, 5) == (2, 9, 16, 23, 30)
    assert default_taps(24, 5) == (2, 7, 12, 17, 22)
    assert default_taps(4, 3) == (1, 2, 3)
    assert default_taps(4, 2) == (1, 3)
    assert default_taps(6, 1) == (4,)
    with pytest.raises(ValueError, match="1 to 3"):
        default_taps(4, 4)


def test_saved_and_loaded_it_drafts_alike(tmp_path: Path) -> None:
    model, inputs = tiny_vlm("llava"), prompts("llava")
    drafter = tiny_block(model)
    drafter.save_pretrained(tmp_path)
    loaded = BlockDrafter.from_pretrained(tmp_path)
    assert dict(loaded.config)["target"] == dict(drafter.config)["target"]
    assert run(model, inputs, loaded)[1].rows == run(model, inputs, drafter)[1].rows
    chain = BlockDrafter.from_pretrained(tmp_path, tree="chain")
    assert chain.max_siblings == 1


def test_a_drafter_of_another_target_is_refused() -> None:
    drafter = tiny_block(tiny_vlm("llava"))
    drafter.check_target(tiny_vlm("llava"))
    with pytest.raises(ValueError, match="other weights"):
        drafter.check_target(build("llava", seed=5))
    with pytest.raises(ValueError, match="class is LlavaForConditionalGeneration"):
        drafter.check_target(tiny_vlm("qwen3_vl"))
    with pytest.raises(ValueError, match="vocabulary of 128"):
        drafter.check_vocabulary(64)
    wide = tiny_block(tiny_vlm("llava"), hidden_size=32, target=None)
    with pytest.raises(ValueError, match="hidden size of 32"):
        wide.check_target(tiny_vlm("llava"))
    with pytest.raises(ValueError, match="below the 3 layers"):
        run(tiny_vlm("llava"), prompts("llava"), tiny_block(tiny_vlm("llava"), taps=(1, 3)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tree": "bush"}, "`tree`"),
        ({"mode": "sampled"}, "`mode`"),
        ({"block_size": 1}, "`block_size`"),
        ({"num_slots": 1}, "`num_slots`"),
        ({"num_slots": 7}, r"`num_slots` must lie in \[2, 6\]"),
        ({"taps": (2, 1)}, "ascending"),
        ({"taps": ()}, "`taps`"),
        ({"mask_token_id": 999}, "`mask_token_id`"),
        ({"temperature": 0.0}, "`temperature`"),
        ({"graft": 32}, "`graft`"),
        ({"num_kv_heads": 3}, "multiple"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_block(tiny_vlm("llava"), **change)
