"""``mmspec demo``."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from mmspec.cli.demo import Pair
from mmspec.cli.demo_speech import Heard, transcribe_samples


def test_demo_shows_equal_pairs(mmspec, tiny):
    result = mmspec("demo", "--model", tiny, "--out", "demo", "--no-speech")
    assert result.exit_code == 0
    assert "3 of 3 pairs are equal" in result.stdout
    assert len(list(Path("demo").glob("*.png"))) == 1 + 2 * 3
    assert Image.open("demo/sheet.png").width > 3 * 10 * 4


def test_a_second_demo_replaces_the_first(mmspec, tiny):
    for seed in (0, 1):
        assert (
            mmspec(
                "demo", "--model", tiny, "--out", "demo", "--prompt", "sun", "--seed", seed, "--no-speech"
            ).exit_code
            == 0
        )
    assert len(list(Path("demo").glob("*.png"))) == 3


def test_an_unequal_pair_fails(mmspec, tiny, monkeypatch):
    monkeypatch.setattr(Pair, "equal", False)
    result = mmspec("demo", "--model", tiny, "--quick", "--no-speech")
    assert result.exit_code == 1
    assert "0 of 3 pairs" in result.stdout


def test_demo_transcribes_shipped_recordings(mmspec, tiny, monkeypatch):
    result = mmspec("demo", "--model", tiny, "--quick", "--prompt", "sun")
    assert result.exit_code == 0
    assert "3 of 3 transcripts are equal" in result.stdout
    assert "human-0.flac" in result.stdout
    monkeypatch.setattr(Heard, "equal", False)
    assert transcribe_samples(1) is False


def test_demo_without_prompts(mmspec, tiny, monkeypatch):
    Path("empty").mkdir()
    Path("empty/model_index.json").write_text("{}")
    result = mmspec("demo", "--model", "./empty")
    assert result.exit_code == 2
    assert "--prompt" in result.stderr
