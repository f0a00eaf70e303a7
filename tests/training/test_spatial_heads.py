"""The recipe of spatial heads: states that the codes were drawn from, offsets, and steps that a kill does not change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from mmspec.cli.app import app
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams, draw_token
from mmspec.drafters.spatial import FOLDER, SpatialDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.training import spatial
from mmspec.training.image_drafter import guided_logits
from mmspec.training.pictures import Pictures, Subject, sample_pictures
from mmspec.training.spatial import Pool, SpatialHeadsConfig, build, losses, read_pool, train
from tests.oracles.tiny import few_codes_pipeline, tiny_transformer

CAPTIONS = ["a cat", "a dog", "the moon", "a very old house"]
ROW, CODES = 5, 15


@pytest.fixture(scope="module")
def pipe() -> LlamaGenPipeline:
    made = few_codes_pipeline()
    made.transformer.requires_grad_(False)
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target") / "tiny"
    few_codes_pipeline().save_pretrained(folder)
    (folder / "prompts.json").write_text(json.dumps(["a red apple", "old tree"]))
    (folder / "captions.txt").write_text("\n".join(CAPTIONS))
    return folder


def settings(checkpoint: Path, output: Path, **changes: Any) -> SpatialHeadsConfig:
    config = SpatialHeadsConfig(
        output=output, target=str(checkpoint), prompts=checkpoint / "captions.txt", num_pictures=8, steps=6,
        batch_size=4, pool_size=6, pool_steps=4, warmup_steps=2, precision="fp32", log_every=1,
        horizontal=2, vertical=1,
    )  # fmt: skip
    return replace(config, **changes)


def drawn(pipe: LlamaGenPipeline, folder: Path) -> Pictures:
    subjects = [Subject(caption) for caption in CAPTIONS] + [Subject(label=2), Subject(label=0)]
    return sample_pictures(pipe, subjects, folder, seed=1)


@torch.no_grad()
def test_the_states_of_a_pool_are_those_that_the_codes_were_drawn_from(
    pipe: LlamaGenPipeline, checkpoint: Path, tmp_path: Path
) -> None:
    """Captions and classes, both branches: with the pictures' own noise every code is drawn again from its state."""
    pictures = drawn(pipe, tmp_path)
    pool = read_pool(settings(checkpoint, tmp_path), pipe, pictures, number=0)
    assert pool.states.shape == (6, 2, CODES, pipe.transformer.config.hidden_size)
    seed_of = {tuple(codes): int(seed) for codes, seed in zip(pictures.codes.tolist(), pictures.seeds, strict=True)}
    sampling = SamplingParams(pipe.config.temperature, pipe.config.top_k, pipe.config.top_p)
    rows = pool.states.transpose(0, 1).flatten(0, 1)
    logits = guided_logits(pipe.transformer, rows, 2, Guidance(pipe.config.guidance_scale))
    for row, codes in enumerate(pool.codes):
        seeds = torch.tensor([seed_of[tuple(codes.tolist())]])
        noise = RowNoise(seeds, logits.shape[-1]).target(torch.zeros(1, dtype=torch.long), CODES, 0, 0)
        assert torch.equal(draw_token(logits[row : row + 1], sampling, noise)[0], codes)


class Oracle(nn.Module):
    """Looks up the pair that it is given and answers with the state ``offset`` places further."""

    def __init__(self, pool: Pool, offset: int) -> None:
        super().__init__()
        self.states, self.offset = pool.states, offset

    def forward(self, pairs: Tensor) -> Tensor:
        size = self.states.shape[-1]
        place = torch.cdist(pairs[..., :size], self.states).argmin(-1)  # (B, G, n)
        return self.states.gather(2, (place + self.offset)[..., None].expand(-1, -1, -1, size))


def test_each_head_learns_the_state_at_its_offset(pipe: LlamaGenPipeline, checkpoint: Path, tmp_path: Path) -> None:
    config = settings(checkpoint, tmp_path, token_weight=0.0)
    pool = read_pool(config, pipe, drawn(pipe, tmp_path), number=0)
    drafter = build(config, pipe)
    assert drafter.offsets == [1, 2, ROW]
    drafter.horizontal_heads = nn.ModuleList([Oracle(pool, 1), Oracle(pool, 2)])
    drafter.vertical_heads = nn.ModuleList([Oracle(pool, ROW)])
    rows = torch.arange(6)
    loss, numbers = losses(drafter, pipe, pool, rows, config, torch.Generator().manual_seed(0))
    assert loss.item() < 1e-10
    assert numbers == {"agree_1": 1.0, "agree_2": 1.0, f"agree_{ROW}": 1.0}
    drafter.vertical_heads = nn.ModuleList([Oracle(pool, ROW - 1)])  # negative control
    loss, numbers = losses(drafter, pipe, pool, rows, config, torch.Generator().manual_seed(0))
    assert loss.item() > 0.01


def test_heads_learn(pipe: LlamaGenPipeline, checkpoint: Path, tmp_path: Path) -> None:
    config = settings(checkpoint, tmp_path)
    pool, drafter = read_pool(config, pipe, drawn(pipe, tmp_path), number=0), build(config, pipe)
    optimizer, history = torch.optim.Adam(drafter.parameters(), lr=1e-2), []
    for _ in range(60):
        loss, _ = losses(drafter, pipe, pool, torch.arange(6), config, torch.Generator().manual_seed(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert history[-1] < 0.6 * history[0]


def test_a_killed_run_ends_with_the_weights_of_a_whole_one(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the second pool; other seeds, the negative control, give other weights."""
    monkeypatch.setattr(spatial, "compare", lambda *_: {})
    whole = SpatialDrafter.from_pretrained(train(settings(checkpoint, tmp_path / "whole")))
    steps = iter(range(100))

    def killed(*arguments: Any) -> Any:
        if next(steps) == 5:
            raise RuntimeError("killed")
        return losses(*arguments)

    config = settings(checkpoint, tmp_path / "parts", checkpoint_minutes=1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(spatial, "losses", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(config)
    parts = SpatialDrafter.from_pretrained(train(replace(config, resume=True)))
    other = SpatialDrafter.from_pretrained(train(settings(checkpoint, tmp_path / "other", seed=1)))
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, parts.state_dict()[name]), name
    assert any(not torch.equal(w, other.state_dict()[name]) for name, w in whole.state_dict().items())


def test_the_command_writes_heads_that_the_image_command_reads(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    words = [
        "train", "spatial-heads", "--target", checkpoint, "--prompts", checkpoint / "captions.txt", "--output", output,
        "--steps", 2, "--batch-size", 2, "--device", "cpu", "--set", "num_pictures=4", "--set", "precision=fp32",
        "--set", "horizontal=1", "--set", "vertical=1",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    report = json.loads((output / "report.json").read_text())
    assert set(report["forwards"]) == {"spatial", "copy-left", "copy-up", "law", "mix", "uniform"}
    assert all(2 <= forwards <= 2 * CODES for row in report["forwards"].values() for forwards in row.values())
    pipe = LlamaGenPipeline.from_pretrained(checkpoint, drafter=SpatialDrafter.from_pretrained(output / FOLDER))
    pipe.set_progress_bar_config(disable=True)
    outputs = [pipe("a cat", seed=1, output_type="tokens", speculate=on) for on in (True, False)]
    assert torch.equal(outputs[0].tokens, outputs[1].tokens)
    assert outputs[0].stats.method == "spatial+coupled"
    words = [
        "image",
        "a cat",
        "--model",
        checkpoint,
        "--drafter",
        "spatial",
        "--set",
        f"drafter.weights={output / FOLDER}",
    ]
    result = CliRunner().invoke(app, [str(word) for word in [*words, "--out", tmp_path / "cat.png"]])
    assert result.exit_code == 0, result.stderr
    assert "spatial+coupled [SAME_TOKENS]" in result.stdout


def test_heads_of_another_training_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    other = few_codes_pipeline(transformer=tiny_transformer(seed=1, vocab_size=5))
    other.drafter = build(settings(checkpoint, tmp_path), few_codes_pipeline())
    with pytest.raises(ValueError, match="other weights"):
        other("a cat", seed=1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"num_pictures": 0}, "num_pictures"), ({"pool_size": 0}, "pool_size"), ({"token_weight": -1.0}, "-1")],
)
def test_bad_settings(checkpoint: Path, tmp_path: Path, changes: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        settings(checkpoint, tmp_path, **changes)


def test_captions_that_there_are_not(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="no captions"):
        train(settings(checkpoint, tmp_path, prompts=tmp_path / "none.txt"))
