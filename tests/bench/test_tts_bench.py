"""The speech-synthesis suite of the bench: its JSON, its figures, and what it calls a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec import ResidualDrafter
from mmspec.bench.tts import TtsBench, read_sentences, run_tts_bench
from mmspec.bench.tts_methods import TTS_METHODS, choose_tts_methods
from mmspec.cli.app import app
from mmspec.speech.code_target import CodeTarget
from tests.bench.test_asr_bench import KEYS
from tests.oracles.synthesis import CODES, tiny_heads, tiny_voice

SENTENCES = ["a", "no"]
pytestmark = pytest.mark.filterwarnings("ignore:.*were cut")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("voice")
    drafter = ResidualDrafter(heads=tiny_heads("chained"))
    tiny_voice(drafter, first={"temperature": 2.0}, rest={"temperature": 0.5}).save_pretrained(path)
    (path / "sentences.json").write_text(json.dumps(SENTENCES))
    return path


@pytest.fixture(scope="module")
def report() -> Any:
    pipe = tiny_voice(ResidualDrafter(heads=tiny_heads("chained")), first={"temperature": 2.0})
    return run_tts_bench(pipe, TtsBench("tiny", choose_tts_methods(None), SENTENCES))


def test_json_has_the_published_shape(report: Any, tmp_path: Path) -> None:
    written = json.loads(report.write_json(tmp_path / "tts.json").read_text())
    assert (written["schema"], written["suite"]) == (1, "tts")
    assert [method["name"] for method in written["methods"]] == list(TTS_METHODS)
    assert all(list(method) == KEYS for method in written["methods"])


def test_figures(report: Any) -> None:
    assert report.unequal == []
    by_name = {method.name: method for method in report.methods}
    plain = by_name["plain"]
    assert (plain.forwards_ratio, plain.wall_ratio, plain.tokens_per_forward) == (1, 1, 1)
    for name in ("default", "head-shift", "always", "jacobi"):
        method = by_name[name]
        assert method.tokens_equal
        calls = method.quality["talker_calls"] + method.quality["predictor_calls"]
        assert method.forwards == calls
        assert method.quality["talker_calls"] == plain.quality["talker_calls"]
        assert method.forwards_ratio == pytest.approx(plain.forwards / method.forwards)
        codes = plain.quality["predictor_calls"]
        assert method.tokens_per_forward == pytest.approx(codes / method.quality["predictor_calls"])
    assert by_name["ratio"].tokens_equal is None
    assert 0 < report.settings["drafter_parameter_share"] < 1


def test_an_unequal_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target whose predictor slips once it verifies a draft must not pass for exact."""
    predict = CodeTarget._predict

    def slipping(self: CodeTarget, rows: Any, draft: Any) -> Any:
        output = predict(self, rows, draft)
        if draft.num_nodes > 1:
            output.logits = output.logits.clone()
            output.logits[..., :CODES] = output.logits[..., :CODES].roll(1, -1)
        return output

    monkeypatch.setattr(CodeTarget, "_predict", slipping)
    pipe = tiny_voice(ResidualDrafter(heads=tiny_heads("chained")), first={"temperature": 2.0})
    assert run_tts_bench(pipe, TtsBench("tiny", choose_tts_methods(["default"]), ["well, yes"])).unequal == ["default"]


def test_command(folder: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    result = CliRunner().invoke(
        app, ["bench", "tts", "--model", str(folder), "--quick", "--items", "1", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "tts.json").is_file()
    assert (tmp_path / "tts.png").is_file()
    unknown = CliRunner().invoke(app, ["bench", "tts", "--model", str(folder), "--method", "magic"])
    assert unknown.exit_code != 0


def test_bad_sentences(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--text"):
        read_sentences(tmp_path)
    (tmp_path / "sentences.json").write_text("{}")
    with pytest.raises(ValueError, match="list of sentences"):
        read_sentences(tmp_path)
    (tmp_path / "sentences.json").write_text('["a"]')
    with pytest.raises(ValueError, match="at least 1"):
        read_sentences(tmp_path, 0)
    with pytest.raises(ValueError, match="magic"):
        choose_tts_methods(["magic"])
