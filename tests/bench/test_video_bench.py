"""The video bench: the shape of its JSON, its figures, and what it refuses."""

from __future__ import annotations

import json

import pytest

from mmspec.bench.video import VideoBench, read_samples, run_video_bench
from mmspec.bench.video_methods import VIDEO_METHODS, choose_video_methods
from mmspec.pipelines.video import VideoPipeline
from tests.bench.test_image_bench import KEYS
from tests.oracles.saved_video import PROMPTS, save_tiny_video

TOKENS = 3 * 12  # codes after the first latent frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_video(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def report(folder):
    pipe = VideoPipeline.from_pretrained(folder)
    return run_video_bench(pipe, VideoBench("tiny", choose_video_methods(None), read_samples(folder), items=1))


def test_json_has_the_published_shape(report, tmp_path):
    written = json.loads(report.write_json(tmp_path / "bench.json").read_text())
    assert list(written) == ["schema", "suite", "device", "versions", "settings", "methods"]
    assert (written["schema"], written["suite"]) == (1, "video")
    assert [method["name"] for method in written["methods"]] == list(VIDEO_METHODS)
    assert all(list(method) == KEYS for method in written["methods"])
    assert written["settings"]["prompts"] == PROMPTS
    assert written["settings"]["forwards_ratio_to_uniform_w32"]["uniform"] == 1.0
    assert len(written["settings"]["forwards_ratio_to_uniform_w32"]) == 8


def test_figures_fit_together(report):
    plain, *others = report.methods
    assert plain.forwards == TOKENS
    assert report.unequal == []
    by_law = {"sjd", "jacobi-maximal", "jacobi-gumbel"}
    for method in others:
        assert method.tokens_equal is (None if method.name in by_law else True)
        assert method.forwards_ratio == pytest.approx(plain.forwards / method.forwards)
        assert method.tokens_per_forward == pytest.approx(TOKENS / method.forwards)
        assert method.limit_fraction > 0
        if method.tokens_equal:
            assert method.quality["bits_per_token"] == pytest.approx(plain.quality["bits_per_token"])


def test_wrong_benches_are_refused(folder, tmp_path):
    methods = choose_video_methods(["default"])
    assert [method.name for method in methods] == ["plain", "default"]
    with pytest.raises(ValueError, match="Unknown method 'fast'; choose from plain, default"):
        choose_video_methods(["fast"])
    with pytest.raises(ValueError, match="items"):
        VideoBench("tiny", methods, read_samples(folder), items=0)
    with pytest.raises(ValueError, match="nothing to continue"):
        VideoBench("tiny", methods, [])
    with pytest.raises(ValueError, match=r"no samples\.json"):
        read_samples(tmp_path)
    for text in ("{}", "[1]", '[{"prompt": "a"}]', "no"):
        (tmp_path / "samples.json").write_text(text)
        if text != "{}":
            with pytest.raises(ValueError, match="list of objects"):
                read_samples(tmp_path)
