"""Text to speech: equal sound with and without drafts, alone and in batches, whole and streamed; ends, caps and bad input."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import RatioAcceptance, ResidualDrafter, TextToSpeechPipeline
from mmspec.speech.utterances import frames_for
from tests.oracles.synthesis import BOOKS, tiny_codec, tiny_heads, tiny_talker, tiny_voice

TEXTS = ["no", "yes, go on.", "a"]
CAP = 5


@pytest.fixture(scope="module")
def pipe() -> TextToSpeechPipeline:
    return tiny_voice(ResidualDrafter(heads=tiny_heads("chained")), rest={"temperature": 0.8, "top_k": 6})


def speak(pipe: TextToSpeechPipeline, prompt: Any, **arguments: Any) -> Any:
    """A call with few frames, whose cuts are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipe(prompt, **{"max_frames": CAP, "output_type": "pcm", "seed": 3, **arguments})


def test_same_sound_with_and_without_drafts(pipe: TextToSpeechPipeline) -> None:
    spec, plain = speak(pipe, TEXTS), speak(pipe, TEXTS, speculate=False)
    assert [a.tobytes() for a in spec.audios] == [a.tobytes() for a in plain.audios]
    assert spec.audios[0].dtype == np.int16
    assert spec.stats.calls["talker"] >= plain.stats.calls["talker"]
    assert sum(row.accepted for row in spec.stats.rows) > 0
    assert (spec.stats.method, plain.stats.method) == ("residual+coupled", "plain")


def test_rows_equal_solo_and_have_their_own_lengths(pipe: TextToSpeechPipeline) -> None:
    both = speak(pipe, TEXTS, temperature=1.5)
    for number, text in enumerate(TEXTS):
        alone = speak(pipe, text, temperature=1.5, seed=3 + number)
        assert (alone.audios[0] == both.audios[number]).all()
        assert len(alone.audios[0]) == len(both.tokens[number]) * pipe.codec.frame_samples
    small = speak(pipe, TEXTS, temperature=1.5, micro_batch_size=2)
    assert all(torch.equal(a, b) for a, b in zip(small.tokens, both.tokens, strict=True))


@pytest.mark.parametrize("speculate", [True, False])
def test_streamed_is_whole(pipe: TextToSpeechPipeline, speculate: bool) -> None:
    whole = speak(pipe, TEXTS[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunks = list(pipe.stream(TEXTS[1], seed=3, max_frames=CAP, output_type="pcm", speculate=speculate))
    assert len(chunks) > 1
    assert (np.concatenate([chunk.samples for chunk in chunks]) == whole.audios[0]).all()
    last = chunks[-1]
    assert last.finished
    assert last.output is not None
    assert (last.output.audios[0] == whole.audios[0]).all()
    assert 0 < last.output.stats.seconds["first_audio"] < sum(last.output.stats.seconds.values())
    assert last.output.finish_reasons == whole.finish_reasons


def test_a_stream_keeps_no_gradients(pipe: TextToSpeechPipeline) -> None:
    seen: list[bool] = []
    hooks = [
        module.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
        for network in (pipe.talker, pipe.codec)
        for module in network.modules()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = list(pipe.stream("no", seed=3, max_frames=3))
    for hook in hooks:
        hook.remove()
    assert seen
    assert not any(seen)
    for part in parts:
        assert part.stats.calls["talker"] > 0
        assert sum(one.emitted for one in part.stats.rows[0].trace) == part.stats.rows[0].tokens


def test_long_texts_are_spoken_in_pieces(pipe: TextToSpeechPipeline) -> None:
    text = "go, " * 50
    whole = speak(pipe, text, max_frames=8, temperature=2.0, residual_temperature=0.0)
    assert len(whole.stats.rows) == 2
    assert whole.stats.seeds[0] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        *_, last = pipe.stream(
            text, seed=3, max_frames=8, temperature=2.0, residual_temperature=0.0, output_type="pcm"
        )
    assert (last.output.audios[0] == whole.audios[0]).all()


def test_end_and_cap(pipe: TextToSpeechPipeline) -> None:
    with pytest.warns(UserWarning, match="were cut"):
        cut = pipe("well", seed=0, max_frames=2, temperature=0.1)
    assert cut.finish_reasons == ["length"]
    assert cut.tokens[0].shape == (2, BOOKS)
    outputs = [speak(pipe, "no", seed=seed, temperature=5.0, max_frames=20) for seed in range(3)]
    ended = [output for output in outputs if output.finish_reasons == ["stop"]]
    assert ended
    assert all(len(output.tokens[0]) < 20 for output in ended)
    assert frames_for("no", 12.5) == 24


def test_arguments(pipe: TextToSpeechPipeline) -> None:
    one = speak(pipe, "no", num_waveforms_per_prompt=2)
    assert len(one.audios) == 2
    assert not np.array_equal(one.audios[0], one.audios[1])
    generators = [torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)]
    first, second = (speak(pipe, "no", seed=None, generator=generator) for generator in generators)
    assert (first.audios[0] == second.audios[0]).all()
    assert speak(pipe, "no", output_type="tokens").audios is None
    assert isinstance(speak(pipe, "no", output_type="pt").audios[0], torch.Tensor)
    state = torch.get_rng_state()
    speak(pipe, "no", seed=None)
    assert torch.equal(state, torch.get_rng_state())


def test_ratio_rule_speaks(pipe: TextToSpeechPipeline) -> None:
    other = TextToSpeechPipeline(
        pipe.talker, pipe.codec, ResidualDrafter(coupling="independent", heads=pipe.drafter.heads), RatioAcceptance()
    )  # fmt: skip
    other.set_progress_bar_config(disable=True)
    assert speak(other, "no").stats.guarantee.value == "SAME_LAW"


def test_callback_and_interruption(pipe: TextToSpeechPipeline) -> None:
    seen: list[int] = []

    def stop(pipe: Any, step: int, place: int, tensors: dict[str, Any]) -> dict[str, Any]:
        seen.append(step)
        pipe._interrupt = step >= 6
        return tensors

    cut = speak(pipe, "yes, go on.", callback_on_step_end=stop)
    assert seen == list(range(len(seen)))
    assert 6 <= len(seen) <= 8
    assert cut.finish_reasons == ["interrupted"]
    whole = speak(pipe, "yes, go on.")
    assert torch.equal(whole.tokens[0][: len(cut.tokens[0])], cut.tokens[0])
    rest = speak(pipe, ["yes, go on.", "no"], micro_batch_size=1, callback_on_step_end=stop)
    assert torch.equal(rest.tokens[0], cut.tokens[0])
    assert rest.finish_reasons == ["interrupted", "interrupted"]
    assert len(rest.audios[1]) == 0  # not begun


def test_saved_and_loaded(pipe: TextToSpeechPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path / "voice")
    again = TextToSpeechPipeline.from_pretrained(tmp_path / "voice")
    again.set_progress_bar_config(disable=True)
    assert again.config.rest == {"temperature": 0.8, "top_k": 6}
    assert again.drafter.kind == "chained"
    assert (speak(again, TEXTS[1]).audios[0] == speak(pipe, TEXTS[1]).audios[0]).all()


def test_written_files(pipe: TextToSpeechPipeline, tmp_path: Path) -> None:
    import soundfile

    output = speak(pipe, "no")
    samples, rate = soundfile.read(output.save(tmp_path / "folder" / "no.wav"), dtype="int16")
    assert rate == pipe.sampling_rate == 16_000
    assert (samples == output.audios[0]).all()
    assert output.wav()[:4] == b"RIFF"


def speech_like(seconds: float, rate: int = 16_000) -> np.ndarray:
    time = np.arange(int(seconds * rate)) / rate
    return (0.3 * np.sin(440 * time) * np.sin(9 * time)).astype(np.float32)


def test_reference(pipe: TextToSpeechPipeline) -> None:
    asked = {"reference_text": "hello there", "reference_sampling_rate": 16_000}
    with_voice = speak(pipe, "no", reference=speech_like(1.0), **asked)
    assert not torch.equal(with_voice.tokens[0], speak(pipe, "no").tokens[0])
    plain = speak(pipe, "no", reference=speech_like(1.0), speculate=False, **asked)
    assert torch.equal(with_voice.tokens[0], plain.tokens[0])
    low = speak(pipe, "no", reference=(speech_like(1.0, 8000), 8000), reference_text="hello there")
    assert low.tokens[0].shape[1] == BOOKS  # another rate is resampled


BAD_REFERENCES = [
    (np.zeros(16_000, dtype=np.float32), 16_000, "hi", "silent"),
    (np.full(16_000, np.nan, dtype=np.float32), 16_000, "hi", "not finite"),
    (speech_like(0.1), 16_000, "hi", "must last"),
    (speech_like(20.0), 16_000, "hi", "must last"),
    (speech_like(1.0), 16_000, None, "needs `reference_text`"),
    (speech_like(1.0), 12, "hi", "sampling rate"),
    (speech_like(1.0), None, "hi", "no rate"),
]


@pytest.mark.parametrize(("audio", "rate", "text", "said"), BAD_REFERENCES)
def test_bad_references(pipe: TextToSpeechPipeline, audio: Any, rate: Any, text: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pipe("no", reference=audio, reference_sampling_rate=rate, reference_text=text)


BAD_CALLS: list[tuple[Any, dict[str, Any], str]] = [
    ("", {}, "nothing to say"),
    ("?!", {}, "nothing to say"),
    ("привет", {}, "cannot read"),
    ("🙂", {}, "cannot read"),
    ("a" * 2001, {}, "2001 characters"),
    ([], {}, "empty list"),
    ("no", {"temperature": -1.0}, "temperature"),
    ("no", {"repetition_penalty": 0.0}, "repetition_penalty"),
    ("no", {"residual_top_k": 17}, "vocabulary size 16"),
    ("no", {"residual_top_p": 0.0}, "top_p"),
    ("no", {"max_frames": 0}, "max_frames"),
    ("no", {"micro_batch_size": 0}, "micro_batch_size"),
    ("no", {"output_type": "mp3"}, "np, pt, pcm, tokens"),
    ("no", {"layout": "tree"}, "auto, chain, fixed"),
    ("no", {"seed": [1, 2]}, "2 entries"),
    ("no", {"reference_text": "hi"}, "belong to a `reference`"),
    ("no", {"speed": 3.0}, "between 0.5 and 2.0"),
]


@pytest.mark.parametrize(("prompt", "arguments", "said"), BAD_CALLS)
def test_bad_calls(pipe: TextToSpeechPipeline, prompt: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pipe(prompt, **arguments)


@pytest.mark.parametrize("text", ["a", "7", "new\nline", "a" * 2000], ids=["one", "digit", "newline", "long"])
def test_odd_texts_are_spoken(pipe: TextToSpeechPipeline, text: str) -> None:
    assert len(speak(pipe, text, max_frames=1, residual_temperature=0.0).audios[0]) <= pipe.codec.frame_samples


def test_parts_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="but the codec has"):
        TextToSpeechPipeline(tiny_talker(codes=8), tiny_codec())
    with pytest.raises(ValueError, match="top_k"):
        tiny_voice(rest={"top_k": -1})
    with pytest.raises(ValueError, match="one text"):
        tiny_voice().stream(["a", "b"])  # type: ignore[arg-type]
