"""Several frames a step of the talker: the same codes drafted and plain, alone and in batches, streamed and whole; ends and budgets in frames."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import ResidualDrafter, SpeechTalker, TextToSpeechPipeline
from tests.oracles.synthesis import BOOKS, tiny_codec, tiny_heads, tiny_mask_predictor, tiny_voice

STACK = 2
TEXTS = ["no", "yes, go on.", "a"]


@pytest.fixture(scope="module")
def pipe() -> TextToSpeechPipeline:
    drafter = ResidualDrafter(heads=tiny_heads("chained", STACK * BOOKS))
    settings: dict[str, Any] = {"rest": {"temperature": 0.8, "top_k": 6}}
    return tiny_voice(drafter, STACK, mask_predictor=tiny_mask_predictor(STACK * BOOKS), **settings)


def speak(pipe: TextToSpeechPipeline, prompt: Any, **arguments: Any) -> Any:
    """A call with few frames, whose cuts are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipe(prompt, **{"max_frames": 5, "output_type": "pcm", "seed": 3, **arguments})


@pytest.mark.parametrize("layout", ["chain", "fixed"])
def test_same_codes_with_and_without_drafts(layout: str, pipe: TextToSpeechPipeline) -> None:
    spec = speak(pipe, TEXTS[1], layout=layout)
    plain = speak(pipe, TEXTS[1], speculate=False)
    assert torch.equal(spec.tokens[0], plain.tokens[0])
    assert spec.tokens[0].shape == (5, BOOKS)  # the budget cuts within a stack
    assert plain.stats.calls["talker"] == 3
    assert spec.stats.calls["predictor"] < plain.stats.calls["predictor"]
    assert max(row.accepted for row in spec.stats.rows) > 0


@pytest.mark.parametrize("depth", ["ar", "maskgit"])
def test_rows_equal_solo_and_end_at_whole_stacks(depth: str, pipe: TextToSpeechPipeline) -> None:
    asked: dict[str, Any] = {"temperature": 3.0, "max_frames": 21, "depth": depth}
    both = speak(pipe, TEXTS, **asked)
    assert "stop" in both.finish_reasons
    for number, text in enumerate(TEXTS):
        alone = speak(pipe, text, **asked, **{"seed": 3 + number})
        assert torch.equal(alone.tokens[0], both.tokens[number])
        assert len(alone.audios[0]) == len(alone.tokens[0]) * pipe.codec.frame_samples
        if both.finish_reasons[number] == "stop":
            assert len(alone.tokens[0]) % STACK == 0
    assert int(torch.cat(both.tokens).max()) < pipe.codec.config.num_codes


@pytest.mark.parametrize("depth", ["ar", "maskgit"])
def test_streamed_is_whole(depth: str, pipe: TextToSpeechPipeline) -> None:
    whole = speak(pipe, TEXTS[1], depth=depth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunks = list(pipe.stream(TEXTS[1], seed=3, max_frames=5, output_type="pcm", depth=depth))
    assert len(chunks) > 1
    assert (np.concatenate([chunk.samples for chunk in chunks]) == whole.audios[0]).all()


def test_reference_fills_stacks_with_silence(pipe: TextToSpeechPipeline) -> None:
    codec = tiny_codec()
    sound = torch.randn(3 * codec.frame_samples, generator=torch.Generator().manual_seed(0)) / 5
    filled = torch.cat([sound, torch.zeros(codec.frame_samples)])
    assert torch.equal(codec.encode(sound, STACK), codec.encode(filled))
    reference = (torch.cat([sound, sound[:2560]]).numpy(), 16_000)  # five frames
    asked: dict[str, Any] = {"reference": reference, "reference_text": "hello"}
    spec = speak(pipe, "no", **asked)
    assert torch.equal(spec.tokens[0], speak(pipe, "no", speculate=False, **asked).tokens[0])
    assert not torch.equal(spec.tokens[0], speak(pipe, "no").tokens[0])


def test_places_of_a_stack_have_weights_of_their_own(pipe: TextToSpeechPipeline) -> None:
    talker = pipe.talker
    assert talker.codes_per_step == STACK * BOOKS
    assert len(talker.code_predictor.codec_embedding) == len(talker.code_predictor.lm_head) == STACK * BOOKS - 1
    step = torch.arange(STACK * BOOKS)[None, None]
    swapped = step.unflatten(-1, (STACK, BOOKS)).flip(2).flatten(2)  # its frames in the other order
    assert not torch.allclose(talker.frames(step), talker.frames(swapped))
    with pytest.raises(ValueError, match="`frame_stack` must be at least 1, got 0"):
        SpeechTalker(frame_stack=0)
    with pytest.raises(ValueError, match="made for 4 codes a frame, the model has 8"):
        tiny_voice(ResidualDrafter(heads=tiny_heads("chained")), STACK)("no")
