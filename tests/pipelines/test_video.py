"""The video pipeline over tiny random networks: exactness, streaming, lengths, inputs and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.drafters.initializers import FRAME_INITIALIZERS
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.video import VideoPipeline
from tests.oracles.video import noise_clip, tiny_video_pipeline, tiny_video_tokenizer

CLIP = noise_clip()
BATCH = [noise_clip(5, seed) for seed in range(3)]
SEEDS = [5, 2, 9]


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    return tiny_video_pipeline()


@pytest.fixture(scope="module")
def by_text() -> VideoPipeline:
    return tiny_video_pipeline(by_text=True)


@pytest.fixture(autouse=True)
def _plain_parts(pipe: VideoPipeline, by_text: VideoPipeline) -> None:
    for each in (pipe, by_text):
        each.drafter = each.acceptance = None


def tokens(pipe: VideoPipeline, **arguments: Any) -> torch.Tensor:
    return pipe(**{"video": BATCH, "seed": SEEDS, "output_type": "tokens", **arguments}).tokens


@pytest.mark.parametrize("arguments", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}])
def test_batches_equal_plain_decoding(pipe: VideoPipeline, arguments: dict[str, Any]) -> None:
    plain = tokens(pipe, speculate=False, **arguments)
    for initializer in (*FRAME_INITIALIZERS, "mix", "uniform"):
        for window, within_frame in ((3, False), (13, False), (13, True)):
            pipe.drafter = JacobiDrafter(
                window=window, initializer=initializer, within_frame=within_frame, controller="fixed"
            )
            assert torch.equal(tokens(pipe, **arguments), plain)


@pytest.mark.parametrize(
    "drafter", [JacobiDrafter(window=256, controller="adaptive"), JacobiDrafter(window=16), NGramDrafter()]
)
def test_other_drafters_equal_plain_decoding(pipe: VideoPipeline, drafter: Any) -> None:
    plain = tokens(pipe, speculate=False)
    pipe.drafter = drafter
    assert torch.equal(tokens(pipe), plain)


@pytest.mark.parametrize(("initializer", "coupling"), [*zip(FRAME_INITIALIZERS, COUPLINGS, strict=True)])
def test_rows_equal_solo(pipe: VideoPipeline, initializer: str, coupling: str) -> None:
    for within_frame, rule in ((False, None), (True, RatioAcceptance())):
        pipe.drafter = JacobiDrafter(9, coupling, initializer, controller="fixed", within_frame=within_frame)
        pipe.acceptance = rule
        together = tokens(pipe)
        for row, clip in enumerate(BATCH):
            assert torch.equal(tokens(pipe, video=clip, seed=SEEDS[row])[0], together[row])


def test_prompts_and_guidance_equal_plain_decoding(by_text: VideoPipeline) -> None:
    prompts = ["a cat", "a very old red house", "blue moon"]
    seen = []
    for arguments in ({"prompt": prompts}, {"prompt": prompts, "guidance_scale": 2.5}, {"prompt": None}):
        plain = tokens(by_text, speculate=False, **arguments)
        by_text.drafter = JacobiDrafter(window=13, initializer="copy-frame", controller="fixed")
        assert torch.equal(tokens(by_text, **arguments), plain)
        row = {**arguments, "prompt": None if arguments["prompt"] is None else prompts[1]}
        assert torch.equal(tokens(by_text, video=BATCH[1], seed=SEEDS[1], **row)[0], plain[1])
        by_text.drafter = None
        seen.append(plain)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_the_context_is_kept_and_read(pipe: VideoPipeline) -> None:
    codes = pipe.video_tokenizer.encode(torch.from_numpy(CLIP[-3:] / 127.5 - 1).float().permute(3, 0, 1, 2)[None])
    made = tokens(pipe, video=CLIP, seed=1)
    assert torch.equal(made[0, :24], codes.flatten())  # two latent frames by default, of the last three frames
    assert torch.equal(tokens(pipe, video=CLIP[-3:], seed=1), made)
    one = tokens(pipe, video=CLIP, seed=1, context_frames=1)
    assert torch.equal(one, tokens(pipe, video=None, image=CLIP[-1], seed=1))
    assert torch.equal(one, tokens(pipe, video=CLIP[-1:], seed=1))
    assert not torch.equal(one[0, 12:], made[0, 12:])


@pytest.mark.parametrize("arguments", [{}, {"num_frames": 5}, {"num_frames": 13, "extend": True}])
def test_streamed_frames_equal_the_whole(pipe: VideoPipeline, arguments: dict[str, Any]) -> None:
    pipe.drafter = JacobiDrafter(window=9, initializer="copy-frame", controller="fixed")
    call = {"video": BATCH[:2], "seed": SEEDS[:2], **arguments}
    whole = pipe(**call)
    frames: list[list[Image.Image]] = [[], []]
    parts = list(pipe.stream(**call))
    for part in parts:
        for row, new in enumerate(part.new_frames):
            frames[row] += new
        assert part.num_frames == [len(row) for row in frames]
    assert len(parts) >= 2
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
    assert torch.equal(parts[-1].output.tokens, whole.tokens)
    for mine, theirs in zip(frames, whole.frames, strict=True):
        assert len(mine) == len(theirs)
        worst = max(int(np.abs(np.asarray(a, int) - np.asarray(b)).max()) for a, b in zip(mine, theirs, strict=True))
        assert worst <= 1  # a prefix decodes to the head of the clip up to rounding


def test_extension_slides_over_the_clip(pipe: VideoPipeline) -> None:
    with pytest.warns(UserWarning, match="Outside training"):
        long = tiny_video_pipeline()(video=CLIP, seed=3, num_frames=13, extend=True, speculate=False)
    assert (long.extended, len(long.frames[0]), long.tokens.shape) == (True, 13, (1, 7 * 12))
    assert torch.equal(long.tokens[:, : 4 * 12], tokens(pipe, video=CLIP, seed=3))
    assert long.stats.rows[0].tokens == 5 * 12
    assert long.stats.seeds == [3]
    pipe.drafter = JacobiDrafter(window=9, initializer="law-frame", controller="fixed")
    fast = pipe(video=CLIP, seed=3, num_frames=13, extend=True)
    assert torch.equal(fast.tokens, long.tokens)
    assert fast.stats.forwards < long.stats.forwards


def test_frame_counts(pipe: VideoPipeline) -> None:
    for count in (5, 7):
        assert len(pipe(video=CLIP, seed=1, num_frames=count).frames[0]) == count
    assert len(pipe(image=CLIP[0], seed=1, num_frames=3).frames[0]) == 3
    for wrong, message in ((1, "legal"), (3, "5, 7"), (6, "5, 7"), (9, "extend=True"), (10, "extend=True")):
        with pytest.raises(ValueError, match=message):
            pipe(video=CLIP, seed=1, num_frames=wrong)
    with pytest.raises(ValueError, match="legal"):
        pipe(video=CLIP, seed=1, num_frames=10, extend=True)
    for wrong in (2, 5, 7):
        with pytest.raises(ValueError, match="context_frames"):
            pipe(video=CLIP, seed=1, context_frames=wrong)
    with pytest.raises(ValueError, match="one frame"):
        pipe(image=CLIP[0], seed=1, context_frames=3)


def test_output_types(pipe: VideoPipeline) -> None:
    call = {"video": BATCH[:2], "seed": SEEDS[:2]}
    pil, array, tensor = (pipe(**call, output_type=kind).frames for kind in ("pil", "np", "pt"))
    assert array.shape == (2, 7, 12, 16, 3)
    assert tensor.shape == (2, 7, 3, 12, 16)
    np.testing.assert_allclose(array, tensor.permute(0, 1, 3, 4, 2).numpy())
    np.testing.assert_allclose(np.asarray(pil[1][6]), (array[1, 6] * 255).round())
    frames, codes, stats = pipe(**call, return_dict=False, output_type="tokens")
    assert torch.equal(frames, codes)
    assert stats.seeds == SEEDS[:2]


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_files_come_back_as_inputs(pipe: VideoPipeline, kind: str, tmp_path) -> None:
    output = pipe(video=CLIP, seed=1, output_type=kind, fps=8)
    path = tmp_path / f"clip.{kind}"
    path.write_bytes(output.frames[0])
    again = pipe(video=path, seed=1, num_frames=7)
    assert len(again.frames[0]) == 7


def test_several_clips_of_one_input(pipe: VideoPipeline) -> None:
    made = tokens(pipe, video=CLIP, seed=4, num_videos_per_prompt=3)
    assert torch.equal(made[2], tokens(pipe, video=CLIP, seed=6)[0])
    generator = torch.Generator().manual_seed(0)
    assert tokens(pipe, video=CLIP, seed=None, generator=generator).shape == (1, 48)


def test_an_interrupted_call_keeps_what_is_committed(pipe: VideoPipeline) -> None:
    def stop(pipe: Any, step: int, position: int, values: dict[str, Any]) -> None:
        pipe._interrupt = position >= 14

    output = pipe(video=CLIP, seed=1, speculate=False, callback_on_step_end=stop)
    assert output.stats.finish_reasons == ["interrupted"]
    assert len(output.frames[0]) == 5  # the context, and the one latent frame that is complete
    assert len(pipe(video=CLIP, seed=1).frames[0]) == 7


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "exactly one"),
        ({"image": CLIP[0], "video": CLIP}, ValueError, "exactly one"),
        ({"video": CLIP, "prompt": "a cat"}, ValueError, "no prompt"),
        ({"video": CLIP, "guidance_scale": 2.0}, ValueError, "guide by"),
        ({"video": CLIP, "output_type": "avi"}, ValueError, "output_type"),
        ({"video": CLIP, "fps": 0}, ValueError, "fps"),
        ({"video": CLIP, "num_frames": 0}, ValueError, "num_frames"),
        ({"video": CLIP, "num_frames": 5.0}, TypeError, "num_frames"),
        ({"video": []}, ValueError, "no frames"),
        ({"image": []}, ValueError, "at least one picture"),
        ({"image": CLIP}, ValueError, "as `video`"),
        ({"video": 7}, TypeError, "clip must be"),
        ({"video": CLIP, "top_k": 99}, ValueError, "top_k"),
        ({"video": CLIP, "seed": [1, 2]}, ValueError, "seed"),
    ],
)
def test_wrong_calls_raise_before_the_first_forward(
    pipe: VideoPipeline, arguments: dict, error: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe.transformer, "forward", lambda *a, **k: pytest.fail("a forward ran"))
    with pytest.raises(error, match=message):
        pipe(**arguments)


def test_prompts_must_fit_the_inputs(by_text: VideoPipeline) -> None:
    with pytest.raises(ValueError, match="2 entries for 3"):
        by_text(video=BATCH, prompt=["a", "b"])
    with pytest.raises(ValueError, match="tokens"):
        by_text(video=CLIP, prompt="a very old red house on the blue moon " * 3)


def test_parts_of_different_checkpoints_are_refused() -> None:
    with pytest.raises(ValueError, match="different checkpoints"):
        tiny_video_pipeline(video_tokenizer=tiny_video_tokenizer((4, 3)))


def test_saved_and_loaded_it_makes_the_same_clips(by_text: VideoPipeline, tmp_path) -> None:
    by_text.drafter = JacobiDrafter(window=13, initializer="law-frame", within_frame=True, controller="fixed")
    by_text.save_pretrained(tmp_path)
    loaded = VideoPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert loaded.drafter.config.initializer == "law-frame"
    assert loaded.drafter.config.within_frame
    call = {"prompt": "a cat", "video": CLIP, "seed": 1}
    assert torch.equal(tokens(loaded, **call), tokens(by_text, **call))


def test_a_frame_initialiser_needs_a_clip() -> None:
    from tests.oracles.tiny import tiny_pipeline

    for drafter in (JacobiDrafter(initializer="copy-frame"), JacobiDrafter(within_frame=True)):
        with pytest.raises(ValueError, match="clips"):
            tiny_pipeline(drafter=drafter)("a cat")
