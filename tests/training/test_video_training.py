"""The video recipes: procedural clips, motion errors, real steps that a kill does not change, and the export."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mmspec.pipelines.video import VideoPipeline
from mmspec.training import video_ar, video_clips, video_tokenizer
from mmspec.training.corruption import Corruption, corrupt
from mmspec.training.loop import step_generator
from mmspec.training.video_clips import ClipConfig, all_captions, load_clips, way
from mmspec.training.video_export import export
from mmspec.training.video_motion import centres
from tests.training.test_emoji_training import write_archive

NAMES = ("red-apple", "banana", "dog-face")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emoji")
    for package in ("noto", "twemoji", "fluent-emoji-flat"):
        write_archive(folder, package, '<circle cx="18" cy="18" r="14" fill="{}"/>')
    return folder


@pytest.fixture(autouse=True)
def _few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archives of the test hold a few drawings only, and one is enough to train on."""
    monkeypatch.setattr(video_clips.ClipConfig.__init__, "__defaults__", _defaults_with_names())


def _defaults_with_names() -> tuple:
    current = video_clips.ClipConfig.__init__.__defaults__
    return tuple(NAMES[:1] if value == video_clips.SPRITE_NAMES else value for value in current)


def test_clips_move_and_bounce(data: Path) -> None:
    clips = load_clips(ClipConfig(data=data, names=NAMES))
    listed = clips.clips.tolist()
    number = listed.index([0, 0, 4, 0, -2]) if [0, 0, 4, 0, -2] in listed else listed.index([0, 0, 12, 0, 2])
    places = clips.places(np.array([number]))[0]
    assert (places[:, 0] == 0).all()
    assert np.abs(np.diff(places[:, 1])).tolist() == [2] * 8
    assert places.min() >= 0
    assert places.max() <= 16
    frames = clips.render(np.array([number]))
    assert frames.shape == (1, 9, 32, 32, 3)
    for place, frame in zip(places, frames[0], strict=True):
        inside = frame[place[0] : place[0] + 16, place[1] : place[1] + 16]
        assert np.array_equal(inside, clips.sprites[0])
        assert (frame < 255).sum() == (inside < 255).sum()


def test_training_never_sees_held_out_clips(data: Path) -> None:
    clips = load_clips(ClipConfig(data=data, names=NAMES, held_out=0.1))
    assert not set(clips.trained) & set(clips.held_out)
    assert len(clips.trained) + len(clips.held_out) == len(clips.clips)
    assert len({tuple(clip) for clip in clips.clips.tolist()}) == len(clips.clips)
    assert not ((clips.clips[:, 3] != 0) & (clips.clips[:, 4] != 0)).any()
    assert ((c := load_clips(ClipConfig(data=data, names=NAMES, diagonal=True)).clips)[:, 3:] != 0).all(axis=1).any()
    assert len(c) > len(clips.clips)


def test_captions_say_the_motion(data: Path) -> None:
    clips = load_clips(ClipConfig(data=data, names=NAMES))
    legal = set(all_captions(NAMES))
    for clip in range(0, len(clips.clips), 7):
        _, _, _, down, right = clips.clips[clip]
        words = clips.caption(clip, random.Random(clip))
        assert words in legal
        assert way(int(down), int(right)) in words
    assert (way(-1, 0), way(1, 1), way(0, -1), way(0, 0)) == ("up", "down and right", "left", "")


@pytest.mark.parametrize(
    "wrong",
    [{"speed": 0}, {"sprite_size": 32}, {"style": "oil"}, {"names": ("none",)}, {"names": ()}, {"held_out": 1.0}],
)
def test_impossible_clips_are_refused(data: Path, wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ClipConfig(data=data, **{"names": NAMES, **wrong})


def test_centres_follow_the_sprite(data: Path) -> None:
    clips = load_clips(ClipConfig(data=data, names=NAMES))
    chosen = np.arange(0, len(clips.clips), 11)
    moved = centres(clips.render(chosen)) - clips.places(chosen)
    assert np.abs(moved - moved[:, :1]).max() < 1e-3
    white = np.full((1, 2, 32, 32, 3), 255, dtype=np.uint8)
    assert np.allclose(centres(white), 15.5)


def test_the_given_frame_is_never_corrupted() -> None:
    codes = torch.randint(7, (512, 24), generator=step_generator(1, 0))
    shares = Corruption(lost=1.0, suffix=0.0, scattered=0.0)
    changed = corrupt(codes, 3, 50, shares, step_generator(0, 0), frame_length=6)
    assert torch.equal(changed[:, :6], codes[:, :6])
    assert (changed[:, 6:] != codes[:, 6:]).float().mean() > 0.5
    copies = corrupt(codes, 3, 50, Corruption(suffix=0.0, scattered=1.0), step_generator(0, 1), frame_length=6)
    # a quarter is replaced, a quarter of that by the code one frame before: 0.196 equal it, against 1/7 by chance
    assert 0.18 < (copies[:, 6:] == codes[:, :-6]).float().mean() < 0.21


def test_stale_contexts_hold_codes_of_the_frame_before() -> None:
    codes = torch.randint(50, (512, 24), generator=step_generator(1, 0))
    shares = Corruption(suffix=0.0, scattered=0.0, stale=1.0)
    stale = corrupt(codes, 3, 50, shares, step_generator(0, 0), frame_length=6)
    changed = stale != codes
    before = torch.cat([codes[:, :6], codes[:, :-6]], dim=1)
    assert torch.equal(stale[changed], before[changed])
    assert changed[:, 6:9].float().mean() < 0.4 < 0.6 < changed[:, -3:].float().mean()
    with pytest.raises(ValueError, match="stale"):
        corrupt(codes, 3, 50, shares, step_generator(0, 0))


def tiny_tokenizer(data: Path, output: Path, **changes: object) -> video_tokenizer.VideoTokenizerConfig:
    config = video_tokenizer.VideoTokenizerConfig(
        output=output, data=data, steps=4, batch_size=2, channels=(8, 8, 8), latent_channels=4, levels=(3, 3), num_frames=5,
        warmup_steps=1, precision="fp32", log_every=1,
    )  # fmt: skip
    return replace(config, **changes)


@pytest.fixture(scope="module")
def tokenizer_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> video_tokenizer.VideoTokenizerConfig:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video_clips.ClipConfig.__init__, "__defaults__", _defaults_with_names())
        config = tiny_tokenizer(data, tmp_path_factory.mktemp("tokenizer"))
        video_tokenizer.train(config)
    return config


def tiny_ar(run: video_tokenizer.VideoTokenizerConfig, output: Path, **changes: object) -> video_ar.VideoARConfig:
    config = video_ar.VideoARConfig(
        output=output, data=run.data, tokenizer=run.output / "tokenizer", steps=4, batch_size=2, hidden_size=32,
        num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32, context_length=20, text_size=16, text_vocab_size=300,
        warmup_steps=1, precision="fp32", log_every=1,
    )  # fmt: skip
    return replace(config, **changes)


def test_a_killed_tokenizer_run_goes_on_where_it_was(data: Path, tmp_path: Path, tokenizer_run) -> None:
    config = tiny_tokenizer(data, tmp_path, steps=2)
    video_tokenizer.train(config)
    video_tokenizer.train(replace(config, steps=4, resume=True))
    whole = [
        load_file(folder / "tokenizer" / "diffusion_pytorch_model.safetensors")
        for folder in (tmp_path, tokenizer_run.output)
    ]
    losses = [
        [entry["loss"] for entry in json.loads((f / "log.json").read_text())] for f in (tmp_path, tokenizer_run.output)
    ]
    assert losses[0][:1] == losses[1][:1]
    assert whole[0].keys() == whole[1].keys()


def test_the_decoder_alone_leaves_the_codes(data: Path, tmp_path: Path, tokenizer_run) -> None:
    config = tiny_tokenizer(data, tmp_path, decoder_only=True, start_from=tokenizer_run.output)
    video_tokenizer.train(config)
    before, after = (video_tokenizer.load_checkpoint(c)[0] for c in (tokenizer_run, config))
    for name, tensor in before.state_dict().items():
        if name.startswith(("encoder", "quant_conv")):
            assert torch.equal(tensor, after.state_dict()[name]), name
    assert any(not torch.equal(t, after.state_dict()[n]) for n, t in before.state_dict().items())
    with pytest.raises(ValueError, match="start_from"):
        tiny_tokenizer(data, tmp_path, decoder_only=True)


def test_a_trained_model_is_exported_and_makes_clips(tokenizer_run, tmp_path: Path) -> None:
    config = tiny_ar(tokenizer_run, tmp_path / "run")
    video_ar.train(replace(config, steps=2))
    video_ar.train(replace(config, resume=True))
    losses = [entry["loss"] for entry in json.loads((config.output / "log.json").read_text())]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    report = json.loads((config.output / "report.json").read_text())
    assert 0 <= report["accuracy"] <= 1
    saved = video_ar.saved_config(config.output, steps=4)
    assert replace(saved, minutes=None, log_every=1) == config
    folder = export(
        saved,
        [video_tokenizer.saved_config(tokenizer_run.output)],
        tmp_path / "tiny-video",
        "By eye: nothing yet.",
        2,
        {"top_p": 1.0, "fps": 8.0},
    )
    card = (folder / "README.md").read_text()
    assert "procedural" in card
    assert "By eye: nothing yet." in card
    assert str(tmp_path) not in card + (folder / "model_index.json").read_text()
    assert "Apache License" in (folder / "NOTICE").read_text()
    samples = json.loads((folder / "samples.json").read_text())
    pipe = VideoPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    call = {
        "image": str(folder / samples[0]["image"]),
        "prompt": samples[0]["prompt"],
        "seed": 1,
        "output_type": "tokens",
    }
    assert torch.equal(pipe(**call).tokens, pipe(**call, speculate=False).tokens)
    _go_on_from(folder, config, tmp_path / "second")


def _go_on_from(folder: Path, config: video_ar.VideoARConfig, output: Path) -> None:
    """Train from the exported model, and write the result in its place."""
    second = replace(config, output=output, start_from=folder, steps=1, tokenizer=folder / "video_tokenizer")
    output.mkdir()
    shutil.copy(config.output / "codes.safetensors", output)
    before = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    video_ar.train(second)
    export(video_ar.saved_config(output, steps=1), [], folder, "", 2, {"top_p": 1.0, "fps": 8.0})
    after = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all((tensor - after[name]).abs().max() < 0.1 for name, tensor in before.items())
    stages = json.loads((folder / "training.json").read_text())["stages"]
    assert [stage["recipe"] for stage in stages] == ["video-tokenizer", "video-ar", "video-ar"]
    assert all(stage["command"] in (folder / "README.md").read_text() for stage in stages)
    with pytest.raises(ValueError, match="not both"):
        export(second, [tiny_tokenizer(config.data, output)], folder)


@pytest.mark.parametrize("wrong", [{"num_heads": 3}, {"text_size": 20}, {"dropped_captions": 1.0}])
def test_impossible_decoders_are_refused(tokenizer_run, tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ValueError):
        tiny_ar(tokenizer_run, tmp_path, **wrong)


def test_clips_of_other_lengths_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_frames"):
        tiny_tokenizer(data, tmp_path, num_frames=6)
