"""``mmspec video`` and ``mmspec bench video``: files, sources, and errors before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmspec.image.video_files import read_frames
from tests.oracles.saved_video import save_tiny_video
from tests.oracles.video import noise_clip


@pytest.fixture(scope="module")
def tiny_video(tmp_path_factory):
    return str(save_tiny_video(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def ball(tmp_path):
    path = tmp_path / "ball.png"
    Image.fromarray(noise_clip(1)[0]).save(path)
    return path


def written(result):
    return [Path(line) for line in result.stdout.splitlines() if line.endswith((".gif", ".mp4"))]


def test_a_picture_becomes_a_clip(mmspec, tiny_video, ball):
    result = mmspec("video", ball, "--model", tiny_video, "--prompt", "a cat", "--seed", 3)
    assert result.exit_code == 0, result.stderr
    [path] = written(result)
    assert path == Path("outputs/ball-0001.gif")
    assert read_frames(path).shape == (7, 12, 16, 3)
    assert result.stdout.splitlines()[-1].startswith("jacobi+coupled [SAME_TOKENS]: 36 tokens")
    [plain] = written(
        mmspec("video", ball, "--model", tiny_video, "--prompt", "a cat", "--seed", 3, "--plain", "-o", "p")
    )
    assert np.array_equal(read_frames(path), read_frames(plain))


def test_the_checkpoints_own_samples(mmspec, tiny_video):
    result = mmspec("video", "--model", tiny_video, "--num-videos", 2, "--num-frames", 3, "-o", "all")
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in written(result)] == ["0-0001.gif", "0-0002.gif", "1-0003.gif", "1-0004.gif"]


def test_a_clip_goes_on_as_mp4(mmspec, tiny_video, ball):
    pytest.importorskip("imageio_ffmpeg")
    assert mmspec("video", ball, "--model", tiny_video, "-o", "first.mp4").exit_code == 0
    result = mmspec("video", "first.mp4", "--model", tiny_video, "--context-frames", 3, "-o", "next.mp4", "--fps", 4)
    assert result.exit_code == 0, result.stderr
    assert len(read_frames("next.mp4")) == 7


def test_wrong_calls(mmspec, tiny_video, ball):
    for words, message in [
        (("none.png",), "does not exist"),
        ((ball, ball, "-o", "one.gif"), "name a folder"),
        ((ball, "-o", "clip.avi"), ".mp4 or .gif"),
        ((ball, "--format", "avi"), "mp4 or gif"),
        ((ball, "--plain", "--drafter", "jacobi"), "without speculation"),
        ((ball, ball, "--prompt", "a", "--prompt", "b", "--prompt", "c"), "one, or one each"),
        ((ball, "--num-frames", 4), "legal"),
    ]:
        result = mmspec("video", *words, "--model", tiny_video)
        assert result.exit_code == 2, words
        assert message in " ".join(result.stderr.split()), result.stderr
    assert mmspec("video", ball, "--model", tiny_video, "-o", "a.gif").exit_code == 0
    result = mmspec("video", ball, "--model", tiny_video, "-o", "a.gif")
    assert (result.exit_code, "--overwrite" in result.stderr) == (2, True)
    assert mmspec("video", ball, "--model", tiny_video, "-o", "a.gif", "--overwrite").exit_code == 0


def test_bench(mmspec, tiny_video, ball):
    result = mmspec(
        "bench", "video", "--model", tiny_video, "--quick", "--items", 1, "--source", ball, "--json", "b.json"
    )
    assert result.exit_code == 0, result.stderr
    report = json.loads(Path("b.json").read_text())
    assert [method["name"] for method in report["methods"]] == [
        "plain",
        "default",
        "start-copy-frame",
        "start-uniform",
    ]
