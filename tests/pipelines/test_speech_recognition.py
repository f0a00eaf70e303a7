"""Recognition with the embedded recogniser's classes: exactness, decisions, lengths, silence, budgets, saving."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.core.verify import Guarantee
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.auto_speech import AutoSpeechRecognitionPipeline
from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline
from mmspec.pipelines.tiny_asr import TinyASRPipeline
from mmspec.speech.ctc_drafter import CTCDrafter
from tests.oracles.speech import RATE, OracleCTC, babble, tiny_asr

SECONDS = (2.0, 0.7, 0.2, 5.0)
CLIPS = [(babble(seconds, seed), RATE) for seed, seconds in enumerate(SECONDS)]
#: hypotheses of the clips: a right one is put in by the tests that need it
HEARD = ["the four", "a cat is in", "", "press four to place an outgoing call"]


@pytest.fixture(autouse=True)
def without_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def pipe() -> TinyASRPipeline:
    return tiny_asr()


@pytest.fixture(scope="module")
def ending() -> TinyASRPipeline:
    """A recogniser that ends: its stop token is one that plain decoding writes early."""
    for seed in range(1, 40):
        made = tiny_asr(seed)
        plain = made(CLIPS, speculate=False, max_new_tokens=12).tokens
        candidates = [token for token in range(4, 60) if all(token in row[2:] for row in plain[:2])]
        for stop in candidates:
            made.decoder.generation_config.eos_token_id = stop
            made.__dict__.pop("_adapter", None)
            if all(made(CLIPS[:2], speculate=False, max_new_tokens=12).texts):
                return made
    raise AssertionError("no seed gives a recogniser that ends behind a text")


def oracle(pipe: TinyASRPipeline, texts: list[str], **settings: Any) -> TinyASRPipeline:
    pipe.drafter = CTCDrafter(**settings)
    pipe.drafter.ctc = OracleCTC({len(clip[0]): text for clip, text in zip(CLIPS, texts, strict=True)})
    return pipe


@pytest.mark.parametrize("on_fail", ["resync", "resume", "restart"])
def test_exact_recognition_equals_plain_in_every_batch(pipe: TinyASRPipeline, on_fail: str) -> None:
    oracle(pipe, HEARD, on_fail=on_fail)
    plain = pipe(CLIPS, speculate=False)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 3]):
        output = pipe([CLIPS[i] for i in order])
        assert output.tokens == [plain.tokens[i] for i in order]
        assert output.texts == [plain.texts[i] for i in order]
        assert output.stats.guarantee is Guarantee.SAME_TOKENS
    for batch in (1, 3):
        assert pipe(CLIPS, micro_batch_size=batch).tokens == plain.tokens
    assert [pipe(clip).tokens[0] for clip in CLIPS] == plain.tokens


@pytest.mark.parametrize("seconds", [0.2, 0.31, 1.0, 16.0, 60.0])
def test_clips_of_every_length_in_both_orders(pipe: TinyASRPipeline, seconds: float) -> None:
    """Fault 24: the short clip is not corrupted by the long one, nor the other way round."""
    pipe.drafter = CTCDrafter()
    pair = [(babble(seconds, 7), RATE), CLIPS[1]]
    call = {"max_new_tokens": 8}
    plain = [pipe(clip, speculate=False, **call).tokens[0] for clip in pair]
    assert pipe(pair, **call).tokens == plain
    assert pipe(pair[::-1], **call).tokens == plain[::-1]
    assert pipe(pair, **call).seconds == [pytest.approx(seconds, abs=1e-3), 0.7]


def test_relaxed_recognition_of_a_row_does_not_depend_on_its_batch(pipe: TinyASRPipeline) -> None:
    oracle(pipe, HEARD)
    for test in ("abs", "rel", "typical", "rank", "seq"):
        pipe.acceptance = LikelihoodAcceptance(test, {"abs": 0.01, "rank": 5, "seq": -3.0}.get(test))
        together = pipe(CLIPS)
        assert together.stats.guarantee is Guarantee.HEURISTIC
        for place, clip in enumerate(CLIPS):
            alone = pipe(clip)
            assert alone.tokens[0] == together.tokens[place]
            assert alone.stats.finish_reasons == [together.stats.rows[place].finish_reason]
    pipe.acceptance = None


def test_decisions(ending: TinyASRPipeline) -> None:
    """Accepted by entropy: no forward. Verified: one. Resumed: one and the rest."""
    plain = ending(CLIPS, speculate=False, max_new_tokens=12)
    texts = list(plain.texts)
    row = next(i for i in range(2) if plain.stats.rows[i].finish_reason == "stop")
    ids = ending.adapter.codec.encode(texts[row])
    canonical = ids == plain.tokens[row][:-1]
    oracle(ending, texts, on_fail="resume")
    if canonical:
        output = ending(CLIPS[row])
        assert (output.decisions, output.stats.forwards) == (["verified"], 1)
    oracle(ending, ["zz zz"] * 4, on_fail="resume")
    output = ending(CLIPS[row])
    assert output.tokens[0] == ending(CLIPS[row], speculate=False).tokens[0]
    assert output.decisions == ["resumed at word 1"]
    assert output.stats.forwards == len(output.tokens[0])
    oracle(ending, texts, entropy_threshold=3.0)
    output = ending(CLIPS[row])
    assert (output.decisions, output.stats.forwards, output.texts) == (["ctc"], 0, [" ".join(texts[row].split())])
    assert output.stats.guarantee is Guarantee.HEURISTIC
    assert ending(CLIPS[row], speculate=False).decisions == ["plain"]
    ending.drafter = NGramDrafter()
    assert ending(CLIPS[row]).decisions == ["drafted"]


def test_a_verified_draft_takes_one_forward_whatever_its_rule(ending: TinyASRPipeline) -> None:
    """A hypothesis of canonical words, with a rule that takes them: the draft and its end are kept."""
    oracle(ending, ["the four", "a cat", "bring", "the"], on_fail="resume")
    ending.acceptance = LikelihoodAcceptance("abs", 0.0)
    output = ending(CLIPS)
    assert output.decisions == ["verified"] * 4
    assert output.texts == ["the four", "a cat", "bring", "the"]
    assert (output.stats.forwards, output.decision_counts) == (1, {"verified": 4})
    ending.acceptance = None


def test_a_restart_costs_the_verification_and_all_of_plain_decoding(ending: TinyASRPipeline) -> None:
    oracle(ending, ["zz zz"] * 4, on_fail="restart")
    plain = ending(CLIPS[0], speculate=False)
    output = ending(CLIPS[0])
    assert output.tokens == plain.tokens
    assert output.stats.forwards == 1 + plain.stats.forwards


def test_silence_and_noise_give_nothing_and_ask_nobody(pipe: TinyASRPipeline) -> None:
    generator = torch.Generator().manual_seed(0)
    nothing = [
        torch.zeros(0), torch.zeros(1), babble(0.005), torch.zeros(2 * RATE), 0.1 * torch.randn(RATE, generator=generator),
        torch.full((RATE,), 0.4),
    ]  # fmt: skip
    for drafter in (None, CTCDrafter()):
        pipe.drafter = drafter
        output = pipe([(samples, RATE) for samples in nothing])
        assert output.texts == [""] * len(nothing)
        assert output.decisions == ["silence"] * len(nothing)
        assert output.stats.forwards == 0
        assert output.seconds == [len(samples) / RATE for samples in nothing]
        mixed = pipe([CLIPS[0], (nothing[3], RATE), CLIPS[1]], max_new_tokens=6)
        assert mixed.tokens[::2] == pipe([CLIPS[0], CLIPS[1]], max_new_tokens=6).tokens
        assert mixed.tokens[1] == []
        assert [row.finish_reason for row in mixed.stats.rows][1] == "silence"


def test_a_confidently_empty_hypothesis_is_silence_for_plain_decoding_too(pipe: TinyASRPipeline) -> None:
    oracle(pipe, ["", "a cat", "", "the"])
    pipe.drafter.ctc.sure = 0.999
    for speculate in (True, False):
        output = pipe(CLIPS, speculate=speculate, max_new_tokens=5)
        assert [decision == "silence" for decision in output.decisions] == [True, False, True, False]
    pipe.drafter = CTCDrafter(empty="verify")
    pipe.drafter.ctc = OracleCTC({}, sure=0.999)
    assert "silence" not in pipe(CLIPS, max_new_tokens=5).decisions


def test_transcripts_are_bounded_by_what_was_heard() -> None:
    """A model that never ends stops at 1.5 m + 20 tokens, each row at its own; the budget is said to be used up."""
    pipe = oracle(tiny_asr(), ["the", "a cat is in", "the four", "press four to place an outgoing call"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = pipe(CLIPS)
    sizes = [len(pipe.adapter.codec.encode(text)) for text in pipe.drafter.ctc.texts.values()]
    limits = [int(1.5 * size) + 20 for size in sizes]
    assert output.stats.finish_reasons.count("length") >= 2
    for row, limit, reason in zip(output.tokens, limits, output.stats.finish_reasons, strict=True):
        assert (len(row) == limit) == (reason == "length")
    assert [row.tokens for row in output.stats.rows] == [len(row) for row in output.tokens]
    assert any("max_new_tokens" in str(warning.message) for warning in caught)


def test_budgets_that_do_not_fit_are_refused_with_their_numbers(pipe: TinyASRPipeline) -> None:
    """Fault 35."""
    pipe.drafter = None
    limit = pipe.adapter.max_positions
    with pytest.raises(ValueError, match=str(limit)):
        pipe(CLIPS[0], max_new_tokens=limit)
    with pytest.raises(ValueError, match=rf"{limit - 3}.*{limit}"):
        pipe(CLIPS[0], max_new_tokens=limit - 3)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_new_tokens"):
            pipe(CLIPS[0], max_new_tokens=wrong)


def test_long_recordings_are_cut_in_pauses_and_say_so(pipe: TinyASRPipeline) -> None:
    """Fault 47: every piece is transcribed, and is what it is alone."""
    pipe.drafter = CTCDrafter()
    parts = [babble(7.0, seed) for seed in range(5)]
    sound = torch.cat([piece for part in parts for piece in (part, torch.zeros(int(0.8 * RATE)))])
    output = pipe((sound, RATE), max_new_tokens=6)
    [segments] = output.segments
    assert len(segments) >= 3
    assert [s.start for s in segments[1:]] == [s.end for s in segments[:-1]]
    assert (segments[0].start, segments[-1].end, segments[-1].seam) == (0.0, len(sound) / RATE, "end")
    for segment in segments:
        alone = pipe((sound[round(segment.start * RATE) : round(segment.end * RATE)], RATE), max_new_tokens=6)
        assert alone.tokens[0] == segment.tokens
        assert all(segment.start <= word.start <= word.end <= segment.end + 1e-6 for word in segment.words)
    assert output.texts[0] == " ".join(s.text for s in segments if s.text)
    assert len(output.stats.rows) == len(segments)


def test_words_and_confidence_come_with_the_text(pipe: TinyASRPipeline) -> None:
    oracle(pipe, HEARD, entropy_threshold=5.0)
    output = pipe(CLIPS)
    assert [word.text for word in output.words[3]] == HEARD[3].split()
    times = [t for word in output.words[3] for t in (word.start, word.end)]
    assert times == sorted(times)
    assert output.confidences[3] > 0.9
    pipe.drafter = None
    assert all(0 <= value <= 1 for value in pipe(CLIPS, max_new_tokens=5).confidences)


def test_presets_replace_the_method_of_one_call(pipe: TinyASRPipeline) -> None:
    oracle(pipe, HEARD)
    exact = pipe(CLIPS, preset="exact")
    assert exact.tokens == pipe(CLIPS, speculate=False).tokens
    assert exact.stats.method == "ctc-resync+coupled"
    assert pipe(CLIPS, preset="fast").decision_counts.get("ctc", 0) >= 3
    assert pipe(CLIPS, preset="accurate").decision_counts.get("ctc", 0) == 0
    assert pipe.drafter.gate.threshold == 0  # the pipeline's own is untouched
    with pytest.raises(ValueError, match="exact, accurate, balanced, fast"):
        pipe(CLIPS[0], preset="quick")
    with pytest.raises(ValueError, match="speculate=False"):
        pipe(CLIPS[0], preset="fast", speculate=False)
    with pytest.raises(ValueError, match="quick"):
        tiny_asr(presets={"quick": [0.1, 0.2]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "translate"}, "only transcribes"), ({"prompt": "hello"}, "only transcribes"),
        ({"task": "transcribe", "prompt": "hello"}, "takes no"), ({"language": "en"}, "takes no"),
        ({"temperature": -1.0}, "-1"), ({"top_k": 10**6}, "vocabulary"), ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"segment_seconds": 99.0}, "99"), ({"seed": [1, 2]}, "seed"), ({"callback_on_step_end_tensor_inputs": ["x"]}, "x"),
    ],
)  # fmt: skip
def test_bad_arguments(pipe: TinyASRPipeline, arguments: dict, message: str) -> None:
    pipe.drafter = None
    with pytest.raises(ValueError, match=message):
        pipe(CLIPS[0], **arguments)
    with pytest.raises(TypeError, match="speed"):
        pipe(CLIPS[0], speed="fast")
    with pytest.raises(ValueError, match="empty list"):
        pipe([])


def test_calls_do_not_disturb_one_another(pipe: TinyASRPipeline) -> None:
    """Fault 27: a call, a shorter one, one that fails, one that is interrupted, and the first again."""
    pipe.drafter = CTCDrafter()
    state = torch.get_rng_state()
    first = pipe(CLIPS, max_new_tokens=8).tokens
    pipe(CLIPS[1], max_new_tokens=3)
    with pytest.raises(ValueError, match="finite"):
        pipe([CLIPS[0], (torch.full((RATE,), float("nan")), RATE)])

    def stop(pipeline: Any, step: int, count: int, values: dict) -> None:
        pipeline._interrupt = step == 1

    stopped = pipe(CLIPS, max_new_tokens=8, callback_on_step_end=stop, micro_batch_size=2)
    assert stopped.stats.finish_reasons == ["interrupted"] * 4
    assert pipe(CLIPS, max_new_tokens=8).tokens == first
    assert torch.equal(torch.get_rng_state(), state)


def test_saving(pipe: TinyASRPipeline, tmp_path: Path) -> None:
    made = tiny_asr(drafter=CTCDrafter("resync", 0.3, "max_run"), presets={"balanced": [0.25, 0.3]}, max_seconds=9.0)
    expected = made(CLIPS)
    made.save_pretrained(tmp_path / "asr")
    moved = tmp_path / "moved"
    (tmp_path / "asr").rename(moved)
    for loader in (SpeechRecognitionPipeline, TinyASRPipeline, AutoSpeechRecognitionPipeline):
        loaded = loader.from_pretrained(moved)
        loaded.set_progress_bar_config(disable=True)
        assert isinstance(loaded, TinyASRPipeline)
        assert loaded(CLIPS).tokens == expected.tokens
        assert (loaded.drafter.gate.threshold, loaded.adapter.max_seconds) == (0.3, 9.0)
        assert loaded.preset_parts("balanced")[0].gate.threshold == 0.25
    index = json.loads((moved / "model_index.json").read_text())
    assert index["drafter"] == ["mmspec", "CTCDrafter"]
    assert index["feature_extractor"] == ["mmspec", "LogMelFeatureExtractor"]
    assert str(tmp_path) not in (moved / "model_index.json").read_text()
    (moved / "decoder" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="safetensors"):
        SpeechRecognitionPipeline.from_pretrained(moved)
