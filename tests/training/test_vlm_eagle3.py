"""Training of EAGLE-3 heads: it learns, what it learns is what it drafts, and its vocabulary is that of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec import Eagle3Drafter
from mmspec.training.vlm_eagle3 import VlmEagle3Config, build, frequent_tokens, losses, train
from mmspec.training.vlm_examples import Example
from mmspec.training.vlm_rollout import read_texts
from mmspec.vlm.items import Item
from tests.oracles.saved_vlm import tiny_reader
from tests.training.test_vlm_drafter import write_questions


def config(output: Path, **changes: Any) -> VlmEagle3Config:
    settings: dict[str, Any] = {
        "output": output, "questions": output / "questions.jsonl", "held_out": output / "questions.jsonl", "steps": 14,
        "batch_size": 2, "num_taps": 2, "intermediate_size": 32, "max_answer": 8, "log_every": 1, "evaluate": 1,
        "precision": "fp32", "answers": "corpus", "steps_ahead": 3, "learning_rate": 5e-3, "warmup_steps": 2,
    }  # fmt: skip
    return VlmEagle3Config(**{**settings, **changes})


@pytest.mark.parametrize("drafted", [None, 40])
def test_the_head_learns_and_drafts(tmp_path: Path, drafted: int | None) -> None:
    write_questions(tmp_path)
    pipe = tiny_reader()
    folder = train(config(tmp_path, draft_vocab_size=drafted), pipe)
    if drafted is None:  # of a few tokens the random target likes none best, so there is nothing to learn
        values = [entry["loss"] for entry in json.loads((tmp_path / "log.json").read_text())]
        assert sum(values[-4:]) < sum(values[:4]) - 0.4  # the random target's laws are flat: 4.5 nats of 4.6
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 14
    assert all(method["equal"] for method in report["measured"]["held out"].values())
    drafter = Eagle3Drafter.from_pretrained(folder)
    drafter.check_target(pipe.model)
    assert drafter.lm_head.out_features == (drafted or pipe.adapter.vocab_size)


def test_only_answers_are_judged(tmp_path: Path) -> None:
    """Laws of the prompt, of the end and of the padding change nothing; one inside the answer does."""
    write_questions(tmp_path)
    pipe, settings = tiny_reader(), config(tmp_path)
    examples = [Example(Item("read", ()), tuple(range(10, 10 + length))) for length in (6, 4)]
    drafter = build(settings, pipe, examples)
    reading = read_texts(pipe.adapter, [example.encode(pipe) for example in examples], drafter.config.taps)
    with torch.no_grad():
        first, _ = losses(drafter, reading, settings)
        for row, slot, same in (
            (0, 1, True),
            (1, int(reading.length[1]) - 1, True),
            (0, int(reading.begin[0]), False),
        ):
            kept = reading.states[row, slot].clone()
            reading.states[row, slot] = -kept
            assert torch.equal(losses(drafter, reading, settings)[0], first) == same, (row, slot)
            reading.states[row, slot] = kept


def test_the_drafted_vocabulary() -> None:
    examples = [Example(Item("a", ()), (7, 7, 9, 3)), Example(Item("a", ()), (9, 7))]
    assert frequent_tokens(examples, 3, 20, [15]).tolist() == [7, 9, 15]
    assert frequent_tokens(examples, 6, 20, [15]).tolist() == [0, 1, 3, 7, 9, 15]


@pytest.mark.parametrize(
    ("change", "words"), [({"steps_ahead": 0}, "steps_ahead"), ({"draft_vocab_size": 0}, "draft_vocab_size")]
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **change)
