"""Every family of recognisers: plain decoding equals its own ``generate``, drafted decoding equals plain, rows equal solo."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import GraniteForCausalLM

from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.pipelines.auto_speech import AutoSpeechRecognitionPipeline
from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline
from mmspec.speech.adapters.granite import missing_divisor
from mmspec.speech.ctc_drafter import CTCDrafter
from tests.oracles.speech import RATE, OracleCTC, babble, tiny_asr
from tests.oracles.speech_families import (
    FAMILIES,
    tiny_granite,
    tiny_qwen,
    tiny_voxtral,
    tiny_whisper,
    tiny_whisper_model,
)

CLIPS = [(babble(seconds, seed), RATE) for seed, seconds in enumerate((1.5, 0.7, 0.2))]
TOKENS = 9


@pytest.fixture(scope="module", params=FAMILIES)
def pipe(request: Any) -> SpeechRecognitionPipeline:
    return FAMILIES[request.param]()


@pytest.fixture(autouse=True)
def without_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def generated(pipe: SpeechRecognitionPipeline, clip: Any) -> list[int]:
    """New tokens by the model's own greedy ``generate``."""
    adapter, (samples, _) = pipe.adapter, clip
    if pipe.model.config.model_type == "whisper":
        features = adapter.features(samples.numpy(), sampling_rate=RATE, return_tensors="pt")["input_features"]
        forced = list(adapter.encode(samples, _task()).tokens)
        made = pipe.model.generate(
            features, do_sample=False, max_new_tokens=TOKENS, **({"language": "en"} if adapter.multilingual else {})
        )[0].tolist()
        return made[len(forced) :] if made[: len(forced)] == forced else made
    prompt = adapter.encode(samples, _task()).prompt
    made = pipe.model.generate(
        inputs_embeds=prompt[None], attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=TOKENS
    )
    return made[0].tolist()


def _task() -> Any:
    from mmspec.speech.adapters.base import SpeechTask

    return SpeechTask()


def english(pipe: SpeechRecognitionPipeline) -> dict[str, Any]:
    return {"language": "en"} if getattr(pipe.adapter, "multilingual", False) else {}


def drafted(pipe: SpeechRecognitionPipeline, texts: list[str]) -> None:
    pipe.drafter = CTCDrafter()
    pipe.drafter.ctc = OracleCTC({len(clip[0]): text for clip, text in zip(CLIPS, texts, strict=True)})


@torch.no_grad()
def test_plain_equals_generate(pipe: SpeechRecognitionPipeline) -> None:
    for clip in CLIPS:
        tokens = pipe(clip, speculate=False, max_new_tokens=TOKENS, **english(pipe)).tokens[0]
        assert tokens == generated(pipe, clip)[: len(tokens)]
        assert len(tokens) == TOKENS or tokens[-1] in pipe.adapter.stop_tokens


@pytest.mark.parametrize("on_fail", ["resync", "resume", "restart"])
def test_drafted_equals_plain_in_a_ragged_batch_and_alone(pipe: SpeechRecognitionPipeline, on_fail: str) -> None:
    pipe.drafter = None
    plain = pipe(CLIPS, speculate=False, max_new_tokens=TOKENS)
    texts = [plain.texts[0], plain.texts[1][:3] + "zz" + plain.texts[1][5:], "something else"]
    drafted(pipe, texts)
    pipe.drafter.register_to_config(on_fail=on_fail)
    for order in ([0, 1, 2], [2, 1, 0]):
        output = pipe([CLIPS[i] for i in order], max_new_tokens=TOKENS)
        assert output.tokens == [plain.tokens[i] for i in order]
        assert output.stats.guarantee.name == "SAME_TOKENS"
    for place, clip in enumerate(CLIPS):
        assert pipe(clip, max_new_tokens=TOKENS).tokens[0] == plain.tokens[place]


def test_sampling_is_the_same_with_and_without_drafts(pipe: SpeechRecognitionPipeline) -> None:
    pipe.drafter = NGramDrafter()
    call: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0.9, "top_k": 8, "seed": 5}
    plain = pipe(CLIPS, speculate=False, **call).tokens
    assert pipe(CLIPS, **call).tokens == plain
    drafted(pipe, ["the four", "a cat", "bring"])
    assert pipe(CLIPS, **call).tokens == plain
    assert [pipe(clip, **{**call, "seed": 5 + i}).tokens[0] for i, clip in enumerate(CLIPS)] == plain


def test_other_answers_than_transcripts_refuse_ctc(pipe: SpeechRecognitionPipeline) -> None:
    """A translation or an answer is not what was said; plain decoding may still do it where the family can."""
    drafted(pipe, ["a", "b", "c"])
    for asked in (
        {"task": "translate", "prompt": "to french"},
        {"prompt": "who speaks?"},
        {"task": "ask", "prompt": "what?"},
    ):
        with pytest.raises(ValueError, match=r"task|transcri|instruction|prompt"):
            pipe(CLIPS[0], **asked)
    with pytest.raises(ValueError, match="ask, transcribe, translate"):
        pipe(CLIPS[0], task="sing")


def test_granite_and_voxtral_answer_questions_plainly() -> None:
    for made in (tiny_granite(), tiny_voxtral()):
        made.drafter = CTCDrafter()
        made.drafter.ctc = OracleCTC({})
        with pytest.raises(ValueError, match="CTCDrafter drafts what was said"):
            made(CLIPS[0], prompt="who speaks?")
        one = made(CLIPS[0], prompt="who speaks?", speculate=False, max_new_tokens=4).tokens
        other = made(CLIPS[0], task="transcribe", speculate=False, max_new_tokens=4).tokens
        assert one != other
        asked = made(CLIPS[0], prompt="write it down", task="transcribe", max_new_tokens=4)
        assert (
            asked.tokens
            == made(CLIPS[0], prompt="write it down", task="transcribe", speculate=False, max_new_tokens=4).tokens
        )


def test_raw_drafts_for_punctuated_text_warn_once_and_stay_right() -> None:
    made = tiny_granite()
    made.drafter = CTCDrafter()
    made.drafter.ctc = OracleCTC({len(CLIPS[0][0]): "the four"})
    plain = made(CLIPS[0], punctuation=True, speculate=False, max_new_tokens=TOKENS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = [made(CLIPS[0], punctuation=True, max_new_tokens=TOKENS) for _ in range(2)]
    assert sum("lack capitals or punctuation" in str(w.message) for w in caught) == 1
    assert [output.tokens for output in outputs] == [plain.tokens] * 2
    assert made(CLIPS[0], speculate=False, max_new_tokens=TOKENS).tokens != plain.tokens  # the prompt is another


def test_granite_drafts_with_its_own_head() -> None:
    for plus in (False, True):
        made = tiny_granite(plus=plus)
        assert made.adapter.ctc is not None
        assert made.adapter.ctc.cased
        plain = made(CLIPS, speculate=False, max_new_tokens=TOKENS)
        made.drafter = CTCDrafter()
        assert made(CLIPS, max_new_tokens=TOKENS).tokens == plain.tokens
        assert all(word.start is not None for word in plain.words[0])


@torch.no_grad()
def test_granite_probabilities_are_those_of_the_language_model() -> None:
    """The speech model leaves out `logits_scaling`; without the division probabilities are of another temperature."""
    made = tiny_granite()
    language = GraniteForCausalLM(made.model.config.text_config).eval()
    language.model.load_state_dict(made.model.model.language_model.state_dict())
    language.lm_head.load_state_dict(made.model.lm_head.state_dict())
    clip = made.adapter.encode(CLIPS[0][0], _task())
    expected = language(inputs_embeds=clip.prompt[None]).logits[0, -1]
    from mmspec.core.guidance import Guidance
    from mmspec.runner.runner import Runner

    def logits(divisor: float) -> torch.Tensor:
        model = made.adapter.decoder(made.model, [clip], torch.device("cpu"))
        model.divisor = divisor
        return Runner(model, Guidance(), 4, 1).prefill().logits[0, 0]

    assert missing_divisor(made.model) == made.adapter.divisor == 8.0
    assert torch.allclose(logits(8.0).softmax(-1), expected.softmax(-1), atol=1e-6)
    assert not torch.allclose(logits(1.0).softmax(-1), expected.softmax(-1), atol=1e-2)


def test_adapters_of_low_rank_stay_on() -> None:
    """Its own generate turns them off whenever it gets no audio."""
    made, calls = tiny_granite(), []
    made.model._hf_peft_config_loaded = True
    made.model.enable_adapters = lambda: calls.append("on")
    made.model.disable_adapters = lambda: calls.append("off")
    again = SpeechRecognitionPipeline(made.model, made.processor, CTCDrafter())
    again.set_progress_bar_config(disable=True)
    again(CLIPS[0], max_new_tokens=6)
    assert set(calls) == {"on"}


def test_languages() -> None:
    whisper, qwen = tiny_whisper(multilingual=True), tiny_qwen()
    tokens = {code: whisper(CLIPS, language=code, max_new_tokens=8).tokens for code in ("en", "fr")}
    assert tokens["en"] != tokens["fr"]
    found = whisper(CLIPS, max_new_tokens=8).tokens  # by itself
    assert all(found[i] in (tokens["en"][i], tokens["fr"][i]) for i in range(3))
    assert whisper(CLIPS, task="translate", language="fr", max_new_tokens=8).tokens != tokens["fr"]
    assert (
        qwen(CLIPS[0], language="german", max_new_tokens=4).texts
        == qwen(CLIPS[0], language="de", max_new_tokens=4).texts
    )
    for made in (whisper, qwen):
        with pytest.raises(ValueError, match="tlh"):
            made(CLIPS[0], language="tlh")
    with pytest.raises(ValueError, match="one language"):
        tiny_whisper()(CLIPS[0], language="en")


def test_whisper_with_an_assistant_model() -> None:
    made = tiny_whisper()
    plain = made(CLIPS, speculate=False, max_new_tokens=TOKENS)
    for seed in (0, 1):  # the same weights, and others
        made.drafter = ModelDrafter(4, model=tiny_whisper_model(seed))
        output = made(CLIPS, max_new_tokens=TOKENS)
        assert output.tokens == plain.tokens
        assert (output.stats.forwards < plain.stats.forwards / 2) == (seed == 0)
        assert output.decisions == ["drafted"] * 3
    small = tiny_whisper_model(0)
    small.config.vocab_size -= 1
    made.drafter = ModelDrafter(4, model=small)
    with pytest.raises(ValueError, match="vocabulary"):
        made(CLIPS[0])


def test_models_that_lack_what_a_drafter_needs_are_named() -> None:
    made = tiny_qwen()
    made.drafter = CTCDrafter()
    with pytest.raises(ValueError, match="has no CTC head"):
        made(CLIPS[0])
    with pytest.raises(ValueError, match="'llama'"):
        SpeechRecognitionPipeline(tiny_asr().decoder, made.processor)


@pytest.mark.parametrize("name", ["granite", "whisper-multilingual"])
def test_a_saved_pipeline_and_a_bare_model_load_and_transcribe_alike(name: str, tmp_path: Any) -> None:
    made = FAMILIES[name]()
    made.drafter = CTCDrafter("resume") if name == "granite" else NGramDrafter()
    expected = made(CLIPS, max_new_tokens=TOKENS)
    made.save_pretrained(tmp_path / "pipe")
    loaded = AutoSpeechRecognitionPipeline.from_pretrained(tmp_path / "pipe")
    made.model.save_pretrained(tmp_path / "model")
    made.processor.save_pretrained(tmp_path / "model")
    bare = AutoSpeechRecognitionPipeline.from_pretrained(tmp_path / "model")
    for pipe in (loaded, bare):
        pipe.set_progress_bar_config(disable=True)
        assert pipe(CLIPS, max_new_tokens=TOKENS).tokens == expected.tokens
    assert type(loaded.drafter) is type(made.drafter)
    text = (tmp_path / "pipe" / "model_index.json").read_text() + (
        tmp_path / "pipe" / "model" / "config.json"
    ).read_text()
    assert str(tmp_path) not in text
    with pytest.raises(ValueError, match="neither a folder"):
        AutoSpeechRecognitionPipeline.from_pretrained("no/such/place")
