"""Feature drafters are saved with their pipeline and alone, load strictly, and refuse another target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.draft import DraftLaw
from mmspec.drafters.feature import FOLDER, FeatureDrafter
from mmspec.drafters.fingerprint import check_fingerprint, fingerprint
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.tiny import few_codes_pipeline, tiny_feature, tiny_pipeline, tiny_transformer, tiny_vq

PROMPTS = ["a cat", "a very old red house on the"]


def codes(pipe: LlamaGenPipeline, **call: Any) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    return pipe(PROMPTS, seed=5, output_type="tokens", **call).tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved pipeline whose drafter is a feature drafter."""
    pipe = few_codes_pipeline()
    pipe.drafter = tiny_feature(pipe.transformer, tree="static", num_nodes=7, calibration={"coupled": [0.5, 0.8]})
    pipe.save_pretrained(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_round_trip_with_the_pipeline(folder: Path) -> None:
    index = json.loads((folder / "model_index.json").read_text())
    assert index["drafter"] == ["mmspec", "FeatureDrafter"]
    loaded = LlamaGenPipeline.from_pretrained(folder)
    assert isinstance(loaded.drafter, FeatureDrafter)
    assert loaded.drafter.config.tree == "static"
    assert loaded.drafter.config.calibration == {"coupled": [0.5, 0.8]}
    pipe = few_codes_pipeline()
    pipe.drafter = tiny_feature(pipe.transformer)
    for name, tensor in pipe.drafter.state_dict().items():
        assert torch.equal(loaded.drafter.state_dict()[name], tensor), name
    assert torch.equal(codes(loaded), codes(pipe, speculate=False))
    for path in folder.rglob("*.json"):
        assert str(folder.parent) not in path.read_text(), path


def test_a_pipeline_folder_may_keep_one_beside_its_components(tmp_path: Path) -> None:
    pipe = few_codes_pipeline()
    pipe.save_pretrained(tmp_path / "pipe")
    with pytest.raises(ValueError, match="train image-drafter"):
        FeatureDrafter.from_pretrained(tmp_path / "pipe")
    tiny_feature(pipe.transformer).to(torch.float16).save_pretrained(tmp_path / "pipe" / FOLDER)
    for place, options in [(tmp_path / "pipe", {}), (tmp_path / "pipe" / FOLDER, {}),
                           (tmp_path / "pipe", {"subfolder": FOLDER})]:  # fmt: skip
        loaded = FeatureDrafter.from_pretrained(place, **options)
        assert loaded.dtype == torch.float32
    pipe.drafter = FeatureDrafter.from_pretrained(tmp_path / "pipe", tree="chain", num_nodes=3)
    assert (pipe.drafter.config.tree, pipe.drafter.max_nodes) == ("chain", 3)
    assert torch.equal(codes(pipe), codes(pipe, speculate=False))


@pytest.mark.parametrize("change", ["missing", "extra", "misshapen"])
def test_other_tensors_are_refused_by_name(change: str, folder: Path) -> None:
    """Fault 28."""
    [path] = (folder / "drafter").glob("*.safetensors")
    tensors = load_file(path)
    if change == "missing":
        del tensors["joint.weight"]
    elif change == "extra":
        tensors["stray.weight"] = torch.zeros(2)
    else:
        tensors["joint.weight"] = torch.zeros(2, 2)
    save_file(tensors, path, metadata={"format": "pt"})
    name = "stray.weight" if change == "extra" else "joint.weight"
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        LlamaGenPipeline.from_pretrained(folder)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        FeatureDrafter.from_pretrained(folder / "drafter")


def test_another_vocabulary_width_or_family_is_refused_before_the_first_forward() -> None:
    """Faults 29 and 31."""
    pipe = few_codes_pipeline()
    other = tiny_pipeline()
    wider = tiny_transformer(vocab_size=5, hidden_size=40)
    deeper = tiny_transformer(vocab_size=5, num_layers=3, grid_width=4)
    cases = [
        (tiny_feature(other.transformer), r"vocabulary of 24.*5"),
        (tiny_feature(other.transformer, vocab_size=5, hidden_size=40, target=None), r"hidden size of 40.*32"),
        (tiny_feature(wider, hidden_size=32), r"`hidden_size` 40 instead of 32"),
        (tiny_feature(deeper), r"`grid_width` 4 instead of 5, `num_layers` 3 instead of 2"),
        (tiny_feature(tiny_transformer(vocab_size=5, seed=1)), r"other weights"),
    ]
    for drafter, message in cases:
        pipe.drafter = drafter
        with pytest.raises(ValueError, match=message):
            codes(pipe)


def test_the_fingerprint_survives_half_precision_and_changed_layers() -> None:
    transformer = tiny_transformer()
    wanted = json.loads(json.dumps(fingerprint(transformer)))
    check_fingerprint(wanted, transformer)
    check_fingerprint(wanted, tiny_transformer().to(torch.bfloat16))
    with torch.no_grad():
        transformer.layers[0].attention.out.weight += 1  # as an adapter on the layers does
    check_fingerprint(wanted, transformer)
    with pytest.raises(ValueError, match="class is LlamaGenTransformer, the target's VQModel"):
        check_fingerprint(wanted, _Headed(tiny_vq()))


class _Headed:
    """Another network with an output head."""

    def __new__(cls, network: Any) -> Any:
        network.head = torch.nn.Linear(2, 2)
        return network


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "argmax"}, r"'argmax'.*coupled, sampled, top-k"),
        ({"tree": "bush"}, r"'bush'.*chain, dynamic, static"),
        ({"mode": "sampled", "tree": "dynamic", "replacement": True}, "all different"),
        ({"tree": "static", "choices": [[1, 0]]}, "before its parent"),
        ({"calibration": {"coupled": [0.0]}}, "positive"),
        ({"calibration": {"guess": [1.0]}}, "'guess'"),
        ({"num_nodes": 0}, "num_nodes"),
        ({"controller": "magic"}, "'magic'"),
        ({"hidden_size": 30, "num_heads": 4}, "30"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    sizes = {"vocab_size": 5, "hidden_size": 32, "num_heads": 2, "intermediate_size": 16}
    with pytest.raises(ValueError, match=message):
        FeatureDrafter(**{**sizes, **settings})


def test_other_settings_share_the_weights() -> None:
    drafter = tiny_feature(tiny_transformer())
    chain = drafter.with_settings(tree="chain", num_nodes=4)
    assert chain.config.tree == "chain"
    assert drafter.config.tree == "dynamic"
    assert chain.joint.weight.data_ptr() == drafter.joint.weight.data_ptr()
    with pytest.raises(TypeError, match="colour"):
        drafter.with_settings(colour="red")


def test_each_mode_states_its_law() -> None:
    drafter = tiny_feature(tiny_transformer())
    laws = {
        ("coupled", "chain"): DraftLaw.SAMPLED,
        ("coupled", "dynamic"): DraftLaw.DETERMINISTIC,
        ("top-k", "chain"): DraftLaw.DETERMINISTIC,
        ("sampled", "chain"): DraftLaw.SAMPLED,
        ("sampled", "static"): DraftLaw.WITHOUT_REPLACEMENT,
        ("sampled", "dynamic"): DraftLaw.WITHOUT_REPLACEMENT,
    }
    for (mode, tree), law in laws.items():
        assert drafter.with_settings(mode=mode, tree=tree).law is law
    assert drafter.with_settings(mode="sampled", tree="static", replacement=True).law is DraftLaw.INDEPENDENT
    pipe = tiny_pipeline(acceptance=RatioAcceptance())
    pipe.drafter = drafter  # a tree, which the ratio rule would read as a chain
    with pytest.raises(ValueError, match="CoupledAcceptance"):
        codes(pipe)


def test_a_target_that_keeps_its_states_to_itself_is_refused() -> None:
    from mmspec.drafters.base import DraftSetup

    setup = DraftSetup(1, 24, torch.device("cpu"), 4)
    with pytest.raises(ValueError, match=r"states.*NGramDrafter"):
        tiny_feature(tiny_transformer()).session(setup)
