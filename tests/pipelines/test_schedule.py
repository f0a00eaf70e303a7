"""``pipe.schedule``: swapped, saved and streamed like a drafter; plain decoding where the order is plain decoding's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.verify import Guarantee
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.image.zipar import MODES, ZipARSchedule
from mmspec.pipelines.causal_lm import CausalLMPipeline
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.tiny import tiny_pipeline

SHORT, LONG = "a cat", "a very old red house on the"
PROMPTS = [SHORT, LONG, "blue moon"]
ROWS, COLUMNS, TOTAL = 3, 5, 15


def tokens(pipe: LlamaGenPipeline, prompt: Any, **arguments: Any) -> Tensor:
    return pipe(prompt, output_type="tokens", **arguments).tokens


@pytest.fixture(scope="module")
def pipe() -> LlamaGenPipeline:
    return tiny_pipeline(schedule=ZipARSchedule(2))


SETTINGS = {
    "cfg": {"guidance_scale": 2.0},
    "no-cfg": {"guidance_scale": 1.0},
    "cfg-until-6": {"guidance_scale": 3.0, "guided_until": 6},
    "greedy": {"temperature": 0},
    "T.7-k5": {"temperature": 0.7, "top_k": 5},
    "negative": {"negative_prompt": "green dog", "guidance_scale": 2.5},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_a_window_of_a_row_or_more_equals_plain(settings: dict, mode: str) -> None:
    """Fault 75: token for token under the same seed; a smaller window, the negative control, is another law."""
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=6))
    plain = tokens(pipe, PROMPTS, seed=7, speculate=False, **settings)
    for window in (COLUMNS, 99):
        pipe.schedule = ZipARSchedule(window, mode)
        output = pipe(PROMPTS, seed=7, output_type="tokens", **settings)
        assert torch.equal(output.tokens, plain)
        assert output.stats.guarantee is Guarantee.SAME_TOKENS
        assert (output.stats.method, output.stats.forwards) == ("zipar", TOTAL)
        assert output.stats.deviation is None
    pipe.schedule = ZipARSchedule(1, mode)
    assert not torch.equal(tokens(pipe, PROMPTS, seed=7, **settings), plain)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [1, -1])
def test_rows_equal_solo(mode: str, order: int) -> None:
    """Fault 20: captions of unequal length in 1 to 4 rows, both orders."""
    pipe = tiny_pipeline(schedule=ZipARSchedule(2, mode))
    prompts, seeds = [SHORT, LONG, "blue moon", "the sun"][::order], [3, 1, 4, 15][::order]
    alone = torch.cat([tokens(pipe, p, seed=s) for p, s in zip(prompts, seeds, strict=True)])
    for count in (1, 2, 3, 4):
        assert torch.equal(tokens(pipe, prompts[:count], seed=seeds[:count]), alone[:count])
    parts = tokens(pipe, prompts, seed=seeds, micro_batch_size=3)
    assert torch.equal(parts, alone)


def test_classes_and_images_per_prompt(pipe: LlamaGenPipeline) -> None:
    named = tokens(pipe, None, class_labels=["city", "food"], seed=2, num_images_per_prompt=2)
    for row, (label, seed) in enumerate([(3, 2), (3, 3), (0, 4), (0, 5)]):
        assert torch.equal(named[row], tokens(pipe, None, class_labels=label, seed=seed)[0])


def test_stats_are_honest(pipe: LlamaGenPipeline) -> None:
    stats = pipe(PROMPTS, seed=1, output_type="tokens").stats
    assert (stats.method, stats.guarantee, stats.lossless) == ("zipar", Guarantee.HEURISTIC, False)
    assert stats.forwards == 2 * COLUMNS + (ROWS - 2) * 2
    assert stats.tokens == 3 * TOTAL
    assert stats.finish_reasons == ["complete"] * 3
    assert stats.tokens_per_forward == TOTAL / stats.forwards
    assert stats.deviation is not None
    assert 0 < stats.deviation["token_tv"] < 1
    assert stats.summary()["deviation"] == stats.deviation
    assert "[HEURISTIC]" in str(stats)
    pipe.schedule = ZipARSchedule(2, measure=False)
    unmeasured = pipe(PROMPTS, seed=1, output_type="tokens").stats
    pipe.schedule = ZipARSchedule(2)
    assert unmeasured.deviation is None
    assert "measure" not in unmeasured.seconds


def test_a_larger_window_deviates_less() -> None:
    """64 pictures; the figure falls with the window down to exactly nothing."""
    pipe, deviations = tiny_pipeline(), []
    for window in (1, 2, 4):
        pipe.schedule = ZipARSchedule(window)
        stats = pipe(SHORT, num_images_per_prompt=64, seed=0, output_type="tokens").stats
        deviations.append(stats.deviation["token_tv"])
    assert deviations[0] > deviations[1] > deviations[2] > 0


def test_the_schedule_goes_before_the_drafter_and_speculate_before_both() -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=6))
    plain = tokens(pipe, SHORT, seed=3)
    pipe.schedule = ZipARSchedule(2)
    assert pipe(SHORT, seed=3, output_type="tokens").stats.method == "zipar"
    off = pipe(SHORT, seed=3, output_type="tokens", speculate=False)
    assert off.stats.method == "plain"
    assert torch.equal(off.tokens, plain)
    pipe.schedule = None
    assert pipe(SHORT, seed=3, output_type="tokens").stats.method == "jacobi+coupled"


def test_calls_leave_nothing_behind(pipe: LlamaGenPipeline) -> None:
    """Faults 27 and 75: two calls, and a call after one that was cut short or that raised."""
    wanted = tokens(pipe, PROMPTS, seed=1)

    def interrupt(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        pipeline._interrupt = step == 7

    def fail(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        if step == 4:
            raise RuntimeError("stop")

    cut = pipe(PROMPTS, seed=1, callback_on_step_end=interrupt)
    assert cut.stats.finish_reasons == ["interrupted"] * 3
    assert len(cut.images) == 3
    assert torch.equal(cut.tokens[:, :COLUMNS], wanted[:, :COLUMNS])
    with pytest.raises(RuntimeError, match="stop"):
        pipe(PROMPTS, seed=1, callback_on_step_end=fail)
    assert torch.equal(tokens(pipe, PROMPTS, seed=1), wanted)


def test_streaming_shows_rows_that_are_final(pipe: LlamaGenPipeline) -> None:
    parts = list(pipe.stream(PROMPTS, seed=1))
    shown = [part.rows for part in parts]
    assert shown[0] == [0, 0, 0]
    assert shown[-1] == [ROWS] * 3
    assert shown == sorted(shown)
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
    assert torch.equal(parts[-1].output.tokens, tokens(pipe, PROMPTS, seed=1))


def test_callback_sees_counts_and_tokens_that_stay(pipe: LlamaGenPipeline) -> None:
    seen: list[tuple[list[int], Tensor]] = []

    def callback(pipeline: Any, step: int, slowest: int, tensors: dict[str, Any]) -> None:
        assert slowest == min(tensors["lengths"])
        seen.append((list(tensors["lengths"]), tensors["tokens"].clone()))

    output = pipe(
        PROMPTS, seed=1, output_type="tokens", callback_on_step_end=callback,
        callback_on_step_end_tensor_inputs=["tokens", "lengths"],
    )  # fmt: skip
    assert len(seen) == output.stats.forwards
    assert seen[-1][0] == [TOTAL] * 3
    for lengths, partial in seen:
        for row, length in enumerate(lengths):
            assert torch.equal(partial[row, :length], output.tokens[row, :length])


@pytest.mark.parametrize("schedule", [ZipARSchedule(3, "compat", False), ZipARSchedule()])
def test_it_is_saved_with_the_pipeline(schedule: ZipARSchedule, tmp_path: Path) -> None:
    pipe = tiny_pipeline()
    pipe.schedule = schedule
    pipe.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["schedule"] == ["mmspec", "ZipARSchedule"]
    loaded = LlamaGenPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert type(loaded.schedule) is ZipARSchedule
    for name in ("window", "mode", "measure"):
        assert loaded.schedule.config[name] == schedule.config[name]
    assert (loaded.schedule.masked, loaded.schedule.measure) == (schedule.masked, schedule.measure)
    assert torch.equal(tokens(loaded, PROMPTS, seed=5), tokens(pipe, PROMPTS, seed=5))


def test_it_is_replaced_and_removed_while_loading(tmp_path: Path) -> None:
    tiny_pipeline(schedule=ZipARSchedule(3)).save_pretrained(tmp_path)
    assert LlamaGenPipeline.from_pretrained(tmp_path, schedule=ZipARSchedule(2)).schedule.config.window == 2
    bare = LlamaGenPipeline.from_pretrained(tmp_path, schedule=None)
    assert bare.schedule is None
    bare.save_pretrained(tmp_path / "bare")
    assert json.loads((tmp_path / "bare" / "model_index.json").read_text())["schedule"] == [None, None]
    assert LlamaGenPipeline.from_pretrained(tmp_path / "bare").schedule is None


def test_a_checkpoint_from_before_schedules_loads(tmp_path: Path) -> None:
    tiny_pipeline().save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    del index["schedule"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert LlamaGenPipeline.from_pretrained(tmp_path).schedule is None


def test_wrong_objects_and_pipelines_without_a_grid_are_refused(pipe: LlamaGenPipeline) -> None:
    with pytest.raises(TypeError, match=r"ZipARSchedule\(\)"):
        pipe.schedule = "zipar"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="schedule"):
        pipe.schedule = JacobiDrafter()  # type: ignore[assignment]
    with pytest.raises(AttributeError, match=r"CausalLMPipeline.*raster order"):
        CausalLMPipeline.__setattr__(object.__new__(CausalLMPipeline), "schedule", ZipARSchedule())


def test_memory_is_checked_before_the_first_decoding_step(
    pipe: LlamaGenPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.runner.memory.available_memory", lambda device: 1000)
    with pytest.raises(MemoryError, match="micro_batch_size"):
        pipe(SHORT, seed=1)
