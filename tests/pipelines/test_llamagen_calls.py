"""Calls leave nothing behind, report honestly, stream what is final, and refuse bad input before any forward."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.block import BlockAcceptance
from mmspec.drafters import DRAFTERS
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.sessions import ScriptedSession
from tests.oracles.tiny import tiny_pipeline, tiny_transformer

PROMPTS = ["a cat", "a very old red house on the"]
TOTAL = 15


@pytest.fixture
def pipe() -> LlamaGenPipeline:
    return tiny_pipeline(drafter=JacobiDrafter(window=5, controller="fixed"))


@pytest.mark.parametrize("speculate", [True, False])
def test_callback_sees_rising_counts_up_to_the_exact_total(pipe: LlamaGenPipeline, speculate: bool) -> None:
    """Faults 60 and 71: what the callback has seen committed never changes."""
    seen: list[tuple[int, int, list[int], torch.Tensor]] = []

    def callback(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        assert pipeline is pipe
        seen.append((step, slowest, list(tensors["lengths"]), tensors["tokens"].clone()))

    output = pipe(
        PROMPTS, seed=1, speculate=speculate, output_type="tokens", callback_on_step_end=callback,
        callback_on_step_end_tensor_inputs=["tokens", "lengths"],
    )  # fmt: skip
    assert [step for step, *_ in seen] == list(range(output.stats.forwards))
    counts = [sum(lengths) for _, _, lengths, _ in seen]
    assert all(a < b for a, b in itertools.pairwise(counts))
    assert counts[-1] == 2 * TOTAL
    for _, slowest, lengths, partial in seen:
        assert slowest == min(lengths)
        for row, length in enumerate(lengths):
            assert torch.equal(partial[row, :length], output.tokens[row, :length])


def test_callback_may_interrupt(pipe: LlamaGenPipeline) -> None:
    def callback(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        pipeline._interrupt = step == 2

    output = pipe(PROMPTS, seed=1, callback_on_step_end=callback)
    assert output.stats.finish_reasons == ["interrupted"] * 2
    assert output.stats.forwards == 3
    whole = pipe(PROMPTS, seed=1)
    assert whole.stats.finish_reasons == ["complete"] * 2
    for row, counts in enumerate(output.stats.rows):
        assert torch.equal(output.tokens[row, : counts.tokens], whole.tokens[row, : counts.tokens])
    assert [image.size for image in output.images] == [image.size for image in whole.images]


def test_progress_bar_is_silent_when_disabled_and_exact_otherwise(
    pipe: LlamaGenPipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe(PROMPTS, seed=1)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    pipe.set_progress_bar_config(disable=False, mininterval=0)
    pipe(PROMPTS, seed=1, micro_batch_size=1)
    shown = capfd.readouterr().err
    assert f"{2 * TOTAL}/{2 * TOTAL}" in shown
    assert (
        max(int(part.split("/")[0].split()[-1]) for part in shown.split("%|")[1:] for part in [part.split("|")[1]])
        <= 30
    )


def test_streamed_rows_are_final(pipe: LlamaGenPipeline) -> None:
    """Fault 71: rows only rise, the picture below them is white, and the end equals the call."""
    parts = list(pipe.stream(PROMPTS, seed=4))
    assert all(not part.finished for part in parts[:-1])
    assert parts[-1].finished
    for before, after in itertools.pairwise(parts):
        assert all(a <= b for a, b in zip(before.rows, after.rows, strict=True))
    assert parts[-1].rows == [3, 3]
    factor = pipe.image_size[0] // 3
    for part in parts:
        for image, rows in zip(part.images, part.rows, strict=True):
            assert (np.asarray(image)[rows * factor :] == 255).all()
    whole = pipe(PROMPTS, seed=4)
    assert torch.equal(parts[-1].output.tokens, whole.tokens)
    for streamed, called in zip(parts[-1].output.images, whole.images, strict=True):
        assert (np.asarray(streamed) == np.asarray(called)).all()


def test_call_after_other_calls_an_exception_and_an_abandoned_stream(pipe: LlamaGenPipeline) -> None:
    """Fault 27."""
    fresh = pipe(PROMPTS, seed=1, output_type="tokens").tokens

    def fail(*arguments: Any) -> None:
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        pipe(PROMPTS, seed=2, callback_on_step_end=fail)
    stream = pipe.stream(PROMPTS[0], seed=3)
    next(stream)
    assert torch.equal(pipe(PROMPTS, seed=1, output_type="tokens").tokens, fresh)
    stream.close()
    pipe(PROMPTS[1], seed=9, num_images_per_prompt=3)
    assert torch.equal(pipe(PROMPTS, seed=1, output_type="tokens").tokens, fresh)


def test_two_streams_at_once_do_not_mix(pipe: LlamaGenPipeline) -> None:
    streams = [pipe.stream(prompt, seed=row) for row, prompt in enumerate(PROMPTS)]
    last: list[Any] = [None, None]
    running = {0, 1}
    while running:
        for place in sorted(running):
            last[place] = next(streams[place], None) or last[place]
            if last[place].finished:
                running.discard(place)
    for row, prompt in enumerate(PROMPTS):
        assert torch.equal(last[row].output.tokens, pipe(prompt, seed=row, output_type="tokens").tokens)


def test_two_threads_equal_sequential(pipe: LlamaGenPipeline) -> None:
    """Fault 59."""
    jobs = [(PROMPTS[n % 2], n) for n in range(8)]
    wanted = [pipe(prompt, seed=seed, output_type="tokens").tokens for prompt, seed in jobs]
    results: dict[int, torch.Tensor] = {}

    def work(mine: range) -> None:
        for n in mine:
            results[n] = pipe(jobs[n][0], seed=jobs[n][1], output_type="tokens").tokens

    threads = [threading.Thread(target=work, args=(range(start, 8, 2),)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))
    assert all(torch.equal(results[n], wanted[n]) for n in range(8))


def test_output_types(pipe: LlamaGenPipeline) -> None:
    height, width = pipe.image_size
    assert pipe(PROMPTS, seed=1).images[0].size == (width, height)
    assert pipe(PROMPTS, seed=1, output_type="np").images.shape == (2, height, width, 3)
    tensor = pipe(PROMPTS, seed=1, output_type="pt").images
    assert tensor.shape == (2, 3, height, width)
    assert 0 <= float(tensor.min()) <= float(tensor.max()) <= 1
    images, tokens, stats = pipe(PROMPTS, seed=1, output_type="tokens", return_dict=False)
    assert images is tokens
    assert stats.tokens == 2 * TOTAL


class WrongDrafter(NGramDrafter):
    """Drafts ``script``, which is right nowhere."""

    script: torch.Tensor

    def session(self, setup: DraftSetup) -> Any:
        return ScriptedSession(self.script)


def test_a_useless_drafter_is_reported_once_and_changes_nothing(pipe: LlamaGenPipeline) -> None:
    """Fault 31."""
    plain = pipe(PROMPTS, seed=1, output_type="tokens", speculate=False).tokens
    drafter = WrongDrafter(num_draft_tokens=3)
    drafter.script = (plain + 1) % 24
    pipe.drafter = drafter
    with pytest.warns(UserWarning, match="WrongDrafter") as caught:
        outputs = [pipe(PROMPTS, seed=1, output_type="tokens") for _ in range(3)]
    assert len(caught) == 1
    assert all(torch.equal(output.tokens, plain) for output in outputs)
    assert [row.acceptance_length for row in outputs[0].stats.rows] == [1.0, 1.0]


def test_greedy_pictures_warn_once(pipe: LlamaGenPipeline) -> None:
    """Fault 13."""
    with pytest.warns(UserWarning, match="temperature") as caught:
        _ = [pipe("a", seed=1, temperature=0, output_type="tokens") for _ in range(3)]
    assert len(caught) == 1


def test_offload_hooks_change_no_token(pipe: LlamaGenPipeline) -> None:
    """Fault 15."""
    wanted = pipe(PROMPTS, generator=torch.Generator().manual_seed(3), output_type="tokens").tokens
    try:
        pipe.enable_model_cpu_offload(device="cpu")
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"diffusers offloads from accelerators only: {error}")
    for _ in range(2):
        assert torch.equal(
            pipe(PROMPTS, generator=torch.Generator().manual_seed(3), output_type="tokens").tokens, wanted
        )


BAD = {
    "nothing": ({}, ValueError, "prompt"),
    "both": ({"prompt": "a", "class_labels": 1}, ValueError, "class_labels"),
    "no prompts": ({"prompt": []}, ValueError, "prompt"),
    "number as prompt": ({"prompt": 3}, TypeError, "3"),
    "number among prompts": ({"prompt": ["a", 3]}, TypeError, "3"),
    "prompt too long": ({"prompt": "a red green blue apple cat dog on the in"}, ValueError, "8"),
    "no classes": ({"class_labels": []}, ValueError, "class_labels"),
    "class too large": ({"class_labels": 4}, ValueError, "4"),
    "class negative": ({"class_labels": -1}, ValueError, "-1"),
    "class unknown": ({"class_labels": "lake"}, ValueError, "lake"),
    "class bool": ({"class_labels": True}, ValueError, "True"),
    "guidance": ({"prompt": "a", "guidance_scale": -1.0}, ValueError, "-1"),
    "guidance nan": ({"prompt": "a", "guidance_scale": float("nan")}, ValueError, "nan"),
    "guided_until": ({"prompt": "a", "guided_until": -2}, ValueError, "-2"),
    "temperature": ({"prompt": "a", "temperature": -0.5}, ValueError, "-0.5"),
    "top_k": ({"prompt": "a", "top_k": 25}, ValueError, "24"),
    "top_k negative": ({"prompt": "a", "top_k": -1}, ValueError, "-1"),
    "top_p": ({"prompt": "a", "top_p": 1.5}, ValueError, "1.5"),
    "height": ({"prompt": "a", "height": 64}, ValueError, "64"),
    "width": ({"prompt": "a", "width": 7}, ValueError, "7"),
    "too few generators": ({"prompt": PROMPTS, "generator": [torch.Generator()]}, ValueError, "2"),
    "no generator": ({"prompt": "a", "generator": ["x"]}, TypeError, "x"),
    "seed and generator": ({"prompt": "a", "generator": torch.Generator(), "seed": 1}, ValueError, "seed"),
    "seed count": ({"prompt": "a", "seed": [1, 2]}, ValueError, "2"),
    "seed negative": ({"prompt": "a", "seed": -1}, ValueError, "-1"),
    "seed text": ({"prompt": "a", "seed": "7"}, TypeError, "7"),
    "no images": ({"prompt": "a", "num_images_per_prompt": 0}, ValueError, "0"),
    "half an image": ({"prompt": "a", "num_images_per_prompt": 1.5}, TypeError, "1.5"),
    "micro batch": ({"prompt": "a", "micro_batch_size": 0}, ValueError, "0"),
    "output": ({"prompt": "a", "output_type": "latent"}, ValueError, "latent"),
    "negative count": ({"prompt": ["a", "a", "a"], "negative_prompt": ["a", "a"]}, ValueError, "2"),
    "negative of a class": ({"class_labels": 1, "negative_prompt": "a"}, ValueError, "negative_prompt"),
    "unknown keyword": ({"prompt": "a", "cfg_scale": 2.0}, TypeError, "cfg_scale"),
    "callback input": ({"prompt": "a", "callback_on_step_end_tensor_inputs": ["latents"]}, ValueError, "latents"),
}  # fmt: skip


@pytest.fixture
def no_forward(pipe: LlamaGenPipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def forward(*arguments: Any, **named: Any) -> None:
        pytest.fail("a model ran before the arguments were checked")

    for part in (pipe.transformer, pipe.text_encoder, pipe.vq):
        monkeypatch.setattr(part, "forward", forward)
    return


@pytest.mark.usefixtures("no_forward")
@pytest.mark.parametrize(("arguments", "error", "named"), BAD.values(), ids=list(BAD))
def test_bad_input_is_refused_before_any_forward(
    pipe: LlamaGenPipeline, arguments: dict, error: type[Exception], named: str
) -> None:
    """Faults 37, 39 and the like: the right kind of error, which names the bad value or the legal ones."""
    with pytest.raises(error) as caught:
        pipe(**arguments)
    assert type(caught.value) is error
    assert named in str(caught.value)


@pytest.mark.usefixtures("no_forward")
def test_methods_that_do_not_fit_are_refused_before_any_forward(pipe: LlamaGenPipeline) -> None:
    pipe.acceptance = BlockAcceptance()
    with pytest.raises(ValueError, match="JacobiDrafter"):
        pipe("a")
    pipe.acceptance, pipe.drafter = None, ModelDrafter()
    with pytest.raises(ValueError, match="model"):
        pipe("a")
    pipe.drafter = ModelDrafter(model=tiny_transformer(vocab_size=32))
    with pytest.raises(ValueError, match=r"32.*24"):
        pipe("a")


def test_wrong_objects_cannot_be_attached(pipe: LlamaGenPipeline) -> None:
    with pytest.raises(TypeError, match="drafter"):
        pipe.drafter = "jacobi"
    with pytest.raises(TypeError, match="acceptance"):
        pipe.acceptance = JacobiDrafter()
    with pytest.raises(ValueError, match="jacobi"):
        DRAFTERS.create("jacoby")
    with pytest.raises(ValueError, match="coupled"):
        ACCEPTANCE_RULES.create("couple")


def test_parts_of_different_checkpoints_are_refused() -> None:
    with pytest.raises(ValueError, match=r"32.*24"):
        tiny_pipeline(transformer=tiny_transformer(vocab_size=32))


def test_memory_is_checked_before_the_first_decoding_step(
    pipe: LlamaGenPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.runner.memory.available_memory", lambda device: 1000)
    with pytest.raises(MemoryError, match="micro_batch_size"):
        pipe("a", seed=1)
