"""The recipe of the embedded vision-language model: its samples, its batches, and a training that resumes exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import BlockDrafter, Eagle3Drafter, VisionLanguagePipeline
from mmspec.training import vlm_target
from mmspec.training.emoji import EmojiSet
from mmspec.training.names import ICONIC
from mmspec.training.vlm_drafter import VlmDrafterConfig
from mmspec.training.vlm_drafter import train as train_block
from mmspec.training.vlm_eagle3 import VlmEagle3Config
from mmspec.training.vlm_eagle3 import train as train_eagle3
from mmspec.training.vlm_lines import HEIGHT, MAX_CHARACTERS, WIDTH, draw_line, random_text, split_words
from mmspec.training.vlm_ship import VlmShipConfig
from mmspec.training.vlm_ship import train as ship
from mmspec.training.vlm_target import (
    ANSWER,
    END,
    Collator,
    VlmTargetConfig,
    answer_loss,
    glyph_loss,
    new_model,
    picture_features,
    train,
)
from mmspec.training.vlm_tasks import QUESTIONS, TASKS, Material, draw_sample, held_out_samples, split_emoji
from mmspec.training.vlm_tokenizer import CHARACTERS, SPECIALS, character_tokenizer, picture_processor
from mmspec.vlm.items import QUESTIONS as QUESTIONS_FILE
from mmspec.vlm.items import read_items

WORDS = [f"{a}{b}{c}" for a in "bcdfgl" for b in "aeiou" for c in "mnprst"]


@pytest.fixture(scope="module")
def material() -> Material:
    names = [name for name in ICONIC for _ in range(3)]
    styles = ["fluent", "noto", "twemoji"] * len(ICONIC)
    images = np.random.default_rng(0).integers(0, 256, (len(names), 64, 64, 3), dtype=np.uint8)
    return split_emoji(EmojiSet(images, np.array(names), np.array(styles)), split_words(WORDS, {"own": None}))


def tiny(output: Path, **changes: Any) -> VlmTargetConfig:
    settings: dict[str, Any] = {
        "data": output, "output": output, "steps": 4, "batch_size": 4, "hidden_size": 32, "num_layers": 1, "num_heads": 2,
        "num_kv_heads": 2, "intermediate_size": 32, "vision_size": 32, "vision_layers": 1, "vision_heads": 2,
        "vision_intermediate": 32, "evaluate": 2, "max_answer": 6, "glyph_steps": 0, "precision": "fp32", "log_every": 1,
    }  # fmt: skip
    return VlmTargetConfig(**{**settings, **changes})


def test_every_character_is_a_token_and_comes_back() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer.encode(CHARACTERS, add_special_tokens=False)
    assert len(ids) == len(CHARACTERS)
    assert tokenizer.decode(ids) == CHARACTERS
    assert tokenizer.encode("é", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_lines_fit_and_held_out_words_stay_out(material: Material) -> None:
    lines, rng = material.lines, random.Random(0)
    assert lines.held_out_words
    assert not set(lines.words) & set(lines.held_out_words)
    for _ in range(200):
        text = random_text(lines.words, rng)
        assert 0 < len(text) <= MAX_CHARACTERS
        assert text == text.strip()
        assert set(text) <= set(CHARACTERS)
    first, again = (draw_line("Hello, world", None, random.Random(5)) for _ in range(2))
    assert first.shape == (HEIGHT, WIDTH)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, draw_line("Hello, word", None, random.Random(5)))


def test_held_out_emoji_are_never_drawn_for_training(material: Material) -> None:
    pairs = [set(zip(part.names, part.styles, strict=True)) for part in (material.emoji, material.held_out)]
    assert pairs[1]
    assert not pairs[0] & pairs[1]
    assert {name for name, _ in pairs[1]} <= {name for name, _ in pairs[0]}  # known in the other styles


def test_samples_answer_their_questions(material: Material) -> None:
    rng = random.Random(1)
    for sample in (draw_sample(material, (1, 1, 1), rng) for _ in range(60)):
        assert sample.question in QUESTIONS[sample.task]
        if sample.task == "json":
            assert set(json.loads(sample.answer)) == {"name", "kind", "style"}
    for task in TASKS:
        assert [s.answer for s in held_out_samples(material, task, 3)] == [
            s.answer for s in held_out_samples(material, task, 3)
        ]


def test_a_batch_holds_what_the_processor_makes_of_each_sample(material: Material) -> None:
    samples = [draw_sample(material, (1, 1, 1), random.Random(seed)) for seed in range(6)]
    batch = Collator(16, group=2)(samples)
    ordered = sorted(samples, key=lambda sample: sample.image.shape)
    processor = picture_processor()
    pixels = [one for group, _ in batch.pictures for one in group]
    for sample, one, ids, labels in zip(ordered, pixels, batch.input_ids, batch.labels, strict=True):
        made = processor(text=[f"<s><image>{sample.question}<answer>"], images=[sample.picture], return_tensors="pt")
        length = made["input_ids"].shape[1]
        assert ids[:length].tolist() == made["input_ids"][0].tolist()
        assert torch.equal(one, made["pixel_values"][0])
        answer = processor.tokenizer.encode(sample.answer, add_special_tokens=False)
        assert labels[labels >= 0].tolist() == [*answer, END]
        assert int(ids[labels >= 0][0]) == ANSWER  # the first character follows the mark
    spoilt = Collator(16, group=2)(samples, 0.5, torch.Generator().manual_seed(0))
    changed = spoilt.input_ids != batch.input_ids
    assert changed.any()
    assert not changed[(batch.labels < 0) | (batch.input_ids < len(SPECIALS))].any()  # characters of answers alone
    assert torch.equal(spoilt.labels, batch.labels)


def test_the_loss_is_that_of_the_whole_model(material: Material, tmp_path: Path) -> None:
    """The vision tower by groups and the language model apart equal transformers' own forward."""
    model = new_model(tiny(tmp_path)).eval()
    sample = held_out_samples(material, "read", 1)[0]
    batch = Collator(16)([sample])
    with torch.no_grad():
        ours, _ = answer_loss(model, batch)
        labels = torch.nn.functional.pad(batch.labels, (1, 0), value=-100)[:, :-1]
        pixels, sizes = batch.pictures[0]
        own = model(input_ids=batch.input_ids, pixel_values=pixels, image_sizes=sizes, labels=labels).loss
    assert torch.allclose(ours, own, atol=1e-5)


def test_twenty_steps_lower_the_loss(material: Material, tmp_path: Path) -> None:
    config = tiny(tmp_path, steps=20, batch_size=8, learning_rate=1e-2, warmup_steps=2, evaluate=1)
    train(config, material)
    losses = [entry["loss"] for entry in json.loads((tmp_path / "log.json").read_text())]
    assert len(losses) == 20
    assert sum(losses[-4:]) < 0.85 * sum(losses[:4])


def test_patches_show_their_characters(material: Material, tmp_path: Path) -> None:
    """Each column of patches belongs to one character, and the loss of patches reaches the vision tower alone."""
    sample = held_out_samples(material, "read", 1)[0]
    batch = Collator(16)([sample, held_out_samples(material, "name", 1)[0]])
    lines = batch.glyphs[batch.glyphs >= 0].view(HEIGHT // 16, WIDTH // 16)
    text = picture_processor().tokenizer.decode(lines[0][lines[0] > 0])
    assert text == sample.answer
    assert torch.equal(lines[0], lines[1])
    columns = sample.image[..., 0].reshape(HEIGHT, -1, 16).min(axis=(0, 2))  # the darkest pixel of each column
    drawn = [bool(place) for place in lines[0] > 0]
    letters = [columns[place] for place, there in enumerate(drawn) if there and sample.answer[place] not in " .,:;'-"]
    empty = [columns[place] for place, there in enumerate(drawn) if not there]
    assert max(letters) < min(empty)
    model = new_model(tiny(tmp_path))
    loss, _ = glyph_loss(model, picture_features(model, batch), batch.glyphs)
    loss.backward()
    assert all((p.grad is None) == ("language_model.layers" in n or "embed" in n) for n, p in model.named_parameters())


def test_a_run_in_two_parts_equals_one(material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(tiny(whole), material)

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer_loss(*arguments)

    calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(vlm_target, "answer_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(parts, checkpoint_minutes=1e-9), material)
    train(tiny(parts, resume=True), material)
    states = [VisionLanguagePipeline.from_pretrained(f / "pipeline").model.state_dict() for f in (whole, parts)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    training = json.loads((whole / "pipeline" / "training.json").read_text())
    assert {"read", "name", "json"} <= training["measured"].keys()
    pipe = VisionLanguagePipeline.from_pretrained(whole / "pipeline")
    pipe.set_progress_bar_config(disable=True)
    sample = held_out_samples(material, "read", 1)[0]
    drafted, plain = (pipe(sample.question, sample.picture, max_new_tokens=12, speculate=s) for s in (True, False))
    assert drafted.tokens == plain.tokens


@pytest.mark.parametrize(
    ("change", "words"),
    [({"shares": (1.0, 1.0)}, "3 shares"), ({"corruption": 1.0}, "corruption"), ({"hidden_size": 33}, "multiples")],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny(tmp_path, **change)


def test_target_and_drafters_are_put_together(material: Material, tmp_path: Path) -> None:
    train(tiny(tmp_path / "run", num_layers=2, steps=1), material)
    common: dict[str, Any] = {"target": str(tmp_path / "run" / "pipeline"), "data": tmp_path, "num_examples": 2, "batch_size": 1, "steps": 1,
              "num_taps": 1, "max_answer": 4, "evaluate": 1, "precision": "fp32"}  # fmt: skip
    train_block(VlmDrafterConfig(output=tmp_path / "block", block_size=4, **common), material=material)
    train_eagle3(VlmEagle3Config(output=tmp_path / "eagle3", **common), material=material)
    settings = VlmShipConfig(
        data=tmp_path, run=tmp_path / "run", block=tmp_path / "block", eagle3=tmp_path / "eagle3",
        output=tmp_path / "ship", samples=2, num_nodes=5,
    )  # fmt: skip
    folder = ship(settings, material)
    pipe = VisionLanguagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    assert (pipe.drafter.config.num_nodes, pipe.drafter.dtype) == (5, torch.float32)
    assert Eagle3Drafter.from_pretrained(folder).config.taps == [1]
    assert BlockDrafter.from_pretrained(folder).config.block_size == 4  # the pipeline's own
    items = read_items(folder / QUESTIONS_FILE)
    assert [item.task for item in items] == [task for task in TASKS for _ in range(2)]
    assert pipe(items[0].prompt, list(items[0].images), max_new_tokens=4).texts
    card = (folder / "README.md").read_text()
    assert "| block | tree-16 |" in card
    assert "| eagle3 | chain |" in card
    with pytest.raises(FileNotFoundError, match="must have ended"):
        ship(VlmShipConfig(data=tmp_path, run=tmp_path, block=tmp_path, output=tmp_path), material)
