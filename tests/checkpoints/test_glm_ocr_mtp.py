"""The MTP head of GLM-OCR: read from a checkpoint with transformers' own layer as the oracle, strictly, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpLayer
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrRMSNorm, GlmOcrTextDecoderLayer
from typer.testing import CliRunner

from mmspec import MTPDrafter
from mmspec.checkpoints.glm_ocr_mtp import load_glm_ocr_mtp, save_glm_ocr_mtp
from mmspec.cli.app import app
from mmspec.training.unrolling import GrowingKeys
from tests.oracles.vlm import build, configs, prompts, run, tiny_mtp, tiny_vlm

START = "model.language_model.layers.{}."


def oracle(seed: int = 0) -> MtpLayer:
    """The head as transformers builds it for families whose heads it knows."""
    config = tiny_vlm("glm_ocr").config.get_text_config()
    torch.manual_seed(seed)
    layer = MtpLayer(config, GlmOcrTextDecoderLayer, GlmOcrRMSNorm, 0).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    return layer


def released(folder: Path, layer: MtpLayer, model: Any = None, **changes: Any) -> Path:
    """A checkpoint of the target with the tensors of ``layer`` under the names of the release."""
    model = model or tiny_vlm("glm_ocr")
    model.save_pretrained(folder)
    start = START.format(model.config.get_text_config().num_hidden_layers)
    own = {
        start + name.replace("mtp_block.", "").replace("post_norm", "shared_head.norm"): value.clone()
        for name, value in layer.state_dict().items()
    }
    own[start + "embed_tokens.weight"] = model.get_input_embeddings().weight.clone()
    own[start + "shared_head.head.weight"] = model.lm_head.weight.clone()
    save_file(load_file(folder / "model.safetensors") | own, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"num_nextn_predict_layers": 1, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_head_equals_that_of_transformers(tmp_path: Path) -> None:
    model, layer = tiny_vlm("glm_ocr"), oracle()
    head = load_glm_ocr_mtp(released(tmp_path, layer), target=model)
    generator = torch.Generator().manual_seed(1)
    embeddings, states = (torch.randn(1, 7, 64, generator=generator) for _ in range(2))
    positions = torch.randint(0, 30, (3, 1, 7), generator=generator)
    mask = torch.zeros(1, 1, 7, 7).masked_fill(~torch.ones(7, 7).bool().tril(), -torch.inf)

    class Placed:
        device = torch.device("cpu")

        def positions_at(self, slots: torch.Tensor) -> torch.Tensor:
            assert slots.tolist() == [list(range(7))]  # of the slots whose states are read
            return positions

    with torch.no_grad():
        rotary = model.model.language_model.rotary_emb(embeddings, positions)
        wanted = layer(embeddings, states, rotary, mask, None, None)
        ours = head(embeddings, states, head.rotary(torch.arange(1, 8)[None], None, Placed()), mask, GrowingKeys())  # type: ignore[arg-type]
    assert torch.allclose(head.norm(ours), wanted, atol=1e-5)
    assert (wanted - wanted.roll(1, dims=1)).abs().max() > 0.1


def test_it_drafts_for_its_target(tmp_path: Path) -> None:
    model, inputs = tiny_vlm("glm_ocr"), prompts("glm_ocr")
    head = load_glm_ocr_mtp(released(tmp_path, oracle()), target=model, tree="dynamic", num_nodes=12, branching=6)
    for temperature in (0.0, 1.0):
        plain, _ = run(model, inputs, None, temperature)
        tokens, stats = run(model, inputs, head, temperature)
        assert torch.equal(tokens, plain)
        assert stats.draft_forwards > 1
    with pytest.raises(ValueError, match="other weights"):
        head.check_target(build("glm_ocr", seed=5))


def test_it_comes_back(tmp_path: Path) -> None:
    model = tiny_vlm("glm_ocr")
    head = load_glm_ocr_mtp(released(tmp_path / "a", oracle()), target=model)
    save_glm_ocr_mtp(head, tmp_path / "b", 3)
    again = load_glm_ocr_mtp(tmp_path / "b", target=model)
    assert all(torch.equal(value, head.state_dict()[name]) for name, value in again.state_dict().items())
    assert dict(again.config) == dict(head.config)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(first[name], value) for name, value in second.items())
    with pytest.raises(ValueError, match="another build"):
        save_glm_ocr_mtp(tiny_mtp(model), tmp_path / "c", 3)


def test_the_command(tmp_path: Path) -> None:
    """The release has 16 layers, behind which transformers expects the head and leaves it out."""
    _, _, settings = configs("glm_ocr")
    text = {**settings["text_config"], "num_hidden_layers": 16}
    config = transformers.GlmOcrConfig(**{**settings, "text_config": text}, tie_word_embeddings=False)
    torch.manual_seed(2)
    model = transformers.GlmOcrForConditionalGeneration._from_config(config).eval()
    folder = released(tmp_path / "glm", oracle(), model)
    words = ["convert", "glm-ocr-mtp", str(folder), str(tmp_path / "head")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    head = MTPDrafter.from_pretrained(tmp_path / "head")
    head.check_target(model)
    wanted = load_glm_ocr_mtp(folder).state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in head.state_dict().items())
    for wrong in (words, ["convert", "glm-ocr-mtp", str(tmp_path / "nowhere"), str(tmp_path / "x")]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = released(tmp_path, oracle())
    tensors, start = load_file(folder / "model.safetensors"), START.format(3)

    def saved(**changes: Any) -> None:
        kept = {**tensors, **changes}
        save_file({name: value for name, value in kept.items() if value is not None}, folder / "model.safetensors")

    for changes, words in (
        ({start + "eh_proj.weight": None}, r"1 missing: eh_proj\.weight"),
        ({start + "self_attn.q_norm.weight": torch.ones(16)}, r"1 unexpected: layer\.self_attn\.q_norm\.weight"),
        ({start + "enorm.weight": torch.ones(8)}, r"enorm\.weight has shape \(8,\)"),
        ({start + "shared_head.head.weight": torch.ones(128, 64)}, "one of its own is not read"),
        ({name: None for name in tensors if name.startswith(start)}, "holds no tensor of an MTP head"),
    ):
        saved(**changes)
        with pytest.raises(ValueError, match=words):
            load_glm_ocr_mtp(folder, target=tiny_vlm("glm_ocr"))
    saved()
    with pytest.raises(ValueError, match=r"hidden size of 64, the target's is 32"):
        load_glm_ocr_mtp(folder, target=Narrow())


class Narrow:
    """A target of another width."""

    class config:  # noqa: N801 - as models name it
        hidden_size = 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_nextn_predict_layers": 0}, "has 0 MTP heads"),
        ({"num_nextn_predict_layers": None}, "has None MTP heads"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "lacks mrope_section"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}},
            "a part of",
        ),
    ],
)
def test_other_configurations_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_glm_ocr_mtp(released(tmp_path, oracle(), **changes))


def test_other_models_are_refused(tmp_path: Path) -> None:
    tiny_vlm("llava").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'llava' model"):
        load_glm_ocr_mtp(tmp_path)
