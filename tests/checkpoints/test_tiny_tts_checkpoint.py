"""The embedded voice as shipped: it speaks in time, drafts pay and change no sample, and the card says what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mmspec import TextToSpeechPipeline
from mmspec.models.loading import EMBEDDED

FOLDER = EMBEDDED / "tiny-tts"
SENTENCES = json.loads((FOLDER / "sentences.json").read_text())


@pytest.fixture(scope="module")
def pipe() -> TextToSpeechPipeline:
    made = TextToSpeechPipeline.from_pretrained("mmspec/tiny-tts")
    made.set_progress_bar_config(disable=True)
    return made


def test_files_are_small_and_licensed() -> None:
    assert max(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 12_000_000
    assert "Allison Smith" in (FOLDER / "NOTICE").read_text()
    assert "by-sa/3.0" in (FOLDER / "LICENSE").read_text()
    assert len(SENTENCES) == 50
    for path in FOLDER.rglob("*.json"):
        assert "_name_or_path" not in path.read_text() or path.name == "training.json"


def test_drafts_pay_and_change_no_sample(pipe: TextToSpeechPipeline) -> None:
    asked = {"seed": 5, "output_type": "pcm"}
    spec, plain = pipe(SENTENCES[:3], **asked), pipe(SENTENCES[:3], speculate=False, **asked)
    assert [a.tobytes() for a in spec.audios] == [a.tobytes() for a in plain.audios]
    assert spec.finish_reasons == ["stop"] * 3
    assert all(0.04 < seconds / len(text) < 0.2 for seconds, text in zip(spec.seconds, SENTENCES[:3], strict=True))
    assert all(np.abs(audio).max() > 3000 for audio in spec.audios)
    alone = pipe(SENTENCES[0], **asked)
    assert alone.audios[0].tobytes() == spec.audios[0].tobytes()
    frames, books = alone.tokens[0].shape
    assert frames * (books - 1) / alone.stats.calls["predictor"] >= 2.7


def test_the_drafter_is_small(pipe: TextToSpeechPipeline) -> None:
    heads, talker = (sum(p.numel() for p in part.parameters()) for part in (pipe.drafter.heads, pipe.talker))
    assert heads <= 0.01 * talker


def test_the_card_says_what_was_measured() -> None:
    card = (FOLDER / "README.md").read_text()
    for name, entry in json.loads((FOLDER / "training.json").read_text())["listening"].items():
        if isinstance(entry, dict) and "wer" in entry:
            assert f"| {name.replace('_', ' ')} | {entry['items']} | {entry['wer']:.3f} |" in card


@pytest.mark.slow
def test_it_is_understood(pipe: TextToSpeechPipeline) -> None:
    """An independent recogniser hears most words; it hears few of another sentence's."""
    pytest.importorskip("pocketsphinx")
    from mmspec.bench.wer import error_rates
    from mmspec.training.asr_eval import pocketsphinx_transcriber

    texts = SENTENCES[:10]
    heard = pocketsphinx_transcriber()(pipe(texts, seed=0, output_type="pt").audios)
    assert error_rates(texts, heard)["wer"] < 0.7
    assert error_rates(texts[1:] + texts[:1], heard)["wer"] > 0.85
