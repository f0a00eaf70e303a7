"""The embedded recogniser as shipped: it transcribes, its drafts pay, and exact drafting changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmspec.bench.wer import error_rates
from mmspec.models.loading import EMBEDDED
from mmspec.pipelines.tiny_asr import TinyASRPipeline

FOLDER = EMBEDDED / "tiny-asr"
ENTRIES = json.loads((FOLDER / "samples" / "transcripts.json").read_text())
FILES = [str(FOLDER / "samples" / entry["file"]) for entry in ENTRIES]
TEXTS = [entry["text"] for entry in ENTRIES]


@pytest.fixture(scope="module")
def pipe() -> TinyASRPipeline:
    made = TinyASRPipeline.from_pretrained("mmspec/tiny-asr")
    made.set_progress_bar_config(disable=True)
    return made


def rate(texts: list[str]) -> float:
    return error_rates(TEXTS, texts)["wer"]


def test_files_are_small_and_licensed() -> None:
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert max(sizes.values()) <= 12_000_000
    assert sum(size for path, size in sizes.items() if path.suffix == ".flac") < 1_000_000
    assert "Allison Smith" in (FOLDER / "NOTICE").read_text()
    assert "by-sa/3.0" in (FOLDER / "LICENSE").read_text()
    assert len(ENTRIES) == 12
    assert {entry["set"] for entry in ENTRIES} == {"human", "sequence", "synthetic"}
    assert all(Path(file).is_file() for file in FILES)


def test_no_file_names_a_folder_of_the_training() -> None:
    for path in FOLDER.rglob("*.json"):
        assert "_name_or_path" not in path.read_text() or path.name == "training.json"


def test_it_transcribes_and_exact_drafting_changes_nothing(pipe: TinyASRPipeline) -> None:
    plain = pipe(FILES, speculate=False)
    exact = pipe(FILES, preset="exact")
    assert exact.texts == plain.texts
    assert rate(plain.texts) <= 0.5
    rounds = [sum(row.rounds for row in output.stats.rows) for output in (exact, plain)]
    assert rounds[0] < rounds[1] / 4
    balanced = pipe(FILES, preset="balanced")
    assert sum(row.rounds for row in balanced.stats.rows) < rounds[1] / 6
    assert rate(balanced.texts) <= rate(plain.texts) + 0.002


def test_silence_instead_of_speech_is_no_transcript(pipe: TinyASRPipeline) -> None:
    """The control of the test above: its rate is that of hearing, not of guessing the usual."""
    noise = 0.01 * torch.randn(32_000, generator=torch.Generator().manual_seed(0))
    guessed = pipe([(noise.numpy(), 16_000)] * len(FILES), speculate=False).texts
    assert rate(guessed) > 0.9


def test_the_card_says_what_was_measured() -> None:
    card = (FOLDER / "README.md").read_text()
    for name, result in json.loads((FOLDER / "training.json").read_text())["sets"].items():
        row = next(line for line in card.splitlines() if line.startswith(f"| {name} | {result['recordings']}"))
        for kind in ("ctc", "plain", "exact", "pocketsphinx"):
            assert f"{result[kind]['wer']:.3f}" in row
