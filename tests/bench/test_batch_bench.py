"""The batch suite: both ways make the same pictures, and the figures are those of what was timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.bench.batch import METHODS, BatchBench, generate, run_batch_bench
from mmspec.pipelines.auto import AutoImagePipeline
from tests.oracles.saved import PROMPTS, save_tiny_checkpoint


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pipe = AutoImagePipeline.from_pretrained(save_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_the_report(pipe: Any) -> None:
    told: list[int] = []
    report = run_batch_bench(pipe, BatchBench("tiny", PROMPTS, items=4, batch_size=2, group=2), told.append)
    assert told == [1, 2]
    assert [method.name for method in report.methods] == ["plain", "loop", "batch-plain", "batch"]
    assert report.unequal == []
    figures = {method.name: method for method in report.methods}
    assert figures["plain"].forwards == 2 * figures["batch-plain"].forwards  # rows of equal length, two by two
    assert figures["batch-plain"].tokens_per_forward == pytest.approx(1.0)
    rates = {name: method.quality["items_per_second"] for name, method in figures.items()}
    assert report.settings["throughput_ratio"] == pytest.approx(rates["batch"] / rates["loop"])
    assert figures["batch"].wall_ratio == pytest.approx(rates["batch"] / rates["plain"])
    assert all(0 < method.model_share < 1 for method in report.methods)
    written = report.as_json()
    assert list(written) == ["schema", "suite", "device", "versions", "settings", "methods"]
    assert {"cpu", "date"} <= written["settings"].keys()


def test_other_seeds_would_be_noticed(pipe: Any) -> None:
    first, other = (BatchBench("tiny", PROMPTS, items=2, batch_size=2, group=2, seed=seed) for seed in (0, 50))
    alone, batch = METHODS[0], METHODS[3]
    [rows], [others] = first.groups(), other.groups()
    tokens = generate(pipe, first, alone, rows).tokens
    assert torch.equal(tokens, generate(pipe, first, batch, rows).tokens)
    assert not torch.equal(tokens, generate(pipe, other, batch, others).tokens)


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`group` is 6; it must be a multiple of `batch_size`, 4"):
        BatchBench("tiny", PROMPTS, batch_size=4, group=6)
    with pytest.raises(ValueError, match="items"):
        BatchBench("tiny", PROMPTS, items=0)
