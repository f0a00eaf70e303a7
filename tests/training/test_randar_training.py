"""The any-order recipe: fresh orders, dropped classes, real steps that a kill does not change, and the export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import VQModel

from mmspec.pipelines.any_order import AnyOrderPipeline
from mmspec.training import randar
from mmspec.training.llamagen import load_drawings
from mmspec.training.randar_export import export
from tests.training.test_emoji_training import write_archive

NAMES = ("red-apple", "banana")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> randar.RandARConfig:
    folder = tmp_path_factory.mktemp("emoji")
    for package in ("noto", "twemoji", "fluent-emoji-flat"):
        write_archive(folder, package, '<circle cx="18" cy="18" r="14" fill="{}"/>')
    torch.manual_seed(0)
    VQModel(
        block_out_channels=(8, 8, 8), down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1, latent_channels=4, vq_embed_dim=4, num_vq_embeddings=12, norm_num_groups=4, sample_size=16,
        lookup_from_codebook=True,
    ).save_pretrained(folder / "vq")  # fmt: skip
    return randar.RandARConfig(
        data=folder, vq=folder / "vq", output=folder / "run", steps=4, batch_size=6, hidden_size=16, num_layers=1,
        num_heads=2, names=NAMES, warmup_steps=1, precision="fp32", log_every=1,
    )  # fmt: skip


def test_samples_have_orders_of_their_own_and_some_no_class(config: randar.RandARConfig) -> None:
    vq = VQModel.from_pretrained(config.vq)
    dataset = load_drawings(config.data, vq, tuple(randar.CLASSES), NAMES)
    batch = randar.draw_samples(replace(config, batch_size=60, dropped_classes=0.5), dataset, 0)
    assert torch.equal(batch.orders.sort(dim=1).values, torch.arange(16).expand(60, -1))
    assert len({tuple(order) for order in batch.orders.tolist()}) == 60
    raster = torch.empty_like(batch.tokens).scatter_(1, batch.orders, batch.tokens)
    known = {tuple(codes) for codes in dataset.codes.tolist()}
    assert {tuple(codes) for codes in raster.tolist()} <= known
    assert 10 < (batch.labels == 2).sum() < 50
    for wrong in ({"dropped_classes": 1.0}, {"names": ()}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replace(config, **wrong)


def test_a_killed_training_goes_on_and_is_exported(config: randar.RandARConfig, tmp_path: Path) -> None:
    randar.train(replace(config, steps=2))
    randar.train(replace(config, resume=True))
    losses = [entry["loss"] for entry in json.loads((config.output / "log.json").read_text())]
    assert len(losses) == 4
    saved = randar.saved_config(config.output, steps=4)
    assert replace(saved, minutes=None, log_every=1) == config
    folder = export(saved, tmp_path / "emoji-randar", "By eye: nothing.", {"order": "random"})
    card = (folder / "README.md").read_text()
    assert "By eye: nothing." in card
    assert str(tmp_path) not in card + (folder / "model_index.json").read_text()
    pipe = AnyOrderPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    call = {"class_labels": "red apple", "seed": 1, "output_type": "tokens"}
    assert torch.equal(pipe(**call).tokens, pipe(**call, speculate=False).tokens)
