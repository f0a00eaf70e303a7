"""A saved pipeline is whole: it loads offline in a fresh process, from another place, and gives the same pictures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from safetensors.torch import load_file, save_file
from torch import Tensor

import mmspec
from mmspec.acceptance.match import MatchAcceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.controllers import Controller, CostCurve, FixedController
from mmspec.core.draft import DraftLaw
from mmspec.core.drafting import DraftSession, NoDraft
from mmspec.drafters.base import Drafter, DraftSetup
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.tiny import tiny_pipeline, tiny_transformer

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["a cat", "a very old red house on the"]

CHILD = """
import json, os, socket, sys
os.environ["HF_HUB_OFFLINE"] = "1"
def blocked(*arguments, **named):
    raise OSError("the network is blocked in this test")
socket.socket.connect = blocked
socket.create_connection = blocked
socket.getaddrinfo = blocked
import mmspec
results = []
for folder in sys.argv[2:]:
    pipe = mmspec.SpecPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    output = pipe(json.loads(sys.argv[1]), seed=5, output_type="tokens")
    results.append({
        "tokens": output.tokens.tolist(), "method": output.stats.method, "pipeline": type(pipe).__name__,
        "drafter": type(pipe.drafter).__name__, "acceptance": type(pipe.acceptance).__name__,
    })
print("RESULT" + json.dumps(results))
"""


def load_elsewhere(*folders: Path) -> list[dict[str, Any]]:
    """Load each folder in one fresh process without network and decode :data:`PROMPTS` with seed 5."""
    command = [sys.executable, "-c", CHILD, json.dumps(PROMPTS), *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.split("RESULT")[1])


def tokens(pipe: LlamaGenPipeline) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    return pipe(PROMPTS, seed=5, output_type="tokens").tokens


def saved(pipe: LlamaGenPipeline, folder: Path) -> Path:
    pipe.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_fresh_process_offline_from_a_moved_folder(tmp_path: Path) -> None:
    """Faults 56, 57 and 58: with and without a drafter, with one attached late, and with a compiled part."""
    late = tiny_pipeline()
    late.drafter, late.acceptance = NGramDrafter(num_draft_tokens=3), MatchAcceptance()
    compiled = tiny_pipeline(drafter=JacobiDrafter(window=6))
    compiled.transformer = torch.compile(compiled.transformer, backend="eager")
    pipes = {
        "none": tiny_pipeline(),
        "jacobi": tiny_pipeline(drafter=JacobiDrafter(window=6, coupling="maximal"), acceptance=RatioAcceptance()),
        "late": late,
        "model": tiny_pipeline(drafter=ModelDrafter(3, model=tiny_transformer(seed=1))),
        "compiled": compiled,
    }
    folders = []
    for name, pipe in pipes.items():
        saved(pipe, tmp_path / "before" / name)
        folders.append(tmp_path / "after" / "elsewhere" / name)
    (tmp_path / "after").mkdir()
    shutil.move(tmp_path / "before", tmp_path / "after" / "elsewhere")
    # widths of a SAME_LAW rule may follow this machine's timings, so those are compared by method only
    for (name, pipe), result in zip(pipes.items(), load_elsewhere(*folders), strict=True):
        assert result["pipeline"] == "LlamaGenPipeline"
        assert result["drafter"] == type(pipe.drafter).__name__
        assert result["acceptance"] == type(pipe.acceptance).__name__
        if name in ("none", "model", "compiled"):
            assert result["tokens"] == tokens(pipe).tolist(), name


def test_index_names_the_library_and_no_place(tmp_path: Path) -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(), acceptance=RatioAcceptance())
    folder = saved(pipe, tmp_path / "pipe")
    index = json.loads((folder / "model_index.json").read_text())
    assert index["transformer"] == ["mmspec", "LlamaGenTransformer"]
    assert index["drafter"] == ["mmspec", "JacobiDrafter"]
    assert index["acceptance"] == ["mmspec", "RatioAcceptance"]
    for path in folder.rglob("*.json"):
        assert str(tmp_path) not in path.read_text(), path


@pytest.mark.parametrize("name", ["BlockAcceptance", "CoupledAcceptance", "GreedyAcceptance", "MatchAcceptance",
                                  "RatioAcceptance", "JacobiDrafter", "ModelDrafter", "NGramDrafter"])  # fmt: skip
def test_every_method_is_saved_as_mmspec_and_comes_back(name: str, tmp_path: Path) -> None:
    part = getattr(mmspec, name)()
    kind = "acceptance" if name.endswith("Acceptance") else "drafter"
    pipe = tiny_pipeline(**{kind: part})
    folder = saved(pipe, tmp_path / "pipe")
    assert json.loads((folder / "model_index.json").read_text())[kind] == ["mmspec", name]
    loaded = getattr(LlamaGenPipeline.from_pretrained(folder), kind)
    assert type(loaded) is type(part)
    assert {k: v for k, v in loaded.config.items() if k[0] != "_"} == {
        k: v for k, v in part.config.items() if k[0] != "_"
    }


def test_settings_survive(tmp_path: Path) -> None:
    drafter = JacobiDrafter(9, "maximal", "copy-up", 0.25, "aimd", {"16": 4.2})
    pipe = tiny_pipeline(drafter=drafter, guidance_scale=3.5, temperature=0.9, top_k=7, top_p=0.95)
    loaded = LlamaGenPipeline.from_pretrained(saved(pipe, tmp_path / "pipe"))
    for name in ("guidance_scale", "temperature", "top_k", "top_p", "class_names"):
        assert loaded.config[name] == pipe.config[name]
    for name in ("window", "coupling", "initializer", "mix", "controller", "prior"):
        assert loaded.drafter.config[name] == drafter.config[name]
    assert loaded.drafter.law == drafter.law == DraftLaw.COUPLED


def test_compiled_part_is_saved_under_its_own_class_and_names(tmp_path: Path) -> None:
    pipe = tiny_pipeline()
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")
    folder = saved(pipe, tmp_path / "pipe")
    assert json.loads((folder / "model_index.json").read_text())["transformer"] == ["mmspec", "LlamaGenTransformer"]
    [weights] = (folder / "transformer").glob("*.safetensors")
    assert not any("_orig_mod" in name for name in load_file(weights))


def test_replacing_and_removing_the_drafter_while_loading(tmp_path: Path) -> None:
    pipe = tiny_pipeline(drafter=ModelDrafter(3, model=tiny_transformer(seed=1)))
    folder = saved(pipe, tmp_path / "pipe")
    assert isinstance(LlamaGenPipeline.from_pretrained(folder, drafter=NGramDrafter()).drafter, NGramDrafter)
    bare = LlamaGenPipeline.from_pretrained(folder, drafter=None)
    assert bare.drafter is None
    assert torch.equal(tokens(bare), tokens(pipe))


class NothingDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """A user's own drafter class."""

    config_name = "drafter_config.json"
    law = DraftLaw.DETERMINISTIC
    max_nodes = 1

    @register_to_config
    def __init__(self, note: str = "") -> None:
        pass

    def session(self, setup: DraftSetup) -> DraftSession:
        return NoDraft()

    def controller(self, costs: CostCurve) -> Controller:
        return FixedController(1)


def test_a_users_own_drafter_is_saved_and_given_back_while_loading(tmp_path: Path) -> None:
    """Its class is not mmspec's, so loading without it names the class instead of importing foreign code."""
    pipe = tiny_pipeline(drafter=NothingDrafter("mine"))
    folder = saved(pipe, tmp_path / "pipe")
    loaded = LlamaGenPipeline.from_pretrained(folder, drafter=NothingDrafter("mine"))
    assert torch.equal(tokens(loaded), tokens(pipe))
    with pytest.raises(ValueError, match="NothingDrafter"):
        LlamaGenPipeline.from_pretrained(folder)


def weights_of(folder: Path, part: str) -> Path:
    [path] = (folder / part).rglob("*.safetensors")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tiny_pipeline(drafter=ModelDrafter(3, model=tiny_transformer(seed=1))), tmp_path / "pipe")


@pytest.mark.parametrize("part", ["transformer", "vq", "text_encoder", "drafter"])
def test_a_missing_tensor_is_refused_by_name(folder: Path, part: str) -> None:
    """Fault 28, for the target, its codec, its encoder and the draft model."""
    path = weights_of(folder, part)
    tensors = load_file(path)
    name = sorted(name for name in tensors if "norm" not in name)[1]
    save_file({k: v for k, v in tensors.items() if k != name}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        LlamaGenPipeline.from_pretrained(folder)


@pytest.mark.parametrize("part", ["transformer", "vq", "text_encoder", "drafter"])
def test_a_stray_tensor_is_refused_by_name(folder: Path, part: str) -> None:
    path = weights_of(folder, part)
    save_file({**load_file(path), "stray.weight": torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"stray\.weight"):
        LlamaGenPipeline.from_pretrained(folder)


def test_a_tensor_of_the_wrong_shape_is_refused_with_both_shapes(folder: Path) -> None:
    path = weights_of(folder, "transformer")
    tensors = load_file(path)
    tensors["head.weight"] = torch.zeros(25, 32)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"head\.weight.*25.*24"):
        LlamaGenPipeline.from_pretrained(folder)


@pytest.mark.parametrize("part", ["transformer", "drafter"])
def test_truncated_weights_are_refused_by_file(folder: Path, part: str) -> None:
    path = weights_of(folder, part)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=path.name.replace(".", r"\.")):
        LlamaGenPipeline.from_pretrained(folder)


@pytest.mark.parametrize("name", ["model_index.json", "transformer/config.json"])
@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_damaged_json_is_refused_by_file(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=Path(name).name.replace(".", r"\.")):
        LlamaGenPipeline.from_pretrained(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    path = weights_of(folder, "transformer")
    torch.save(load_file(path), path.with_suffix(".bin"))
    path.unlink()
    with pytest.raises(ValueError, match="pickle"):
        LlamaGenPipeline.from_pretrained(folder)


@pytest.mark.parametrize("name", ["mmspec/no-such", "/no/such/folder", "./nowhere", "a/b/c", "word"])
def test_unknown_names_are_refused_without_network(name: str) -> None:
    with pytest.raises(ValueError, match=name.strip("./").split("/")[-1]):
        LlamaGenPipeline.from_pretrained(name)


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model_index\.json"):
        LlamaGenPipeline.from_pretrained(tmp_path)


def test_another_kind_of_pipeline_is_refused(folder: Path) -> None:
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": "StableDiffusionPipeline"}))
    with pytest.raises(ValueError, match="StableDiffusionPipeline"):
        LlamaGenPipeline.from_pretrained(folder)
