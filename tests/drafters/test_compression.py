"""Fewer slots of pictures in a drafter's context: its cache is shorter, its drafts keep their places, no token changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.checkpoints.dflash import save_dflash_drafter
from mmspec.checkpoints.eagle3 import save_eagle3_drafter
from mmspec.drafters.block_session import BlockSession
from mmspec.drafters.compression import KINDS, VisualCompressor
from mmspec.drafters.feature_session import FeatureSession
from mmspec.training.vlm_blocks import block_states, corpus_blocks
from mmspec.training.vlm_drafter import build
from mmspec.training.vlm_eagle3 import VlmEagle3Config
from mmspec.training.vlm_eagle3 import train as train_eagle3
from mmspec.training.vlm_mtp import VlmMTPConfig
from mmspec.training.vlm_mtp import train as train_mtp
from mmspec.training.vlm_rollout import read_texts
from mmspec.training.vlm_steps import predicted_states
from tests.oracles.saved_vlm import tiny_reader
from tests.oracles.vlm import BUDGET, prompts, run, tiny_block, tiny_eagle3, tiny_mtp, tiny_vlm
from tests.training.test_vlm_drafter import config as block_config
from tests.training.test_vlm_drafter import drafted, example, write_questions
from tests.training.test_vlm_drafter import train as train_block
from tests.training.test_vlm_eagle3 import config as eagle3_config
from tests.training.test_vlm_mtp import config as mtp_config

MAKERS = {"block": tiny_block, "eagle3": tiny_eagle3, "mtp": tiny_mtp}
SETTINGS: dict[str, dict[str, Any]] = {
    "block": {"num_nodes": 9, "branching": 3}, "eagle3": {}, "mtp": {"tree": "dynamic", "num_nodes": 9, "branching": 3},
}  # fmt: skip
EVERY = pytest.mark.parametrize("kind", KINDS)
HEADS = pytest.mark.parametrize("head", sorted(MAKERS))


def make(head: str, model: Any, kind: str | None, ratio: int = 2, **more: Any) -> Any:
    settings = {**SETTINGS[head], **more}
    return MAKERS[head](model, compression=kind, compression_ratio=ratio, **settings)


@EVERY
@HEADS
def test_no_token_changes(head: str, kind: str) -> None:
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")
    drafter = make(head, model, kind)
    for temperature in (0.0, 1.0):
        plain, _ = run(model, inputs, None, temperature)
        tokens, stats = run(model, inputs, drafter, temperature)
        assert torch.equal(tokens, plain)
        assert [row.tokens for row in stats.rows] == [BUDGET] * 3
        assert stats.draft_forwards > 1


@HEADS
def test_rows_equal_solo(head: str) -> None:
    """A row's drafts do not depend on how short its neighbours became."""
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")
    drafter = make(head, model, "resampler", mode="coupled", **({"branching": 20}))
    together, stats = run(model, inputs, drafter, 1.0)
    for row, each in enumerate(inputs):
        alone, own = run(model, [each], drafter, 1.0, first=row)
        assert torch.equal(alone[0], together[row])
        assert own.rows[0].accepted == stats.rows[row].accepted


@HEADS
def test_the_context_is_shorter(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By 3 of the 6 slots of a picture; of pairs, which end inside one, by 2 of 5."""
    model, inputs = tiny_vlm("qwen3_vl"), prompts("qwen3_vl")
    lengths: dict[str | None, list[list[int]]] = {}
    session: Any = BlockSession if head == "block" else FeatureSession
    propose = session.propose

    def kept(self: Any, context: Any, width: int) -> Any:
        cache = self.cache if head == "block" else self.runner.cache
        lengths.setdefault(kind, []).append(cache.lengths.tolist())
        assert not kind or cache.capacity < longest[0]
        longest.append(cache.capacity)
        return propose(self, context, width)

    monkeypatch.setattr(session, "propose", kept)
    longest: list[int] = []
    for kind in (None, "pool"):
        run(model, inputs, make(head, model, kind))
    whole, short = (lengths[kind][0] for kind in (None, "pool"))
    assert [a - b for a, b in zip(whole, short, strict=True)] == ([3, 0, 1] if head == "block" else [2, 0, 1])


@EVERY
@HEADS
def test_drafts_depend_on_it(head: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the first drafts are others than those of the whole context, for a picture, and equal for a text."""
    model, inputs = tiny_vlm("llava"), prompts("llava")
    session: Any = BlockSession if head == "block" else FeatureSession
    method = "_block" if head == "block" else "_dynamic"
    true, seen = getattr(session, method), []

    def kept(self: Any, context: Any, *rest: Any) -> Any:
        result = true(self, context, *rest)
        seen.append(result if head == "block" else rest[1])
        return result

    monkeypatch.setattr(session, method, kept)
    whole, other = make(head, model, None), make(head, model, kind)
    other.load_state_dict({**other.state_dict(), **whole.state_dict()})
    for place, same in ((0, False), (1, True)):
        first = []
        for drafter in (whole, other):
            seen.clear()
            run(model, [inputs[place]], drafter)
            first.append(seen[0])
        assert torch.allclose(*first, atol=1e-5) == same


@EVERY
def test_how_slots_are_mixed(kind: str) -> None:
    torch.manual_seed(0)
    compressor = VisualCompressor(kind, 3, 4)
    states, other = torch.randn(2, 12, 4), torch.arange(24.0).view(2, 12, 1)
    visual = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0], [0] * 12]).bool()
    short = compressor([states, other], visual, torch.tensor([10, 6]))
    assert short.count.tolist() == [3 + 2 + 1, 6]  # ceil(5 / 3) and ceil(2 / 3)
    mixed, carried = short.parts
    for place in (0, 6, 9):  # text stays
        at = short.places[0, : int(short.count[0])].tolist().index(place)
        assert torch.equal(mixed[0, at], states[0, place])
        assert torch.equal(carried[0, at], other[0, place])
    assert torch.equal(mixed[1, :6], states[1, :6])
    assert short.places[1].tolist() == [0, 1, 2, 3, 4, 5]
    kept = short.places[0].tolist()
    assert kept == sorted(kept)
    if kind == "pool":
        assert kept == [0, 3, 5, 6, 8, 9]
        assert torch.allclose(mixed[0, 1], states[0, 1:4].mean(0))
        assert torch.allclose(carried[0, 2], other[0, 4:6].mean(0))
    elif kind == "prune":
        score = compressor.score(states[0, 1:6])[:, 0]
        best = (score.topk(2).indices + 1).sort().values
        assert kept[1:3] == best.tolist()
        gate = 2 * score[best - 1].sigmoid()
        assert torch.allclose(mixed[0, 1:3], states[0, best] * gate[:, None])
    elif kind == "resampler":
        assert 1 < carried[0, 1].item() < 5  # of its own picture only
        assert 7 <= carried[0, 4].item() <= 8
    loss = mixed.square().sum()
    if parameters := list(compressor.parameters()):
        loss.backward()
        assert all(parameter.grad is not None and bool(parameter.grad.abs().sum() > 0) for parameter in parameters)


@EVERY
def test_training_shows_blocks_what_drafting_shows(tmp_path: Path, kind: str) -> None:
    pipe, each = tiny_reader(), example(0, 9)
    settings = block_config(tmp_path, compression=kind, compression_ratio=3)
    drafter = build(settings, pipe)
    reading = read_texts(pipe.adapter, [each.encode(pipe), example(1, 4).encode(pipe)], (1, 2))
    anchors = reading.begin[:, None] + torch.tensor([[0, 2]])
    blocks = corpus_blocks(reading, anchors, torch.ones_like(anchors).bool(), 5, "ce", 4.0)
    with torch.no_grad():
        states = block_states(drafter, reading, blocks)
        for number, step in enumerate((0, 2)):
            alone = read_texts(pipe.adapter, [example_of(each, step + 1).encode(pipe)], (1, 2))
            assert torch.allclose(states[0, number], drafted(drafter, alone), atol=1e-4)
            whole = drafter.compressor
            drafter.compressor = None
            assert not torch.allclose(states[0, number], drafted(drafter, alone), atol=1e-3)
            drafter.compressor = whole


def example_of(each: Any, length: int) -> Any:
    return type(each)(each.item, each.answer[:length])


@EVERY
@pytest.mark.parametrize("head", ["eagle3", "mtp"])
def test_training_shows_heads_what_drafting_shows(head: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafted chain of a session equals the unrolled pass of training over the same text."""
    pipe = tiny_reader()
    drafter = make(head, pipe.model, kind, 3, tree="chain", num_nodes=4, target=None)
    drafts: list[Any] = []
    propose = FeatureSession.propose

    def kept(self: FeatureSession, *rest: Any) -> Any:
        drafts.append(propose(self, *rest))
        return drafts[-1]

    monkeypatch.setattr(FeatureSession, "propose", kept)
    pipe.drafter = drafter
    each = example(0, 1)
    pipe("read", list(each.item.images), max_new_tokens=6)
    tokens = drafts[0].tokens[0].tolist()
    text = type(each)(each.item, tuple(tokens))
    reading = read_texts(pipe.adapter, [text.encode(pipe)], drafter.config.get("taps", ()))
    hidden = reading.states if head == "mtp" else reading.features
    with torch.no_grad():
        for step, states in enumerate(predicted_states(drafter, reading, hidden, 3)):
            pair = int(reading.begin[0]) - 1
            assert int(drafter.predict(states[:, pair], reading.model).argmax()) == tokens[1 + step]


@pytest.mark.parametrize(("kind", "head"), [("conv", "block"), ("resampler", "eagle3"), ("prune", "mtp")])
def test_it_is_trained_with_its_drafter(tmp_path: Path, kind: str, head: str) -> None:
    write_questions(tmp_path)
    more: dict[str, Any] = {
        "compression": kind, "compression_ratio": 3, "held_out": tmp_path / "questions.jsonl", "steps": 6,
    }  # fmt: skip
    recipes: dict[str, Any] = {
        "block": (train_block, block_config), "eagle3": (train_eagle3, eagle3_config), "mtp": (train_mtp, mtp_config),
    }  # fmt: skip
    train, configure = recipes[head]
    settings: VlmEagle3Config | VlmMTPConfig = configure(tmp_path, **more)
    folder = train(settings, tiny_reader())
    drafter = type(MAKERS[head](tiny_vlm("llava"))).from_pretrained(folder)
    assert drafter.config.compression == kind
    if kind == "conv":
        assert drafter.compressor.kernel.std() > 1e-4  # it began uniform
    assert "true" in (folder / "report.json").read_text()
    assert "false" not in (folder / "report.json").read_text()


@EVERY
@HEADS
def test_saved_and_loaded_it_drafts_alike(head: str, kind: str, tmp_path: Path) -> None:
    model, inputs = tiny_vlm("llava"), prompts("llava")
    drafter = make(head, model, kind)
    drafter.save_pretrained(tmp_path)
    loaded = type(drafter).from_pretrained(tmp_path)
    assert run(model, inputs, loaded)[1].rows == run(model, inputs, drafter)[1].rows
    if kind != "pool":  # which has no weights
        with pytest.raises(RuntimeError, match="compressor"):
            drafter.with_settings(compression=None)


def test_bad_settings_are_named(tmp_path: Path) -> None:
    model = tiny_vlm("llava")
    for maker in MAKERS.values():
        with pytest.raises(ValueError, match="Unknown `compression` 'crop'"):
            maker(model, compression="crop")
        with pytest.raises(ValueError, match="`compression_ratio` must be at least 2, got 1"):
            maker(model, compression="pool", compression_ratio=1)
    with pytest.raises(ValueError, match="Unknown `compression`"):
        mtp_config(tmp_path, compression="crop")
    with pytest.raises(ValueError, match="no place in this layout"):
        save_dflash_drafter(make("block", model, "pool"), tmp_path, 3)
    with pytest.raises(ValueError, match="no place in this layout"):
        save_eagle3_drafter(make("eagle3", model, "pool"), tmp_path, 3)
