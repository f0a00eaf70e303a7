"""The embedded video checkpoint: complete, small, exact, and its card says what it is."""

from __future__ import annotations

import json

import pytest
import torch

from mmspec.bench.video import read_samples
from mmspec.models.loading import EMBEDDED
from mmspec.pipelines.video import VideoPipeline

FOLDER = EMBEDDED / "tiny-video"


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    loaded = VideoPipeline.from_pretrained("mmspec/tiny-video")
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_it_is_small_and_its_card_is_honest() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 12 << 20
    card = (FOLDER / "README.md").read_text()
    assert "procedural" in card
    assert "Apache License" in (FOLDER / "NOTICE").read_text()
    measured = json.loads((FOLDER / "training.json").read_text())["motion"]
    assert f"{measured['motion_error']:.2f} pixels" in card
    assert measured["motion_error"] < measured["still_error"]


def test_the_recommended_method_is_exact_and_saves_forwards(pipe: VideoPipeline) -> None:
    sources, prompts = zip(*read_samples(FOLDER)[:4], strict=True)
    call = {"image": [str(path) for path in sources], "prompt": list(prompts), "seed": 3, "output_type": "tokens"}
    fast, plain = pipe(**call), pipe(**call, speculate=False)
    assert torch.equal(fast.tokens, plain.tokens)
    assert plain.stats.forwards > 6 * fast.stats.forwards  # four rows: the slowest one counts


def test_a_moving_sprite_moves(pipe: VideoPipeline) -> None:
    """Of the samples that go up or down, most have moved that way at the last frame."""
    from mmspec.training.video_motion import centres

    moving = [(path, text) for path, text in read_samples(FOLDER) if text and text.endswith(("up", "down"))]
    output = pipe(image=[str(p) for p, _ in moving], prompt=[t for _, t in moving], seed=0, output_type="np")
    rows = centres((output.frames * 255).round().astype("uint8"))[..., 0]
    first_step = rows[:, 2] - rows[:, 0]  # before any bounce
    right = [(step < 0) == text.endswith("up") for step, (_, text) in zip(first_step, moving, strict=True)]
    assert sum(right) > len(right) / 2
