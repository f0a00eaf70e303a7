"""MaskGIT depth decoding: the schedule, what stays known, a run that depends on seed and place alone, and its place in the pipeline."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import MaskPredictor, ResidualDrafter, TextToSpeechPipeline
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.speech.code_sampling import CodeLaw, CodeSampling
from mmspec.speech.mask_predictor import masks_left
from tests.oracles.synthesis import BOOKS, CODES, states_like, tiny_heads, tiny_mask_predictor, tiny_voice

TEXTS = ["no", "yes, go on.", "a"]


def law_of(rest: SamplingParams) -> CodeLaw:
    allowed = torch.arange(CODES + 3) < CODES
    return CodeLaw(CodeSampling(SamplingParams(), rest).of_books(BOOKS), torch.stack([allowed, allowed]))


def test_schedule() -> None:
    assert masks_left(7, 3) == [6, 3, 0]
    assert masks_left(15, 8) == [14, 13, 12, 10, 8, 5, 2, 0]
    for slots in (3, 7, 31):
        for steps in range(1, slots + 1):
            left = [slots, *masks_left(slots, steps)]
            assert left[-1] == 0
            assert all(after < before for before, after in pairwise(left))
    with pytest.raises(ValueError, match="between 1 and the 7 residual codes of a step, got 8"):
        masks_left(7, 8)


def test_known_codes_stay_and_masked_ones_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, seen = tiny_mask_predictor(), []
    forward = MaskPredictor.forward

    def watched(self: MaskPredictor, states: Any, codes: Any, masked: Any) -> Any:
        seen.append((codes.clone(), masked.clone()))
        other = torch.where(torch.nn.functional.pad(masked, (1, 0)), 0, codes)
        assert torch.equal(forward(self, states, codes, masked), forward(self, states, other, masked))
        return forward(self, states, codes, masked)

    monkeypatch.setattr(MaskPredictor, "forward", watched)
    states, first = states_like(5, 1, 32)[:, 0], torch.arange(5)
    noise = RowNoise(torch.arange(5), CODES + 3)
    with torch.no_grad():
        filled = network.fill(states, first, law_of(SamplingParams()), noise, 8, 3)
    assert [int(masked.sum()) for _, masked in seen] == [15, 10, 5]
    for codes, masked in seen:
        assert torch.equal(codes[:, 1:][~masked], filled[~masked])
        assert torch.equal(codes[:, 0], first)


@torch.no_grad()
def test_a_frame_depends_on_seed_and_place() -> None:
    network = tiny_mask_predictor()
    states, first = states_like(3, 1, 32)[:, 0], torch.tensor([3, 1, 4])
    law = law_of(SamplingParams(1.0, 6))

    def fill(rows: list[int], place: int = 4) -> list[list[int]]:
        seeds = torch.tensor([50 + row for row in rows])
        made: list[list[int]] = network.fill(
            states[rows], first[rows], law, RowNoise(seeds, CODES + 3), place, 2
        ).tolist()
        return made

    together = fill([0, 1, 2])
    assert [fill([row])[0] for row in range(3)] == together
    assert fill([0, 1, 2], place=8) != together


@torch.no_grad()
def test_one_step_draws_from_the_network() -> None:
    """With all residual codes in one step, each has the law of its head; chi-square over many seeds, and a control."""
    network, rows = tiny_mask_predictor(), 4000
    states, first = states_like(1, 1, 32)[:, 0].expand(rows, -1), torch.full((rows,), 5)
    filled = network.fill(states, first, law_of(SamplingParams(0.8, 6)), RowNoise(torch.arange(rows), CODES + 3), 0, 1)
    masked = torch.ones(1, BOOKS - 1, dtype=torch.bool)
    logits = network(states[:1], torch.tensor([[5, 0, 0, 0]]), masked)[0]
    for book in range(BOOKS - 1):
        counts = torch.bincount(filled[:, book], minlength=CODES).double()
        best = logits[book].topk(6).indices
        law = (logits[book, best] / 0.8).softmax(-1).double()
        assert float(counts[best].sum()) == rows
        assert float(((counts[best] - rows * law) ** 2 / (rows * law)).sum()) < 25  # 5 degrees of freedom
        assert float(((counts[best] - rows / 6) ** 2 / (rows / 6)).sum()) > 100  # it is not just any law


# --- in the pipeline


@pytest.fixture(scope="module")
def pipe() -> TextToSpeechPipeline:
    drafter = ResidualDrafter(heads=tiny_heads("chained"))
    return tiny_voice(drafter, mask_predictor=tiny_mask_predictor(), rest={"temperature": 0.8, "top_k": 6})


def speak(pipe: TextToSpeechPipeline, prompt: Any, **arguments: Any) -> Any:
    """A call with few frames, whose cuts are expected."""
    asked = {"max_frames": 5, "output_type": "pcm", "seed": 3, "temperature": 1.5, "depth": "maskgit", **arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipe(prompt, **asked)


def test_rows_equal_solo_and_runs_repeat(pipe: TextToSpeechPipeline) -> None:
    both = speak(pipe, TEXTS, max_frames=12, repetition_penalty=1.5)
    assert len({len(tokens) for tokens in both.tokens}) > 1  # rows end apart
    for number, text in enumerate(TEXTS):
        alone = speak(pipe, text, max_frames=12, seed=3 + number, repetition_penalty=1.5)
        assert torch.equal(alone.tokens[0], both.tokens[number])
        assert alone.finish_reasons[0] == both.finish_reasons[number]
    small = speak(pipe, TEXTS, max_frames=12, micro_batch_size=2, repetition_penalty=1.5)
    assert all((a == b).all() for a, b in zip(small.audios, both.audios, strict=True))
    free = speak(pipe, TEXTS, max_frames=12)
    assert not all(torch.equal(a, b) for a, b in zip(free.tokens, both.tokens, strict=True))


def test_streamed_is_whole(pipe: TextToSpeechPipeline) -> None:
    whole = speak(pipe, TEXTS[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunks = list(pipe.stream(TEXTS[1], seed=3, max_frames=5, temperature=1.5, output_type="pcm", depth="maskgit"))
    assert len(chunks) > 1
    assert (np.concatenate([chunk.samples for chunk in chunks]) == whole.audios[0]).all()
    assert chunks[-1].output.finish_reasons == whole.finish_reasons  # type: ignore[union-attr]


def test_what_it_says_of_itself(pipe: TextToSpeechPipeline) -> None:
    stats = speak(pipe, "well", depth_steps=2, temperature=0.1).stats
    assert (stats.method, stats.guarantee.value, stats.lossless) == ("maskgit", "HEURISTIC", False)
    assert stats.calls == {"talker": 5, "predictor": 10}
    assert stats.forwards == 15
    assert sum(row.drafted for row in stats.rows) == 0
    assert 0 < stats.deviation["outside_support"] < 1
    plain = speak(pipe, "well", depth="ar", speculate=False)
    spec = speak(pipe, "well", depth="ar")
    assert torch.equal(plain.tokens[0], spec.tokens[0])
    assert plain.stats.lossless


def test_interruption(pipe: TextToSpeechPipeline) -> None:
    def stop(pipe: Any, step: int, place: int, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= 1
        return tensors

    cut, whole = (
        speak(pipe, TEXTS[1], callback_on_step_end=stop, temperature=0.1),
        speak(pipe, TEXTS[1], temperature=0.1),
    )
    assert cut.finish_reasons == ["interrupted"]
    assert torch.equal(cut.tokens[0], whole.tokens[0][:2])


def test_code_0_is_that_of_plain_decoding(pipe: TextToSpeechPipeline) -> None:
    masked, plain = speak(pipe, TEXTS[1]), speak(pipe, TEXTS[1], depth="ar", speculate=False)
    assert int(masked.tokens[0][0, 0]) == int(plain.tokens[0][0, 0])


def test_bad_calls(pipe: TextToSpeechPipeline) -> None:
    for arguments, said in (
        ({"depth": "diffusion"}, "ar, maskgit"),
        ({"depth": "maskgit", "depth_steps": 0}, "between 1 and the 3"),
        ({"depth": "maskgit", "depth_steps": 4}, "between 1 and the 3"),
    ):
        with pytest.raises(ValueError, match=said):
            pipe("no", **arguments)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=said):
            pipe.stream("no", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no `mask_predictor`"):
        tiny_voice()("no", depth="maskgit")
    with pytest.raises(ValueError, match="codes a step"):
        tiny_voice(mask_predictor=tiny_mask_predictor(7))("no", depth="maskgit")
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        MaskPredictor(hidden_size=130, num_heads=4)


def test_saved_and_loaded(pipe: TextToSpeechPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path / "with")
    again = TextToSpeechPipeline.from_pretrained(tmp_path / "with")
    again.set_progress_bar_config(disable=True)
    assert torch.equal(speak(again, "no").tokens[0], speak(pipe, "no").tokens[0])
    tiny_voice().save_pretrained(tmp_path / "without")
    assert TextToSpeechPipeline.from_pretrained(tmp_path / "without").mask_predictor is None
