"""The ComfyUI nodes with a stand-in for ComfyUI: pictures, progress, interrupts, and no state between calls."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import LlamaGenPipeline
from tests.oracles.saved import save_tiny_checkpoint

FILE = Path(__file__).resolve().parent.parent.parent / "demos" / "comfyui_node.py"


class Interrupted(Exception):  # noqa: N818 - as ComfyUI's own is named
    pass


class Comfy:
    """What the nodes use of ComfyUI."""

    def __init__(self) -> None:
        self.bars: list[list[int]] = []
        self.totals: list[int] = []
        self.stop_after: int | None = None

    def progress_bar(self, total: int) -> Any:
        self.totals.append(total)
        self.bars.append([])
        return type("Bar", (), {"update_absolute": lambda _, value: self.bars[-1].append(value)})()

    def check(self) -> None:
        if self.stop_after is not None and len(self.bars[-1]) >= self.stop_after:
            raise Interrupted


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> Comfy:
    made = Comfy()
    modules = {name: ModuleType(name) for name in ("comfy", "comfy.utils", "comfy.model_management")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["comfy"].utils = modules["comfy.utils"]  # type: ignore[attr-defined]
    modules["comfy"].model_management = modules["comfy.model_management"]  # type: ignore[attr-defined]
    modules["comfy.utils"].ProgressBar = made.progress_bar  # type: ignore[attr-defined]
    management: Any = modules["comfy.model_management"]
    management.get_torch_device = lambda: torch.device("cpu")
    management.throw_exception_if_processing_interrupted = made.check
    return made


@pytest.fixture
def nodes(comfy: Comfy) -> Any:
    spec = importlib.util.spec_from_file_location("comfyui_node", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_checkpoint(tmp_path_factory.mktemp("node") / "tiny"))


@pytest.fixture
def pipe(nodes: Any, folder: str) -> LlamaGenPipeline:
    [loaded] = nodes.LoadSpeculativePipeline().load(folder)
    loaded.set_progress_bar_config(disable=True)
    assert isinstance(loaded, LlamaGenPipeline)
    return loaded


def test_the_file_stays_an_example() -> None:
    assert len(FILE.read_text().splitlines()) <= 65


def test_nodes_have_the_form_that_comfyui_reads(nodes: Any) -> None:
    for node in nodes.NODE_CLASS_MAPPINGS.values():
        names = list(node.INPUT_TYPES()["required"])
        arguments = list(inspect.signature(getattr(node, node.FUNCTION)).parameters)[1:]
        assert names == arguments
        assert isinstance(node.RETURN_TYPES, tuple)
        assert node.CATEGORY == "mmspec"
    assert nodes.NODE_CLASS_MAPPINGS.keys() == nodes.NODE_DISPLAY_NAME_MAPPINGS.keys()


def test_pictures_are_those_of_the_pipeline(nodes: Any, pipe: LlamaGenPipeline, comfy: Comfy) -> None:
    images, figures = nodes.SpeculativeImage().generate(pipe, "a red apple", 5, 2, True)
    expected = pipe("a red apple", seed=5, num_images_per_prompt=2, output_type="np").images
    assert images.shape == (2, *expected.shape[1:])
    assert images.dtype == torch.float32
    assert np.allclose(images.numpy(), expected, atol=1e-6)
    assert "SAME_TOKENS" in figures
    plain, _ = nodes.SpeculativeImage().generate(pipe, "a red apple", 5, 2, False)
    assert torch.equal(images, plain)
    assert len(comfy.bars[0]) < len(comfy.bars[1])
    for bar, total in zip(comfy.bars, comfy.totals, strict=True):
        assert bar == sorted(bar)
        assert bar[-1] == total == pipe.layout().num_tokens


def test_an_interrupt_leaves_nothing_behind(nodes: Any, pipe: LlamaGenPipeline, comfy: Comfy) -> None:
    node = nodes.SpeculativeImage()
    before, _ = node.generate(pipe, "a red apple", 5, 1, True)
    comfy.stop_after = 2
    with pytest.raises(Interrupted):
        node.generate(pipe, "a red apple", 5, 1, True)
    assert len(comfy.bars[-1]) == 2
    comfy.stop_after = None
    assert torch.equal(node.generate(pipe, "a red apple", 5, 1, True)[0], before)
