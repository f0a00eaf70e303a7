"""Questions about videos: frames and their times reach the model, whatever form they come in; others are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmspec import NGramDrafter, VisionLanguagePipeline
from mmspec.image.video_files import encode_gif, read_fps
from mmspec.training.vlm_tokenizer import SPECIALS, character_tokenizer, picture_processor
from mmspec.vlm.clips import Clip, is_clip
from tests.oracles.vlm import build, reading_model, run, tiny_block

BUDGET, WIDTH, HEIGHT = 10, 28, 56


class ClipProcessor:
    """As the processor of Qwen2.5-VL, whose own one needs torchvision: a pair of frames is a grid of 4 x 2 patches."""

    image_token, video_token, chat_template = "<image>", "~", None

    def __init__(self) -> None:
        self.tokenizer, self.video_processor = character_tokenizer(), object()

    def __call__(self, text: list[str], return_tensors: str, **given: Any) -> dict[str, Any]:
        [prompt], made = text, {}
        if videos := given.get("videos"):
            assert given["do_sample_frames"] is False
            assert all(frames.shape[1:] == (HEIGHT, WIDTH, 3) for frames in videos)
            made["pixel_values_videos"] = torch.cat([patches(frames) for frames in videos])
            made["video_grid_thw"] = torch.tensor([[len(frames) // 2, 4, 2] for frames in videos])
            sampled = [len(facts["frames_indices"]) / facts["total_num_frames"] * facts["fps"]
                       for facts in given["video_metadata"]]  # fmt: skip
            made["second_per_grid_ts"] = torch.tensor([2 / fps for fps in sampled])
            counts = iter(len(frames) for frames in videos)
            prompt = "".join("~" * next(counts) if piece == "~" else piece for piece in prompt)
        ids = torch.tensor([self.tokenizer.encode(prompt, add_special_tokens=False)])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **made}


def patches(frames: np.ndarray) -> Tensor:
    """Pixels (F / 2 * 4 * 2, 1176) of frames (F, 56, 28, 3)."""
    values = torch.from_numpy(frames).float().div(127.5).sub(1)
    cut = values.unflatten(0, (-1, 2)).unflatten(2, (4, 14)).unflatten(4, (2, 14))  # (T, 2, 4, 14, 2, 14, 3)
    return cut.permute(0, 2, 4, 6, 1, 3, 5).flatten(3).flatten(0, 2)


@pytest.fixture(scope="module")
def model() -> Any:
    model = build("qwen2_5_vl")
    model.config.image_token_id = SPECIALS.index("<image>")
    model.config.video_token_id = character_tokenizer().convert_tokens_to_ids("~")
    return model


@pytest.fixture
def pipe(model: Any) -> VisionLanguagePipeline:
    pipe = VisionLanguagePipeline(model, ClipProcessor(), NGramDrafter())  # type: ignore[arg-type]
    pipe.set_progress_bar_config(disable=True)
    return pipe


def clip(count: int = 4, seed: int = 0) -> np.ndarray:
    """Frames of plain colours, which GIF keeps."""
    shades = np.random.default_rng(seed).integers(0, 256, (count, 1, 1, 3), dtype=np.uint8)
    return np.broadcast_to(shades, (count, HEIGHT, WIDTH, 3)).copy()


def ask(pipe: VisionLanguagePipeline, prompt: Any, videos: Any, **more: Any) -> list[list[int]]:
    return pipe(prompt, videos=videos, max_new_tokens=BUDGET, output_type="tokens", **more).tokens


def test_a_video_reaches_the_model(pipe: VisionLanguagePipeline, model: Any) -> None:
    inputs = ClipProcessor()(
        ["~what?"], "pt", videos=[clip()], do_sample_frames=False,
        video_metadata=[{"frames_indices": [0, 1, 2, 3], "total_num_frames": 4, "fps": 24.0}],
    )  # fmt: skip
    wanted, _ = run(model, [inputs], budget=BUDGET)
    assert ask(pipe, "what?", clip()) == wanted.tolist()
    assert ask(pipe, "wh~at?", clip()) != wanted.tolist()
    assert ask(pipe, "what?", clip(seed=1)) != wanted.tolist()
    for drafter in (None, tiny_block(model, num_nodes=7, branching=3)):
        pipe.drafter = drafter
        assert ask(pipe, "what?", clip()) == wanted.tolist()


def test_any_form_of_a_video(pipe: VisionLanguagePipeline, tmp_path: Path) -> None:
    frames = clip()
    pictures = [Image.fromarray(frame) for frame in frames]
    path = tmp_path / "clip.gif"
    path.write_bytes(encode_gif(pictures, 10))
    wanted = ask(pipe, "what?", frames, video_fps=10)
    tensor = torch.from_numpy(frames).movedim(-1, 1) / 255
    for form in (pictures, list(frames), [frames], tensor):
        assert ask(pipe, "what?", form, video_fps=10) == wanted
    for file in (path, str(path), [path]):  # which says how fast it is
        assert ask(pipe, "what?", file) == wanted
    assert read_fps(path) == 10
    assert read_fps(frames) is None


def test_rows_of_a_batch_have_their_own_videos(pipe: VisionLanguagePipeline) -> None:
    videos = [clip(), [clip(2, 1), clip(4, 2)], []]
    together = ask(pipe, ["what?", "~ or ~?", "hello"], videos)
    alone = [ask(pipe, "what?", clip()), ask(pipe, "~ or ~?", [clip(2, 1), clip(4, 2)]), ask(pipe, "hello", None)]
    assert together == [rows[0] for rows in alone]


def test_long_videos_are_thinned_evenly(pipe: VisionLanguagePipeline) -> None:
    long = clip(31)
    chosen = [0, 10, 20, 30]
    thinned = Clip.thinned(long, 5.0, 4)
    assert thinned.places == tuple(chosen)
    assert np.array_equal(thinned.frames, long[chosen])
    assert thinned.metadata["duration"] == pytest.approx(6.2)
    assert Clip.thinned(long, 5.0, 99).places == tuple(range(31))
    # 4 of 31 frames at 31 a second are 4 a second
    assert ask(pipe, "what?", long, num_frames=4, video_fps=31) == ask(pipe, "what?", long[chosen], video_fps=4)
    assert ask(pipe, "what?", long[chosen], video_fps=0.1) != ask(pipe, "what?", long[chosen], video_fps=4)


def test_messages_with_videos(pipe: VisionLanguagePipeline) -> None:
    pipe.processor.chat_template = "there is one"
    pipe.processor.apply_chat_template = lambda messages, **_: "".join(
        "~" if part["type"] == "video" else part["text"] for message in messages for part in message["content"]
    )
    wanted = ask(pipe, "what?", clip())
    own = [{"role": "user", "content": [{"type": "video", "video": clip()}, {"type": "text", "text": "what?"}]}]
    bare = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "what?"}]}]
    for talk, videos in ((own, None), (bare, clip())):
        assert ask(pipe, None, videos, messages=talk) == wanted
    with pytest.raises(ValueError, match="more videos than the 0"):
        ask(pipe, None, None, messages=bare)
    with pytest.raises(ValueError, match="`videos` has 1 videos, 1 more"):
        ask(pipe, None, clip(), messages=own)


def test_which_lists_are_one_video() -> None:
    frame = clip()[0]
    for one in ([Image.fromarray(frame)], [frame, frame], clip(), "clip.mp4", torch.zeros(4, 3, 8, 8)):
        assert is_clip(one)
    for several in (["clip.mp4"], [clip()], [[Image.fromarray(frame)]], []):
        assert not is_clip(several)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "file": ({"videos": "nowhere.mp4"}, FileNotFoundError, "no video"),
    "kind": ({"videos": 3}, TypeError, "clip must be"),
    "sizes": ({"videos": [Image.new("RGB", (8, 8)), Image.new("RGB", (8, 9))]}, ValueError, "one size"),
    "no frames": ({"videos": np.zeros((0, 8, 8, 3), dtype=np.uint8)}, ValueError, "at least one frame"),
    "frames": ({"videos": clip(), "num_frames": 0}, ValueError, "num_frames"),
    "rate": ({"videos": clip(), "video_fps": 0}, ValueError, "video_fps"),
    "named twice": ({"prompt": "~ and ~", "videos": clip()}, ValueError, "names 2 videos"),
    "touching": ({"prompt": "~~?", "videos": [clip(), clip(2)]}, ValueError, "a token must stand between"),
    "not given": ({"prompt": "~?"}, ValueError, "names 1 videos.*but 0"),
    "one for two": ({"prompt": ["a", "b"], "videos": clip()}, ValueError, "2 prompts, but one video"),
    "three for two": ({"prompt": ["a", "b"], "videos": [clip()] * 3}, ValueError, "`videos` has 3 entries"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_videos_are_named(pipe: VisionLanguagePipeline, name: str) -> None:
    changes, error, words = BAD[name]
    with pytest.raises(error, match=words):
        pipe(**{"prompt": "what?", "max_new_tokens": BUDGET, **changes})


def test_a_model_without_videos_says_so() -> None:
    pipe = VisionLanguagePipeline(reading_model(), picture_processor())
    with pytest.raises(ValueError, match=r"LlavaProcessor reads no videos; give their frames as `images`"):
        pipe("what?", videos=clip())
    buffer = io.BytesIO(encode_gif([Image.fromarray(frame) for frame in clip()], 10))
    with pytest.raises(ValueError, match="animated"):
        pipe("what?", images=buffer.getvalue())
