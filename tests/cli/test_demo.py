"""``mmspec demo``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from mmspec import DecodeStats, ResidualDrafter
from mmspec.cli.demo import Pair
from mmspec.cli.demo_reader import answer_questions
from mmspec.cli.demo_rows import KINDS, Row, Twice, summary
from mmspec.cli.demo_speech import Heard, transcribe_samples
from mmspec.cli.demo_video import continue_pictures
from mmspec.cli.demo_voice import speak_sentences
from mmspec.models.loading import embedded_checkpoints
from tests.oracles.saved_video import save_tiny_video
from tests.oracles.saved_vlm import save_tiny_reader
from tests.oracles.synthesis import tiny_voice


def test_demo_shows_equal_pairs(mmspec, tiny):
    result = mmspec("demo", "--model", tiny, "--out", "demo", "--only", "image")
    assert result.exit_code == 0
    assert "3 of 3 pairs are equal" in result.stdout
    assert len(list(Path("demo").glob("*.png"))) == 1 + 2 * 3
    assert Image.open("demo/sheet.png").width > 3 * 10 * 4


def test_a_second_demo_replaces_the_first(mmspec, tiny):
    for seed in (0, 1):
        assert (
            mmspec(
                "demo", "--model", tiny, "--out", "demo", "--prompt", "sun", "--seed", seed, "--only", "image"
            ).exit_code
            == 0
        )
    assert len(list(Path("demo").glob("*.png"))) == 3


def test_an_unequal_pair_fails(mmspec, tiny, monkeypatch):
    monkeypatch.setattr(Pair, "equal", False)
    result = mmspec("demo", "--model", tiny, "--quick", "--only", "image")
    assert result.exit_code == 1
    assert "0 of 3 pairs" in result.stdout


def test_demo_transcribes_shipped_recordings(mmspec, tiny, monkeypatch):
    result = mmspec("demo", "--quick", "--only", "asr")
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


def test_the_demo_has_a_row_for_each_part_that_was_asked_for(mmspec, tiny, monkeypatch):
    monkeypatch.setattr(
        "mmspec.cli.demo_voice.speak_sentences", lambda *_: Row("text to speech", 2, 1, (9, 3), (3, 1))
    )
    result = mmspec("demo", "--model", tiny, "--quick", "--prompt", "sun", "--only", "image", "--only", "tts")
    assert result.exit_code == 1  # one of two sentences differs
    assert "1 of 1" in result.stdout
    assert "1 of 2" in result.stdout
    assert "speech recognition" not in result.stdout


def test_a_part_that_does_not_exist_is_refused(mmspec, tiny):
    result = mmspec("demo", "--model", tiny, "--only", "smell")
    assert result.exit_code == 2
    assert "image, asr, tts, vlm, video" in result.stderr


def test_all_parts_run_by_default(monkeypatch):
    from mmspec.cli.demo import _parts

    assert _parts(None, True) == list(KINDS)
    assert _parts(None, False) == ["image", "vlm", "video"]
    assert _parts(["video", "image"], True) == ["image", "video"]


def test_sentences_are_spoken_both_ways(tmp_path):
    tiny_voice(ResidualDrafter()).save_pretrained(tmp_path / "voice")
    row = speak_sentences(1, tmp_path / "out", model=str(tmp_path / "voice"))
    assert (row.count, row.same) == (1, 1)
    assert 0 < row.forwards[1] <= row.forwards[0]
    assert (tmp_path / "out" / "voice-1.wav").stat().st_size > 1000


def test_pictures_are_continued_both_ways(tmp_path):
    row = continue_pictures(2, tmp_path / "out", model=str(save_tiny_video(tmp_path / "video")))
    assert (row.count, row.same) == (2, 2)
    assert 0 < row.forwards[1] < row.forwards[0]
    assert (tmp_path / "out" / "clip-2.gif").read_bytes().startswith(b"GIF")


def test_questions_are_answered_both_ways_or_the_row_says_what_is_missing(tmp_path):
    row = answer_questions(2, model=str(save_tiny_reader(tmp_path / "reader")))
    assert (row.count, row.same) == (2, 2)
    assert 0 < row.forwards[1] <= row.forwards[0]
    missing = answer_questions(2, model="mmspec/no-such-model")
    assert "mmspec/no-such-model" in missing.note
    assert missing.equal
    if "mmspec/tiny-vlm" not in embedded_checkpoints():
        assert "mmspec/tiny-vlm" in answer_questions(1).note


def test_the_summary_counts_every_pair_and_divides_plain_by_speculative():
    def output(forwards, seconds):
        return SimpleNamespace(stats=DecodeStats(forwards=forwards, seconds={"total": seconds}))

    pairs = [Twice("a", output(8, 4.0), output(2, 1.0), True), Twice("b", output(8, 4.0), output(2, 1.0), False)]
    row = Row.of("video", pairs)
    assert (row.count, row.same, row.forwards, row.seconds) == (2, 1, (16, 4), (8.0, 2.0))
    assert not row.equal
    columns = [list(column.cells) for column in summary([row, Row("x", note="missing")]).columns]
    assert [str(cells[0]) for cells in columns] == ["video", "1 of 2", "16", "4", "4.00", "8.00", "2.00", "4.00"]
    assert str(columns[1][1]) == "missing"
