"""CSM: its class's own speech, with and without drafts, alone and in batches, whole and streamed, after recordings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import AutoTextToSpeechPipeline, CsmPipeline, RatioAcceptance, ResidualDrafter, TextToSpeechPipeline
from mmspec.speech.csm_frames import encode_csm_audio
from mmspec.speech.csm_prompts import Turn, conversation_tokens
from tests.oracles.synthesis import BOOKS, CSM_LENGTHS, tiny_csm, tiny_csm_processor, tiny_csm_voice, tiny_voice

TEXTS = ["no", "yes, go on.", "a 7"]
CAP = 4
RATE = 24_000
DRAWABLE = 16
#: codes that the tiny model has and its codec has not
BEYOND = [16, 17, 18]


@pytest.fixture(scope="module")
def pipe() -> CsmPipeline:
    return tiny_csm_voice(
        ResidualDrafter(), first={"temperature": 1.0, "top_k": 10}, rest={"temperature": 0.8, "top_k": 6}
    )


def speak(pipe: CsmPipeline, prompt: Any, **arguments: Any) -> Any:
    """A call with few frames, whose cuts are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipe(prompt, **{"max_frames": CAP, "output_type": "pcm", "seed": 3, **arguments})


def stream(pipe: CsmPipeline, prompt: str, **arguments: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(pipe.stream(prompt, **{"max_frames": CAP, "output_type": "pcm", "seed": 3, **arguments}))


def babble(seconds: float, rate: int = RATE) -> np.ndarray:
    time = np.arange(int(seconds * rate)) / rate
    return (0.3 * np.sin(440 * time) * np.sin(9 * time)).astype(np.float32)


@pytest.fixture
def ending(pipe: CsmPipeline) -> Iterator[CsmPipeline]:
    """The pipeline with codes 0 that are the end code more often."""
    head, heads = pipe.model.lm_head.weight, pipe.model.depth_decoder.codebooks_head.weight
    kept = head.detach().clone(), heads.detach().clone()
    with torch.no_grad():
        head.mul_(0.2)
        heads[..., 1:] *= 0.0
        heads[..., 0] *= 0.2
    yield pipe
    with torch.no_grad():
        head.copy_(kept[0])
        heads.copy_(kept[1])


def test_same_sound_with_and_without_drafts(pipe: CsmPipeline) -> None:
    spec, plain = speak(pipe, TEXTS), speak(pipe, TEXTS, speculate=False)
    assert [a.tobytes() for a in spec.audios] == [a.tobytes() for a in plain.audios]
    assert all(torch.equal(a, b) for a, b in zip(spec.tokens, plain.tokens, strict=True))
    assert sum(row.accepted for row in spec.stats.rows) > 0
    alone = [speak(pipe, TEXTS[1], max_frames=10, speculate=speculate) for speculate in (True, False)]
    assert torch.equal(alone[0].tokens[0], alone[1].tokens[0])
    assert alone[0].stats.calls["predictor"] < alone[1].stats.calls["predictor"] == 10 * (BOOKS - 1)
    assert (spec.stats.method, plain.stats.method) == ("residual+coupled", "plain")
    assert spec.sampling_rate == RATE
    assert spec.audios[0].dtype == np.int16


def test_rows_equal_solo(pipe: CsmPipeline) -> None:
    both = speak(pipe, TEXTS, speaker=[0, 1, 0])
    for number, text in enumerate(TEXTS[:2]):
        alone = speak(pipe, text, seed=3 + number, speaker=number)
        assert (alone.audios[0] == both.audios[number]).all()
        assert len(alone.audios[0]) == len(both.tokens[number]) * 64
    small = speak(pipe, TEXTS, micro_batch_size=2, speaker=[0, 1, 0])
    assert all(torch.equal(a, b) for a, b in zip(small.tokens, both.tokens, strict=True))
    assert not torch.equal(speak(pipe, "no", speaker=1).tokens[0], both.tokens[0])


@pytest.mark.parametrize("speculate", [True, False])
def test_streamed_is_whole(pipe: CsmPipeline, speculate: bool) -> None:
    whole = speak(pipe, TEXTS[1], max_frames=5)
    chunks = stream(pipe, TEXTS[1], max_frames=5, speculate=speculate)
    assert len(chunks) > 2
    assert (np.concatenate([chunk.samples for chunk in chunks]) == whole.audios[0]).all()
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1].output
    assert (last.audios[0] == whole.audios[0]).all()
    assert 0 < last.stats.seconds["first_audio"] < sum(last.stats.seconds.values())
    assert last.finish_reasons == whole.finish_reasons == ["length"]
    assert all(chunk.stats.calls["talker"] > 0 for chunk in chunks)


@torch.no_grad()
def test_greedy_is_the_classes_own(pipe: CsmPipeline) -> None:
    model, processor = pipe.model, pipe.processor
    said = {"reference": (babble(0.31), RATE), "reference_text": "hm", "reference_speaker": 1}
    written = "<bos>[1]hm<eos><|AUDIO|><|audio_eos|><bos>[0]yes, go on.<eos>"
    for text, asked, inputs in (
        ("no", {}, processor("<bos>[0]no<eos>", add_special_tokens=False)),
        (TEXTS[1], said, processor(written, audio=[babble(0.31)], encoded_length_kwargs=CSM_LENGTHS)),
    ):
        output = model.generate(
            **inputs, do_sample=False, depth_decoder_do_sample=False, max_new_tokens=CAP, output_audio=True,
            return_dict_in_generate=True, suppress_tokens=BEYOND, depth_decoder_suppress_tokens=BEYOND,
        )  # fmt: skip
        ours = speak(pipe, text, temperature=0.0, residual_temperature=0.0, output_type="pt", **asked)
        assert len(ours.tokens[0]) == CAP
        assert torch.equal(ours.tokens[0], output.sequences[0])
        assert torch.allclose(ours.audios[0], output.audio[0], atol=1e-4)


def test_prompts_are_the_processors_own(pipe: CsmPipeline) -> None:
    samples = torch.from_numpy(babble(0.31))
    codes = encode_csm_audio(pipe.model, samples)
    turns = [Turn(1, "hm", len(codes)), Turn(0, "no")]
    written = "<bos>[1]hm<eos><|AUDIO|><|audio_eos|><bos>[0]no<eos>"
    inputs = pipe.processor(written, audio=[samples.numpy()], encoded_length_kwargs=CSM_LENGTHS)
    assert conversation_tokens(pipe.processor, turns).tolist() == inputs["input_ids"][0].tolist()
    with pytest.raises(ValueError, match="places 0 of 1"):
        conversation_tokens(tiny_csm_processor("{{ bos_token }}"), turns)


def test_context(pipe: CsmPipeline) -> None:
    one = {"reference": (babble(0.31), RATE), "reference_text": "hm"}
    with_voice, without = speak(pipe, TEXTS[:2], **one), speak(pipe, TEXTS[:2])
    assert not torch.equal(with_voice.tokens[0], without.tokens[0])
    plain = speak(pipe, TEXTS[1], speculate=False, seed=4, **one)
    assert torch.equal(with_voice.tokens[1], plain.tokens[0])
    chunks = stream(pipe, TEXTS[1], seed=4, **one)
    assert (np.concatenate([chunk.samples for chunk in chunks]) == plain.audios[0]).all()
    bare = {"reference": [babble(0.31), babble(0.4)], "reference_text": ["hm", "so"], "reference_sampling_rate": RATE}
    two = speak(pipe, "no", **bare)
    assert not torch.equal(two.tokens[0], with_voice.tokens[0])
    same = speak(pipe, "no", reference_speaker=0, **bare)
    other = speak(pipe, "no", reference_speaker=[0, 1], **bare)
    assert torch.equal(same.tokens[0], two.tokens[0])
    assert not torch.equal(other.tokens[0], two.tokens[0])
    slow = speak(pipe, "no", reference=(babble(0.4, 8000), 8000), reference_text="hm")  # resampled
    assert slow.tokens[0].shape[1] == BOOKS


def test_speech_ends_before_the_frame_of_end_codes(ending: CsmPipeline) -> None:
    asked = {"temperature": 1.0, "top_k": 0, "residual_temperature": 0.5, "residual_top_k": 1, "max_frames": 20}
    for first in range(0, 60, 3):
        output = speak(ending, TEXTS, seed=first, **asked)
        assert not any((tokens[:, :-1] == 0).all(-1).any() for tokens in output.tokens)
        ends = zip(output.tokens, output.finish_reasons, strict=True)
        if found := [number for number, (tokens, reason) in enumerate(ends) if reason == "stop" and len(tokens)]:
            break
    number = found[0]
    tokens, text, seed = output.tokens[number], TEXTS[number], first + number
    assert len(output.audios[number]) == 64 * len(tokens)
    chunks = stream(ending, text, seed=seed, **asked)
    assert (np.concatenate([chunk.samples for chunk in chunks]) == output.audios[number]).all()
    assert chunks[-1].output.finish_reasons == ["stop"]
    for more, reason in ((1, "stop"), (0, "length")):  # the frame of end codes is known as such, within the budget
        tight = speak(ending, text, seed=seed, **{**asked, "max_frames": len(tokens) + more})
        assert tight.finish_reasons == [reason]
        assert torch.equal(tight.tokens[0], tokens)


def test_codes_that_the_codec_has_not_are_never_drawn(pipe: CsmPipeline) -> None:
    wild = speak(pipe, TEXTS, temperature=9.0, top_k=0, residual_temperature=9.0, residual_top_k=0, max_frames=12)
    drawn = torch.cat(wild.tokens)
    assert int(drawn.max()) == DRAWABLE - 1


def test_settings_are_the_checkpoints(pipe: CsmPipeline) -> None:
    assert tiny_csm_voice().own_sampling() == ({"temperature": 0.0}, {"temperature": 0.0})
    bare = CsmPipeline(tiny_csm(), pipe.processor)
    bare.model.generation_config.update(do_sample=True, temperature=0.9)
    bare.model.depth_decoder.generation_config.update(do_sample=True, top_k=5, top_p=0.9)
    assert bare.own_sampling() == (
        {"temperature": 0.9, "top_k": DRAWABLE, "top_p": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.9},
    )  # fmt: skip
    assert pipe.own_sampling()[0] == {"temperature": 1.0, "top_k": 10}


def test_other_methods_and_arguments(pipe: CsmPipeline) -> None:
    ratio = CsmPipeline(
        pipe.model, pipe.processor, ResidualDrafter(coupling="independent"), RatioAcceptance(), rest={"temperature": 1.0}
    )  # fmt: skip
    ratio.set_progress_bar_config(disable=True)
    assert speak(ratio, "no").stats.guarantee.value == "SAME_LAW"
    pair = speak(pipe, "no", num_waveforms_per_prompt=2)
    assert not np.array_equal(pair.audios[0], pair.audios[1])
    assert speak(pipe, "no", output_type="tokens").audios is None
    chain, fixed = (speak(pipe, "no", layout=layout) for layout in ("chain", "fixed"))
    assert torch.equal(chain.tokens[0], fixed.tokens[0])
    state = torch.get_rng_state()
    speak(pipe, "  no \n", seed=None)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.warns(UserWarning, match="were cut"):
        assert pipe("no", seed=3, max_frames=1).texts == ["no"]


def test_interruption(pipe: CsmPipeline) -> None:
    def stop(pipe: Any, step: int, place: int, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= 3
        return tensors

    cut = speak(pipe, TEXTS[:2], micro_batch_size=1, callback_on_step_end=stop)
    assert cut.finish_reasons == ["interrupted", "interrupted"]
    whole = speak(pipe, TEXTS[:2])
    assert 0 < len(cut.tokens[0]) < CAP
    assert torch.equal(whole.tokens[0][: len(cut.tokens[0])], cut.tokens[0])
    assert len(cut.audios[1]) == 0


def test_saved_and_loaded(pipe: CsmPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path / "voice")
    spoken = speak(pipe, "no").audios[0]
    for again in (
        CsmPipeline.from_pretrained(tmp_path / "voice"),
        AutoTextToSpeechPipeline.from_pretrained(tmp_path / "voice"),
    ):
        assert type(again) is CsmPipeline
        again.set_progress_bar_config(disable=True)
        assert again.own_sampling() == pipe.own_sampling()
        assert (speak(again, "no").audios[0] == spoken).all()
    (tmp_path / "voice" / "model" / "model.safetensors").unlink()
    with pytest.raises((ValueError, OSError)):
        CsmPipeline.from_pretrained(tmp_path / "voice")


def test_published_checkpoints(pipe: CsmPipeline, tmp_path: Path) -> None:
    pipe.model.save_pretrained(tmp_path / "csm")
    pipe.processor.save_pretrained(tmp_path / "csm")
    loaded = AutoTextToSpeechPipeline.from_pretrained(tmp_path / "csm")
    assert isinstance(loaded, CsmPipeline)
    assert isinstance(loaded.drafter, ResidualDrafter)
    loaded.set_progress_bar_config(disable=True)
    asked = {"temperature": 1.0, "top_k": 10, "residual_temperature": 0.8, "residual_top_k": 6}
    assert torch.equal(speak(loaded, "no", **asked).tokens[0], speak(pipe, "no").tokens[0])
    given = AutoTextToSpeechPipeline.from_pretrained(tmp_path / "csm", drafter=ResidualDrafter(num_draft_codes=2))
    assert given.drafter.config.num_draft_codes == 2


def test_auto_finds_the_native_voice(tmp_path: Path) -> None:
    tiny_voice(ResidualDrafter()).save_pretrained(tmp_path)
    assert type(AutoTextToSpeechPipeline.from_pretrained(tmp_path)) is TextToSpeechPipeline
    with pytest.raises(ValueError, match="not a CsmPipeline"):
        CsmPipeline.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="from_pretrained"):
        AutoTextToSpeechPipeline()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"model_type": "qwen3_omni_moe"}', "Qwen3OmniFrames"),
        ('{"model_type": "moshi"}', "MoshiFrames"),
        ('{"model_type": "llama"}', "which is no voice"),
        ('{"_class_name": "SpeechTalker"}', "'SpeechTalker' alone"),
    ],
)
def test_auto_refuses_what_is_no_voice(config: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=said):
        AutoTextToSpeechPipeline.from_pretrained(tmp_path)


def test_auto_refuses_other_pipelines(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "LlamaGenPipeline"}')
    with pytest.raises(ValueError, match="which is no voice"):
        AutoTextToSpeechPipeline.from_pretrained(tmp_path)


BAD_CALLS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("", {}, ValueError, "nothing to say"),
    (" \n", {}, ValueError, "nothing to say"),
    ("🙂?", {}, ValueError, "nothing to say"),
    ("no<|AUDIO|>", {}, ValueError, "does not read as text"),
    ([], {}, ValueError, "empty list"),
    ([7], {}, TypeError, "must be a string"),
    ("a" * 600, {}, ValueError, "too long"),
    ("no", {"max_frames": 600}, ValueError, "`max_frames` is 600"),
    ("no", {"max_frames": 0}, ValueError, "max_frames"),
    ("no", {"temperature": -1.0}, ValueError, "temperature"),
    ("no", {"residual_top_k": 17}, ValueError, "vocabulary size 16"),
    ("no", {"output_type": "mp3"}, ValueError, "np, pt, pcm, tokens"),
    ("no", {"layout": "tree"}, ValueError, "auto, chain, fixed"),
    (["no", "go"], {"layout": "chain"}, ValueError, "holds one row"),
    ("no", {"micro_batch_size": 0}, ValueError, "micro_batch_size"),
    ("no", {"seed": [1, 2]}, ValueError, "2 entries"),
    ("no", {"speaker": -1}, ValueError, "at least 0"),
    ("no", {"speaker": "0"}, TypeError, "whole number"),
    ("no", {"speaker": [0, 1]}, ValueError, "2 entries for 1"),
    ("no", {"reference_text": "hm"}, ValueError, "belong to a `reference`"),
    ("no", {"reference_speaker": 0}, ValueError, "belong to a `reference`"),
    ("no", {"reference": (babble(0.4), RATE)}, ValueError, "needs `reference_text`"),
    ("no", {"reference": (babble(0.4), RATE), "reference_text": ""}, ValueError, "nothing to say"),
    ("no", {"reference": [(babble(0.4), RATE)], "reference_text": ["a", "b"]}, ValueError, "1 recordings"),
    ("no", {"reference": "a.wav", "reference_text": ["a"]}, TypeError, "list of recordings"),
    ("no", {"reference": "none.wav", "reference_text": "a"}, FileNotFoundError, "does not exist"),
    ("no", {"reference": [], "reference_text": []}, ValueError, "0 recordings"),
    ("no", {"reference": (np.zeros(RATE), RATE), "reference_text": "hm"}, ValueError, "silent"),
    ("no", {"reference": (np.full(RATE, np.nan), RATE), "reference_text": "hm"}, ValueError, "not finite"),
    ("no", {"reference": (babble(0.1), RATE), "reference_text": "hm"}, ValueError, "must last"),
    ("no", {"reference": (babble(3.0), RATE), "reference_text": "hm"}, ValueError, "must last"),
    ("no", {"reference": (babble(1.3), RATE), "reference_text": "hm"}, ValueError, "too long"),
    ("no", {"reference": (babble(0.4), 12), "reference_text": "hm"}, ValueError, "sampling rate"),
    ("no", {"reference": babble(0.4), "reference_text": "hm"}, ValueError, "no rate"),
]


@pytest.mark.parametrize(("prompt", "arguments", "error", "said"), BAD_CALLS)
def test_bad_calls_run_no_forward(
    pipe: CsmPipeline, prompt: Any, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    runs: list[Any] = []
    parts = (pipe.model.backbone_model, pipe.model.codec_model.quantizer, pipe.model.codec_model.encoder)
    hooks = [part.register_forward_pre_hook(lambda module, _: runs.append(module)) for part in parts]
    try:
        with pytest.raises(error, match=said):
            pipe(prompt, **arguments)
    finally:
        for hook in hooks:
            hook.remove()
    assert not runs


def test_parts_that_do_not_fit(pipe: CsmPipeline) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        CsmPipeline(pipe.model, tiny_csm_processor(None))
    with pytest.raises(ValueError, match="16000 Hz"):
        CsmPipeline(pipe.model, tiny_csm_processor(rate=16_000))
    with pytest.raises(ValueError, match="top_k"):
        CsmPipeline(pipe.model, pipe.processor, rest={"top_k": -1})
    with pytest.raises(ValueError, match="one text"):
        pipe.stream(["a", "b"])  # type: ignore[arg-type]
