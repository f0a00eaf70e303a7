"""The vision-language suite of the bench: its JSON, its figures, its peers, and what it calls a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec.bench.answers import correctness, edit_distance
from mmspec.bench.vlm import VlmBench, first_of_each, run_vlm_bench
from mmspec.bench.vlm_methods import VLM_METHODS, choose_vlm_methods, drafters_there
from mmspec.bench.vlm_peers import PEERS, lower_layers
from mmspec.cli.app import app
from mmspec.pipelines.auto_vision_language import AutoVisionLanguagePipeline
from mmspec.vlm.decoder import VisionLanguageModel
from mmspec.vlm.items import QUESTIONS, Item, read_items
from tests.bench.test_asr_bench import KEYS
from tests.oracles.saved_vlm import save_tiny_reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return save_tiny_reader(tmp_path_factory.mktemp("model") / "vlm")


def bench(folder: Path, *names: str) -> Any:
    pipe = AutoVisionLanguagePipeline.from_pretrained(folder)
    methods = drafters_there(choose_vlm_methods(names), str(folder))
    items = first_of_each(read_items(folder / QUESTIONS), 1)
    return run_vlm_bench(pipe, VlmBench("tiny", methods, items, lower_layers(pipe.model), max_new_tokens=8))


@pytest.fixture(scope="module")
def report(folder: Path) -> Any:
    return bench(folder)


def test_json_has_the_published_shape(report: Any, folder: Path, tmp_path: Path) -> None:
    written = json.loads(report.write_json(tmp_path / "vlm.json").read_text())
    assert (written["schema"], written["suite"]) == (1, "vlm")
    names = [method.name for method in drafters_there(list(VLM_METHODS.values()), str(folder))]
    assert [method["name"] for method in written["methods"]] == [*names, *(f"{name}-t1" for name in names)]
    assert all(list(method) == KEYS for method in written["methods"])
    assert set(PEERS) == {
        method["name"] for method in written["methods"] if method["peer"] and "-t1" not in method["name"]
    }


def test_figures(report: Any) -> None:
    assert report.unequal == []
    by_name = {method.name: method for method in report.methods}
    for plain in (by_name["plain"], by_name["plain-t1"]):
        assert (plain.forwards_ratio, plain.wall_ratio, plain.tokens_per_forward) == (1, 1, 1)
    for name, method in by_name.items():
        assert {
            f"{task}_{kind}" for task in ("read", "name") for kind in ("wall_ratio", "accuracy")
        } <= method.quality.keys()
        assert method.limit_fraction > 0, name
        if not method.peer:
            assert method.tokens_equal
        elif not name.endswith("-t1"):
            assert method.quality["equal"] == 1.0, name  # transformers' greedy text is ours
    assert by_name["transformers"].tokens_per_forward == 1
    assert by_name["transformers-assisted"].tokens_per_forward > 1


def test_an_unequal_method_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that slips once it verifies a draft must not pass for exact."""
    decode = VisionLanguageModel.decode

    def slipping(self: VisionLanguageModel, tokens: Any, *rest: Any) -> Any:
        output = decode(self, tokens, *rest)
        if tokens.shape[1] > 1:
            output.logits = output.logits.roll(1, -1)
        return output

    monkeypatch.setattr(VisionLanguageModel, "decode", slipping)
    assert bench(folder, "default").unequal == ["default", "default-t1"]


def test_command(folder: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    words = [
        "bench",
        "vlm",
        "--model",
        str(folder),
        "--quick",
        "--items",
        "1",
        "--temperature",
        "0",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "vlm.json").read_text())["settings"]["tasks"] == {"read": 1, "name": 1}
    assert (tmp_path / "vlm.png").is_file()
    for wrong in (["--method", "magic"], ["--questions", str(tmp_path / "none.jsonl")], ["--items", "-1"]):
        assert CliRunner().invoke(app, ["bench", "vlm", "--model", str(folder), *wrong]).exit_code == 2


def test_questions_of_all_tasks_take_turns() -> None:
    items = [Item(str(number), (), None, task) for number, task in enumerate("aabca")]
    assert [item.prompt for item in first_of_each(items, 2)] == ["0", "2", "3", "1"]
    assert len(first_of_each(items, None)) == 5
    with pytest.raises(ValueError, match="nothing to ask"):
        VlmBench("tiny", [], [], None)


def test_edit_distance() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == edit_distance("abc", "") == 3
    assert correctness(["same", "sane"], ["same", "same"]) == {"accuracy": 0.5, "cer": 0.125}
    with pytest.raises(ValueError, match="1 right answers for 0"):
        correctness([], ["a"])
