"""The image bench: the shape of its JSON, its figures, and what it calls a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.bench.image import ImageBench, run_image_bench
from mmspec.bench.memory import peak_memory
from mmspec.bench.methods import METHODS, SUITES, choose_methods
from mmspec.cli.app import app
from tests.oracles.saved import PROMPTS, save_tiny_checkpoint
from tests.oracles.tiny import tiny_pipeline

KEYS = [
    "name", "default", "peer", "guarantee", "items", "tokens_equal", "forwards", "forwards_ratio",
    "tokens_per_forward", "wall_ratio", "model_share", "peak_memory_ratio", "limit_fraction", "deviation", "quality",
]  # fmt: skip
TOKENS = 15


NAMES = [*SUITES["default"], "sjd-cool", "zipar-w2", "zipar-w4"]


def bench(names=NAMES, **settings):
    settings = {"items": 2, "memory": False, **settings}
    return ImageBench("tiny", choose_methods(names), PROMPTS, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def report():
    return run_image_bench(tiny_pipeline(), bench())


def test_json_has_the_published_shape(report, tmp_path):
    written = json.loads(report.write_json(tmp_path / "new" / "bench.json").read_text())
    assert list(written) == ["schema", "suite", "device", "versions", "settings", "methods"]
    assert (written["schema"], written["suite"], written["device"]) == (1, "image", "cpu")
    assert [method["name"] for method in written["methods"]] == NAMES
    assert all(list(method) == KEYS for method in written["methods"])
    overhead = written["settings"]["overhead"]
    assert all(set(parts) == {"draft", "accept", "commit", "other"} for parts in overhead.values())


def test_exact_methods_are_equal_and_others_do_not_claim_it(report):
    by_name = {method.name: method for method in report.methods}
    exact = {name for name, method in by_name.items() if method.guarantee == "SAME_TOKENS"}
    assert set(NAMES) - exact == {"sjd", "jacobi-maximal", "jacobi-gumbel", "sjd-cool", "zipar-w2", "zipar-w4"}
    assert all(by_name[name].tokens_equal is (True if name in exact else None) for name in by_name)
    assert {name for name, method in by_name.items() if method.deviation} == {"sjd-cool", "zipar-w2", "zipar-w4"}
    assert report.unequal == []
    assert [name for name in by_name if by_name[name].default] == ["default"]


def test_relaxed_methods_report_how_far_their_pictures_are(report):
    for method in report.methods:
        distances = {name for name in method.quality if name.endswith("_distance")}
        relaxed = {"colour_distance", "code_distance", "plain_colour_distance", "plain_code_distance"}
        assert distances == (relaxed if method.deviation else set())


def test_suites_name_methods_that_exist():
    assert all(set(names) <= set(METHODS) for names in SUITES.values())
    with pytest.raises(ValueError, match="Unknown suite 'all'; choose from default, methods, quick"):
        choose_methods(None, "all")


def test_forwards_and_ratios_fit_together(report):
    plain, *others = report.methods
    assert plain.forwards == 2 * TOKENS
    assert (plain.forwards_ratio, plain.tokens_per_forward, plain.wall_ratio) == (1.0, 1.0, 1.0)
    assert plain.limit_fraction == pytest.approx(1.0)
    for method in others:
        assert method.forwards_ratio == pytest.approx(plain.forwards / method.forwards)
        assert method.tokens_per_forward == pytest.approx(2 * TOKENS / method.forwards)
        assert 0 < method.model_share <= 1
        assert method.limit_fraction > 0


def test_equal_tokens_have_equal_bits(report):
    by_name = {method.name: method.quality for method in report.methods}
    assert by_name["jacobi-fixed-w64"]["bits_per_token"] == pytest.approx(by_name["plain"]["bits_per_token"])
    exact = {name: quality for name, quality in by_name.items() if "untruncated_bits_per_token" not in quality}
    assert set(NAMES) - set(exact) == {"sjd-cool", "zipar-w2", "zipar-w4"}
    assert all(0 < quality["bits_per_token"] < 6 for quality in exact.values())
    assert all(0 < by_name[name]["untruncated_bits_per_token"] < 20 for name in ("zipar-w2", "zipar-w4"))


def test_a_broken_rule_is_found():
    class Broken(CoupledAcceptance):
        def __call__(self, draft, logits, context):
            verdict = super().__call__(draft, logits, context)
            verdict.tokens = verdict.tokens * 0
            return verdict

    pipe = tiny_pipeline(acceptance=Broken())
    report = run_image_bench(pipe, bench(["default"], items=1))
    assert report.unequal == ["default"]


def test_the_pipeline_keeps_its_method():
    pipe = tiny_pipeline()
    run_image_bench(pipe, bench(["ngram"], items=1))
    assert (pipe.drafter, pipe.acceptance) == (None, None)


def test_batches_equal_solo_rows():
    report = run_image_bench(
        tiny_pipeline(), bench(["default", "jacobi-fixed-w16"], items=5, batch_size=3, check_solo=True)
    )
    assert report.unequal == []
    assert all(method.items == 5 for method in report.methods)
    assert report.methods[0].tokens_per_forward == 1.0


def test_rows_that_differ_from_solo_are_found(monkeypatch):
    monkeypatch.setattr("mmspec.bench.image._equals_solo", lambda *_: False)
    report = run_image_bench(tiny_pipeline(), bench(["default"], items=2, batch_size=2, check_solo=True))
    assert report.unequal == ["plain", "default"]


@pytest.mark.slow
def test_peak_memory_of_every_method(folder):
    peaks = peak_memory(ImageBench(str(folder), choose_methods(["default", "sjd"]), PROMPTS, items=1), "float32")
    assert list(peaks) == ["plain", "default", "sjd"]
    assert all(peak > 50 << 20 for peak in peaks.values())
    assert max(peaks.values()) < 1.2 * min(peaks.values())


def test_unknown_methods_are_named():
    with pytest.raises(ValueError, match="jacobi-fixed-w64"):
        choose_methods(["fast"])


def test_command_writes_figures_and_chart(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["bench", "image", "--model", str(folder), "--quick", "--items", "2", "--no-memory", "--out", "new"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    assert [m["name"] for m in json.loads(Path("new/image.json").read_text())["methods"]] == [
        "plain", "default", "jacobi-fixed-w16",
    ]  # fmt: skip
    assert Image.open("new/image.png").width == 900


def test_command_fails_when_an_exact_method_is_not_equal(folder, monkeypatch):
    monkeypatch.setattr("mmspec.bench.harness.Outcome.equals", lambda *_: False)
    words = ["bench", "image", "--model", str(folder), "--method", "ngram", "--items", "1", "--no-memory"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "ngram" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "fast"], "jacobi-fixed-w64"),
        (["--items", "0"], "`items` must be at least 1"),
        (["--batch-size", "0"], "`batch_size` must be at least 1"),
        (["--plot", "a.svg"], "PNG"),
    ],
)
def test_wrong_calls(folder, words, message):
    result = CliRunner().invoke(app, ["bench", "image", "--model", str(folder), *words])
    assert result.exit_code == 2
    assert message in result.stderr
