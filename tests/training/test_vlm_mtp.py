"""Training of MTP heads: it learns, only answers are judged, and both losses have the labels that they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec import MTPDrafter
from mmspec.cli.app import app
from mmspec.training.vlm_examples import Example
from mmspec.training.vlm_mtp import VlmMTPConfig, build, losses, train
from mmspec.training.vlm_rollout import read_texts
from mmspec.training.vlm_steps import step_losses
from mmspec.vlm.items import Item
from tests.oracles.saved_vlm import save_tiny_reader, tiny_reader
from tests.training.test_vlm_drafter import write_questions


def config(output: Path, **changes: Any) -> VlmMTPConfig:
    settings: dict[str, Any] = {
        "output": output, "questions": output / "questions.jsonl", "held_out": output / "questions.jsonl", "steps": 14,
        "batch_size": 2, "intermediate_size": 32, "max_answer": 8, "log_every": 1, "evaluate": 1, "precision": "fp32",
        "answers": "corpus", "learning_rate": 5e-3, "warmup_steps": 2,
    }  # fmt: skip
    return VlmMTPConfig(**{**settings, **changes})


@pytest.mark.parametrize("loss", ["ce", "kd"])
def test_the_head_learns_and_drafts(tmp_path: Path, loss: str) -> None:
    write_questions(tmp_path)
    pipe = tiny_reader()
    folder = train(config(tmp_path, loss=loss), pipe)
    values = [entry["loss"] for entry in json.loads((tmp_path / "log.json").read_text())]
    assert sum(values[-4:]) < sum(values[:4]) - 0.4
    assert (tmp_path / "loss.png").is_file()
    report = json.loads((folder / "report.json").read_text())
    assert (report["steps"], report["loss"]) == (14, loss)
    assert all(method["equal"] for method in report["measured"]["held out"].values())
    drafter = MTPDrafter.from_pretrained(folder)
    drafter.check_target(pipe.model)


def test_only_answers_are_judged(tmp_path: Path) -> None:
    """Laws of the prompt, of the end and of the padding change nothing; one inside the answer does."""
    write_questions(tmp_path)
    pipe, settings = tiny_reader(), config(tmp_path, loss="kd")
    examples = [Example(Item("read", ()), tuple(range(10, 10 + length))) for length in (6, 4)]
    drafter = build(settings, pipe)
    reading = read_texts(pipe.adapter, [example.encode(pipe) for example in examples], ())
    kept = reading.states.clone()
    with torch.no_grad():
        predicted = [torch.zeros_like(kept[:, 1:])]

        def loss_now() -> torch.Tensor:
            every = torch.arange(drafter.config.vocab_size)
            return step_losses(
                predicted, reading, 1.0, lambda s: drafter.predict(s[None], reading.model)[0] + every, every
            )[0]

        first = loss_now()
        for row, slot, same in (
            (0, 1, True), (1, int(reading.length[1]) - 1, True), (0, int(reading.begin[0]), False),
        ):  # fmt: skip
            reading.states[row, slot] = -kept[row, slot]
            assert torch.equal(loss_now(), first) == same, (row, slot)
            reading.states.copy_(kept)


def test_tokens_and_laws_as_labels(tmp_path: Path) -> None:
    """Cross-entropy by hand, with the weights 1 and 0.6 of two steps."""
    write_questions(tmp_path)
    pipe = tiny_reader()
    answer = (10, 11, 12, 13)
    drafter = build(config(tmp_path), pipe)
    reading = read_texts(pipe.adapter, [Example(Item("read", ()), answer).encode(pipe)], ())
    begin, size = int(reading.begin[0]), drafter.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, reading.ids.shape[1] - 1, size, generator=generator)
    laws = reading.model.logits(reading.states)[0].detach()
    every = torch.arange(size)
    for loss in ("ce", "kd"):
        found, _ = step_losses([table[:1], table[1:]], reading, 0.6, lambda logits: logits, every, loss)
        total = 0.0
        for step, weight in enumerate((1.0, 0.6)):
            each = []
            for pair in range(begin - 1, begin + len(answer) - 2 - step):
                slot = pair + 1 + step  # whose token was read last
                wanted = laws[slot].softmax(-1)
                if loss == "ce":
                    wanted = torch.nn.functional.one_hot(reading.ids[0, slot + 1], size).float()
                each.append(-(wanted * table[step, pair].log_softmax(-1)).sum())
            total += weight * float(torch.stack(each).mean())
        assert float(found) == pytest.approx(total / 1.6, rel=1e-4)


def test_the_head_sees_in_training_what_it_sees_in_a_draft(tmp_path: Path) -> None:
    write_questions(tmp_path)
    pipe, settings = tiny_reader(), config(tmp_path)
    with torch.no_grad():
        drafter = build(settings, pipe)
        long = read_texts(pipe.adapter, [Example(Item("read", ()), (10, 11, 12, 13, 14)).encode(pipe)], ())
        short = read_texts(pipe.adapter, [Example(Item("read", ()), (10, 11)).encode(pipe)], ())
        assert losses(drafter, long, settings)[0] != losses(drafter, short, settings)[0]
        from mmspec.training.vlm_steps import predicted_states

        ours, theirs = (predicted_states(drafter, reading, reading.states, 1)[0] for reading in (long, short))
    assert torch.allclose(ours[:, : theirs.shape[1]], theirs, atol=1e-5)  # nothing of what comes later


def test_the_command(tmp_path: Path) -> None:
    write_questions(tmp_path)
    folder = save_tiny_reader(tmp_path / "target")
    words = ["train", "vlm-drafter", "--head", "mtp", "--target", folder, "--questions", tmp_path / "questions.jsonl",
             "--output", tmp_path / "run", "--steps", "2", "--batch-size", "2", "--loss", "kd", "--device", "cpu",
             "--set", "answers=corpus"]  # fmt: skip
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert MTPDrafter.from_pretrained(tmp_path / "run" / "mtp_drafter").config.vocab_size > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [({"steps_ahead": 0}, "steps_ahead"), ({"step_decay": 0.0}, "step_decay"), ({"loss": "alr"}, "`loss`")],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **change)
