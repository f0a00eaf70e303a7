"""``mmspec transcribe``: formats, files that cannot be read, and where results go."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from typer.testing import CliRunner

from mmspec.cli.app import app
from mmspec.speech.subtitles import cues, subtitles, timestamp
from mmspec.speech.words import Word
from tests.oracles.saved_speech import save_tiny_recogniser
from tests.oracles.speech import RATE, babble


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return save_tiny_recogniser(tmp_path_factory.mktemp("model") / "asr")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: Any) -> list[Path]:
    place = tmp_path_factory.mktemp("sounds")
    for number in range(2):
        soundfile.write(place / f"{number}.wav", babble(1.0 + number, number).numpy(), RATE)
    return sorted(place.glob("*.wav"))


def run(folder: Path, *arguments: Any) -> Any:
    return CliRunner().invoke(app, ["transcribe", *map(str, arguments), "--model", str(folder), "--device", "cpu"])


def test_text_of_one_and_of_several(folder: Path, recordings: list[Path]) -> None:
    one = run(folder, recordings[0])
    assert one.exit_code == 0, one.output
    both = run(folder, *recordings, "--preset", "exact")
    lines = both.stdout.splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(file) for file in recordings]
    assert lines[0].split(": ")[1] == one.stdout.strip()
    assert run(folder, *recordings, "--plain").stdout == both.stdout


def test_json_holds_everything(folder: Path, recordings: list[Path]) -> None:
    done = run(folder, *recordings, "--json", "--preset", "balanced")
    entries = json.loads(done.stdout[done.stdout.index("[") :])
    assert [entry["file"] for entry in entries] == [str(file) for file in recordings]
    assert entries[1]["seconds"] == pytest.approx(2.0)
    assert {"text", "confidence", "decision", "segments", "stats"} <= entries[0].keys()
    words = entries[0]["segments"][0]["words"]
    assert " ".join(word["text"] for word in words) == entries[0]["text"]


def test_subtitles_and_files(folder: Path, recordings: list[Path], tmp_path: Path) -> None:
    srt = run(folder, recordings[1], "--srt")
    assert re.search(r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\n\w+", srt.output)
    assert run(folder, recordings[1], "--vtt").stdout.startswith("WEBVTT")
    done = run(folder, *recordings, "--srt", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["0.srt", "1.srt"]
    again = run(folder, *recordings, "--srt", "--out", tmp_path / "out")
    assert (again.exit_code, "--overwrite" in again.output) == (2, True)
    assert run(folder, *recordings, "--srt", "--out", tmp_path / "out", "--overwrite").exit_code == 0


def test_what_cannot_be_read_is_reported_and_the_rest_is_done(
    folder: Path, recordings: list[Path], tmp_path: Path
) -> None:
    """Faults 46 and 48: one bad file does not cost the others; the exit code says that something failed."""
    broken, text, empty, nan = (tmp_path / name for name in ("broken.wav", "text.mp3", "empty.flac", "nan.wav"))
    broken.write_bytes(recordings[0].read_bytes()[:900])
    text.write_text("no sound")
    empty.write_bytes(b"")
    soundfile.write(nan, torch.full((800,), float("nan")).numpy(), RATE, subtype="FLOAT")
    bad = [broken, text, empty, nan, tmp_path / "missing.wav", tmp_path]
    done = run(folder, bad[0], recordings[0], *bad[1:], recordings[1])
    assert done.exit_code == 1
    for file in bad:
        assert str(file) in done.output
    assert (
        sum(
            line.startswith(f"{recordings[0]}: ") or line.startswith(f"{recordings[1]}: ")
            for line in done.output.splitlines()
        )
        == 2
    )
    assert "6 of 8 recordings were not transcribed" in done.output
    assert run(folder, *bad).exit_code == 1


def test_silent_files_are_transcribed_to_nothing(folder: Path, tmp_path: Path) -> None:
    for name, samples, rate in (
        ("zeros", torch.zeros(RATE), RATE),
        ("one", torch.zeros(1), 44_100),
        ("none", torch.zeros(0), RATE),
    ):
        soundfile.write(tmp_path / f"{name}.wav", samples.numpy(), rate)
    done = run(folder, *sorted(tmp_path.glob("*.wav")), "--json")
    assert done.exit_code == 0, done.output
    entries = json.loads(done.stdout[done.stdout.index("[") :])
    assert [(entry["text"], entry["decision"]) for entry in entries] == [("", "silence")] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--srt", "--vtt"], "Choose one"), (["--plain", "--preset", "fast"], "--plain"), (["--preset", "quick"], "balanced"),
     (["--srt"], "--out"), (["--language", "en"], "language")],
)  # fmt: skip
def test_wrong_calls(folder: Path, recordings: list[Path], options: list[str], message: str) -> None:
    done = run(folder, *recordings, *options)
    assert done.exit_code in (1, 2)
    assert message in done.output


def test_two_files_of_one_name_do_not_overwrite_each_other(
    folder: Path, recordings: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / recordings[0].name
    other.write_bytes(recordings[0].read_bytes())
    done = run(folder, recordings[0], other, "--out", tmp_path / "out")
    assert (done.exit_code, "both go to" in done.output) == (2, True)


def words(*spans: tuple[str, float, float]) -> list[Word]:
    return [Word(text, start, end, 1.0) for text, start, end in spans]


def test_cues_end_at_pauses_at_sentences_and_when_full() -> None:
    spoken = words(("one", 0.0, 0.3), ("two.", 0.4, 0.6), ("three", 0.7, 0.9), ("four", 2.5, 2.6), *[
        (f"word{i:02d}", 3 + 0.3 * i, 3.2 + 0.3 * i) for i in range(30)
    ])  # fmt: skip
    made = cues(spoken)
    assert [cue.text for cue in made[:3]] == [
        "one two.",
        "three",
        "four word00 word01 word02 word03 word04 word05 word06 word07 word08 word09 word10",
    ]
    assert all(len(cue.text) <= 84 and cue.end - cue.start <= 6.0 for cue in made)
    assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(made))
    assert made[2].start == 2.5
    assert timestamp(3723.0456, ",") == "01:02:03,046"
    assert subtitles(words(("one", 0.0, 0.3)), "vtt") == "WEBVTT\n\n00:00:00.000 --> 00:00:00.300\none\n"
    assert subtitles([], "srt") == ""
    with pytest.raises(ValueError, match="CTC head"):
        subtitles([Word("one")], "srt")
    with pytest.raises(ValueError, match="srt, vtt"):
        subtitles([], "ass")
