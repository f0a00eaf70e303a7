"""The speech suite of the bench: its JSON, its figures, its peers, and what it calls a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mmspec.bench.asr import SpeechBench, read_items, run_speech_bench
from mmspec.bench.speech_methods import SPEECH_METHODS, choose_speech_methods
from mmspec.bench.wer import error_rates
from mmspec.bench.whisper_pair import bench_pair, random_pair
from mmspec.cli.app import app
from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline
from tests.oracles.saved_speech import TEXTS, save_tiny_recogniser

KEYS = [
    "name", "default", "peer", "guarantee", "items", "tokens_equal", "forwards", "forwards_ratio",
    "tokens_per_forward", "wall_ratio", "model_share", "peak_memory_ratio", "limit_fraction", "deviation", "quality",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return save_tiny_recogniser(tmp_path_factory.mktemp("model") / "asr")


@pytest.fixture(scope="module")
def report(folder: Path) -> Any:
    pipe = SpeechRecognitionPipeline.from_pretrained(folder)
    items = read_items(folder / "samples", 2)
    return run_speech_bench(pipe, SpeechBench("tiny", choose_speech_methods(None), items))


def test_json_has_the_published_shape(report: Any, tmp_path: Path) -> None:
    written = json.loads(report.write_json(tmp_path / "asr.json").read_text())
    assert (written["schema"], written["suite"]) == (1, "asr")
    assert [method["name"] for method in written["methods"]] == list(SPEECH_METHODS)
    assert all(list(method) == KEYS for method in written["methods"])
    assert written["settings"]["subsets"] == {"human": 2, "synthetic": 2}
    quality = written["methods"][1]["quality"]
    assert {
        "wer",
        "cer",
        "wer_human",
        "wer_synthetic",
        "plain_wer",
        "rtfx",
        "llm_rtfx",
        "forwards_per_utterance",
    } <= quality.keys()


def test_figures(report: Any) -> None:
    by_name = {method.name: method for method in report.methods}
    assert report.unequal == []
    for name in ("plain", "default", "exact", "resume", "ngram", "restart-exact"):
        assert by_name[name].tokens_equal is True
        assert by_name[name].quality["wer"] == by_name["plain"].quality["wer"]
    for name in ("accurate", "balanced", "fast", "restart"):
        assert (by_name[name].tokens_equal, by_name[name].guarantee) == (None, "HEURISTIC")
        assert 0 <= by_name[name].deviation["texts_changed"] <= 1
    assert by_name["plain"].forwards_ratio == by_name["plain"].wall_ratio == 1
    assert by_name["restart-exact"].forwards >= by_name["plain"].forwards  # nothing of a failed draft is kept
    assert [m.name for m in report.methods if m.peer] == ["restart-exact", "restart"]
    for method in report.methods:
        decided = sum(value for key, value in method.quality.items() if key.startswith("decided_"))
        assert decided == method.items == 4
    assert by_name["balanced"].quality["decided_ctc"] > 0  # the checkpoint's own thresholds
    assert by_name["balanced"].forwards < by_name["plain"].forwards


def test_error_rates_by_hand() -> None:
    rates = error_rates(["the cat sat", "on a mat"], ["The cat, sat!", "on mat at"])
    assert rates["wer"] == pytest.approx(2 / 6)
    assert error_rates(["a b"], [""])["wer"] == 1.0
    assert error_rates(["a b", ""], ["a b", "c d"])["wer"] == 1.0  # words where nothing was said
    with pytest.raises(ValueError, match="1 references for 2"):
        error_rates(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="No reference"):
        error_rates([""], ["a"])


def test_the_encoder_decoder_pair(folder: Path) -> None:
    files = [item.file for item in read_items(folder / "samples")][:2]
    entries = {entry.name: entry for entry in bench_pair(*random_pair(width=64, layers=3), files)}
    assert entries["whisper-assisted"].tokens_equal is True
    assert entries["whisper-assisted"].forwards < entries["whisper-plain"].forwards
    peer = entries["whisper-assisted-transformers"]
    assert (peer.peer, peer.tokens_equal, peer.quality["equal_to_plain"]) == (True, None, 1.0)
    assert peer.forwards < entries["whisper-plain"].forwards


def test_the_command(folder: Path, tmp_path: Path) -> None:
    arguments = ["bench", "asr", "--model", str(folder), "--quick", "--items", "1", "--no-pair", "--device", "cpu"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["asr.json", "asr.png"]
    assert "WER" in done.output
    for wrong, message in (
        (["--method", "magic"], "restart"),
        (["--data", str(tmp_path)], "transcripts.json"),
        (["--plot", "a.gif"], "PNG"),
    ):
        failed = CliRunner().invoke(app, [*arguments, *wrong])
        assert failed.exit_code == 2
        assert message in failed.output


def test_damaged_lists_are_named(folder: Path, tmp_path: Path) -> None:
    assert [item.text for item in read_items(folder / "samples")] == [*TEXTS, *TEXTS]
    (tmp_path / "transcripts.json").write_text('[{"file": "a.wav"}]')
    with pytest.raises(ValueError, match="'text'"):
        read_items(tmp_path)
    (tmp_path / "transcripts.json").write_text('[{"file": "a.wav", "text": "a"}]')
    with pytest.raises(FileNotFoundError, match=r"a\.wav"):
        read_items(tmp_path)
    with pytest.raises(ValueError, match="at least 1"):
        read_items(folder / "samples", 0)
