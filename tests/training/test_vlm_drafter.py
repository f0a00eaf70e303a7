"""Training of block drafters: what it shows the drafter is what drafting will show it, and its labels are the target's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmspec import BlockDrafter, NGramDrafter, VisionLanguagePipeline
from mmspec.checkpoints.dflash import save_dflash_drafter
from mmspec.training import vlm_drafter
from mmspec.training.vlm_blocks import (
    LOSSES,
    Blocks,
    block_states,
    bucket_loss,
    corpus_blocks,
    draw_anchors,
    rollout_blocks,
)
from mmspec.training.vlm_drafter import VlmDrafterConfig, build, draw_secondary, train
from mmspec.training.vlm_examples import Example, target_examples
from mmspec.training.vlm_losses import VlmLossesConfig
from mmspec.training.vlm_losses import train as compare
from mmspec.training.vlm_rollout import Reading, Rollout, read_texts, roll_out, rollout_slots
from mmspec.training.vlm_tokenizer import SPECIALS, picture_processor
from mmspec.vlm.items import Item, read_items
from tests.oracles.vlm import reading_model

DEPTH, STOP = 5, (60,)


@pytest.fixture(scope="module")
def pipe() -> VisionLanguagePipeline:
    pipe = VisionLanguagePipeline(reading_model(), picture_processor(), NGramDrafter())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (32, 48, 3), dtype=np.uint8))


def example(seed: int, length: int) -> Example:
    answer = torch.randint(len(SPECIALS), 90, (length,), generator=torch.Generator().manual_seed(seed))
    return Example(Item("read", (picture(seed),), None), tuple(answer.tolist()))


def config(output: Path, **changes: Any) -> VlmDrafterConfig:
    settings: dict[str, Any] = {
        "output": output, "questions": output / "questions.jsonl", "steps": 4, "batch_size": 2, "anchors": 4,
        "num_layers": 1, "num_taps": 2, "block_size": DEPTH + 1, "intermediate_size": 32, "max_answer": 8, "log_every": 1,
        "evaluate": 1, "precision": "fp32", "answers": "corpus",
    }  # fmt: skip
    return VlmDrafterConfig(**{**settings, **changes})


def read(pipe: VisionLanguagePipeline, examples: list[Example], count: int = 3) -> tuple[Reading, Tensor, Tensor]:
    texts = [each.encode(pipe) for each in examples]
    reading = read_texts(pipe.adapter, texts, (1, 2), rollout_slots(count, DEPTH))
    return reading, *draw_anchors(reading, count, torch.Generator().manual_seed(0))


def alone(pipe: VisionLanguagePipeline, text: list[int], item: Item) -> Reading:
    """The target's reading of ``item`` with the tokens ``text`` as its answer."""
    return read_texts(pipe.adapter, [Example(item, tuple(text)).encode(pipe)], (1, 2))


@torch.no_grad()
def drafted(drafter: BlockDrafter, reading: Reading) -> Tensor:
    """States (K, D) of the block whose anchor is the last token of a text, with all before it as context."""
    last = reading.ids.shape[1] - 1
    place = torch.arange(last)[None]
    blocks = Blocks(
        reading.ids[:, last:], torch.tensor([[last]]), (reading.features[:, :last], place),
        torch.ones(1, 1, last, dtype=torch.bool), torch.zeros(1, 1, DEPTH), torch.ones(1, 1, DEPTH),
    )  # fmt: skip
    return block_states(drafter, reading, blocks)[0, 0]


def test_anchors_lie_inside_their_answers(pipe: VisionLanguagePipeline) -> None:
    examples = [example(0, 9), example(1, 2), example(2, 4)]
    seen = set()
    reading, *_ = read(pipe, examples)
    for seed in range(20):
        anchors, real = draw_anchors(reading, 3, torch.Generator().manual_seed(seed))
        assert real.sum(-1).tolist() == [3, 1, 3]
        for row in range(3):
            own = anchors[row, real[row]] - reading.begin[row]
            assert len(set(own.tolist())) == len(own)
            assert own.min() >= 0
            assert own.max() <= len(examples[row].answer) - 2
        seen |= set((anchors[0] - reading.begin[0]).tolist())
    assert seen == set(range(8))


def test_corpus_blocks_see_what_drafting_sees(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    examples = [example(0, 9), example(1, 5)]
    reading, anchors, real = read(pipe, examples)
    drafter = build(config(tmp_path), pipe)
    blocks = corpus_blocks(reading, anchors, real, DEPTH, "ce", 4.0)
    with torch.no_grad():
        states = block_states(drafter, reading, blocks)
    for row, each in enumerate(examples):
        for number in range(3):
            begin = int(anchors[row, number] - reading.begin[row])
            wanted = drafted(drafter, alone(pipe, list(each.answer[: begin + 1]), each.item))
            assert torch.allclose(states[row, number], wanted, atol=1e-4)
            behind = each.answer[begin + 1 : begin + 1 + DEPTH]
            assert blocks.labels[row, number, : len(behind)].tolist() == list(behind)
            assert (blocks.weights[row, number] > 0).sum() == len(behind)


def test_labels_of_kd_and_weights_of_erase(pipe: VisionLanguagePipeline) -> None:
    each = example(0, 7)
    reading, anchors, real = read(pipe, [each], 2)
    laws = reading.model.logits(reading.states)[0].detach()
    kd, erase, ce = (corpus_blocks(reading, anchors, real, DEPTH, loss, 4.0) for loss in ("kd", "erase", "ce"))
    for number, anchor in enumerate(anchors[0].tolist()):
        chance = 1.0
        for k in range(min(DEPTH, int(reading.length[0]) - anchor - 1)):
            assert torch.allclose(kd.labels[0, number, k], laws[anchor + k], atol=1e-5)
            assert float(erase.weights[0, number, k]) == pytest.approx(
                chance * float(ce.weights[0, number, k]), rel=1e-4
            )
            chance *= float(laws[anchor + k].softmax(-1)[reading.ids[0, anchor + k + 1]])


def rolled(pipe: VisionLanguagePipeline) -> tuple[list[Example], Reading, Rollout, Tensor]:
    examples = [example(0, 9), example(1, 5)]
    reading, anchors, real = read(pipe, examples)
    return examples, reading, roll_out(reading, anchors, DEPTH, STOP), real


def test_continuations_are_those_of_greedy_decoding(pipe: VisionLanguagePipeline) -> None:
    examples, reading, rollout, _ = rolled(pipe)
    for row, each in enumerate(examples):
        for number in range(3):
            begin = int(rollout.anchors[row, number] - reading.begin[row])
            text = list(each.answer[: begin + 1])
            for k in range(DEPTH):
                own = alone(pipe, text, each.item)
                law = own.model.logits(own.states[:, -1:])[0, 0]
                assert torch.allclose(rollout.logits[row, number, k], law, atol=1e-4)
                text.append(int(law.argmax()))
                assert int(rollout.tokens[row, number, k]) == text[-1]


def test_a_continuation_lives_up_to_and_with_its_end(pipe: VisionLanguagePipeline) -> None:
    _, reading, rollout, _ = rolled(pipe)
    stop = int(rollout.tokens[0, 0, 1])
    again = roll_out(reading, rollout.anchors, DEPTH, [stop])
    first = (again.tokens[0, 0] == stop).nonzero()[0, 0]
    assert again.alive[0, 0].tolist() == [k <= first for k in range(DEPTH)]
    assert torch.equal(again.tokens, rollout.tokens)  # a second rollout finds the cache as the first did


def test_blocks_inside_continuations_see_what_drafting_would_see(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    examples, reading, rollout, real = rolled(pipe)
    drafter = build(config(tmp_path), pipe)
    secondary = torch.tensor([[0, 2, 1], [1, 0, 2]]), torch.tensor([[2, 4, 3], [4, 2, 3]])
    blocks = rollout_blocks(reading, rollout, real, 4.0, secondary)
    with torch.no_grad():
        states = block_states(drafter, reading, blocks)
    for row, each in enumerate(examples):
        for number in range(3):
            parent, offset = int(secondary[0][row, number]), int(secondary[1][row, number])
            begin = int(rollout.anchors[row, parent] - reading.begin[row])
            text = [*each.answer[: begin + 1], *rollout.tokens[row, parent, :offset].tolist()]
            wanted = drafted(drafter, alone(pipe, text, each.item))
            assert torch.allclose(states[row, 3 + number], wanted, atol=1e-4)
            labels = blocks.labels[row, 3 + number, : DEPTH - offset]
            assert torch.equal(labels, rollout.logits[row, parent, offset:])
            alive = rollout.alive[row, parent, offset:] & real[row, parent]
            assert torch.equal(blocks.weights[row, 3 + number, : DEPTH - offset] > 0, alive)
            assert not blocks.weights[row, 3 + number, DEPTH - offset :].any()
    primary = rollout_blocks(reading, rollout, real, 4.0)
    with torch.no_grad():  # further blocks do not disturb the first ones
        assert torch.allclose(block_states(drafter, reading, primary), states[:, :3], atol=1e-5)


def test_places_inside_continuations() -> None:
    real = torch.tensor([[True, False, True], [True, False, False]])
    parent, offset = draw_secondary(real, 50, DEPTH, torch.Generator().manual_seed(0)) or (None, None)
    assert parent is not None
    assert set(parent[0].tolist()) == {0, 2}
    assert set(parent[1].tolist()) == {0}
    assert set(offset.flatten().tolist()) == set(range(2, DEPTH))
    assert draw_secondary(real, 0, DEPTH, torch.Generator()) is None


def test_the_loss_of_laws() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(4, 6, generator=generator) for _ in range(2))
    full = -(theirs.softmax(-1) * ours.log_softmax(-1)).sum(-1)
    assert torch.allclose(bucket_loss(ours, theirs), full, atol=1e-4)  # no more tokens than are kept
    many = torch.randn(3, 40, generator=generator)
    other = many + torch.randn(3, 40, generator=generator)
    assert (bucket_loss(other, many) > bucket_loss(many, many)).all()


def write_questions(folder: Path, answers: bool = True) -> None:
    lines = []
    for number in range(4):
        picture(number).save(folder / f"{number}.png")
        entry = {"prompt": "read", "images": [f"{number}.png"]}
        lines.append(json.dumps(entry | ({"answer": "abcabcab"} if answers else {})))
    (folder / "questions.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_teaches(pipe: VisionLanguagePipeline, tmp_path: Path, loss: str) -> None:
    write_questions(tmp_path)
    settings = config(
        tmp_path, loss=loss, steps=14, learning_rate=5e-3, warmup_steps=2, held_out=tmp_path / "questions.jsonl"
    )
    folder = train(settings, pipe)
    log = json.loads((tmp_path / "log.json").read_text())
    losses = [entry.get("divergence", entry["loss"]) for entry in log]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    report = json.loads((folder / "report.json").read_text())
    assert report["loss"] == loss
    assert all(method["equal"] for method in report["measured"]["held out"].values())
    drafter = BlockDrafter.from_pretrained(folder)
    drafter.check_target(pipe.model)
    assert isinstance(pipe.drafter, NGramDrafter)


def test_a_correction_by_the_token_before_is_learnt(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    write_questions(tmp_path)
    settings = config(tmp_path, loss="ce", steps=14, learning_rate=5e-3, warmup_steps=2, markov_rank=4)
    settings = replace(settings, held_out=tmp_path / "questions.jsonl")
    folder = train(settings, pipe)
    drafter = BlockDrafter.from_pretrained(folder)
    assert drafter.markov.after.weight.abs().sum() > 0
    report = json.loads((folder / "report.json").read_text())
    assert all(method["equal"] for method in report["measured"]["held out"].values())
    with pytest.raises(ValueError, match="no place in this layout"):
        save_dflash_drafter(drafter, tmp_path / "z", 3)


def test_a_run_in_two_parts_equals_one(
    pipe: VisionLanguagePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("whole", "parts")]
    calls: list[int] = []
    true = vlm_drafter.block_loss

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return true(*args)

    for folder in folders:
        folder.mkdir()
        write_questions(folder)
    with monkeypatch.context() as patch:
        patch.setattr(vlm_drafter, "block_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config(folders[1], checkpoint_minutes=1e-9), pipe)
    trained = [train(config(folder, resume=folder.name == "parts"), pipe) for folder in folders]
    states = [BlockDrafter.from_pretrained(folder).state_dict() for folder in trained]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_targets_answers_are_kept(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    write_questions(tmp_path, answers=False)
    items = read_items(tmp_path / "questions.jsonl")
    first = target_examples(pipe, items, tmp_path / "answers", 6, seed=0, chunk_size=2)
    wanted = pipe([i.prompt for i in items], [list(i.images) for i in items], max_new_tokens=6).tokens
    assert [list(example.answer) for example in first] == wanted
    (tmp_path / "answers" / "000002.json").unlink()  # as after a kill
    assert target_examples(pipe, items, tmp_path / "answers", 6, seed=0, chunk_size=2) == first
    with pytest.raises(ValueError, match="other questions"):
        target_examples(pipe, items[::-1] + items, tmp_path / "answers", 6, seed=0, chunk_size=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": Path("x")}, "exactly one"),
        ({"questions": None}, "exactly one"),
        ({"loss": "mse"}, "`loss`"),
        ({"answers": "mine"}, "`answers`"),
        ({"anchors": 0}, "`anchors`"),
        ({"block_size": 3}, "block_size"),
        ({"corpus_noise": 1.0}, "corpus_noise"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **change)


def test_bad_questions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    for content, words in (("", "no questions"), ('{"prompt": "a"}\n{"images": []}', "Line 2"), ("[]", "Line 1")):
        path.write_text(content)
        with pytest.raises(ValueError, match=words):
            read_items(path)


def test_losses_are_compared_seed_by_seed(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    write_questions(tmp_path)
    own = {**vars(config(tmp_path, steps=2)), "held_out": tmp_path / "questions.jsonl", "corpus_noise": 0.3}
    settings = VlmLossesConfig(**{**own, "seeds": (0, 1), "output": tmp_path / "losses"})
    content = json.loads(compare(settings, pipe).read_text())
    assert content["steps"] == {"ce": [2, 2], "alr-ira": [2, 2]}
    chain = content["shapes"]["chain"]
    assert chain["ce"]["ratio"] == 1.0
    assert chain["alr-ira"]["ratio"] == pytest.approx(chain["alr-ira"]["mean"] / chain["ce"]["mean"], abs=1e-3)
    with pytest.raises(ValueError, match="Unknown loss 'mse'"):
        VlmLossesConfig(**{**own, "losses": ("ce", "mse")})
