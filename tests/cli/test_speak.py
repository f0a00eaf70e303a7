"""``mmspec speak``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner

from mmspec import ResidualDrafter
from mmspec.cli.app import app
from tests.oracles.synthesis import tiny_csm_voice, tiny_heads, tiny_voice

pytestmark = pytest.mark.filterwarnings("ignore:.*were cut")


@pytest.fixture(scope="module")
def voice(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("voice")
    tiny_voice(ResidualDrafter(heads=tiny_heads("chained"))).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def csm(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("csm")
    tiny_csm_voice(ResidualDrafter()).save_pretrained(path)
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["speak", *arguments, "--max-frames", "3", "--seed", "1"])


def test_files(voice: str, tmp_path: Path) -> None:
    file = tmp_path / "no.wav"
    result = run("no", "--model", voice, "-o", str(file))
    assert result.exit_code == 0, result.output
    samples, rate = soundfile.read(file, dtype="int16")
    assert rate == 16_000
    again = run("no", "--model", voice, "-o", str(file))
    assert again.exit_code != 0
    plain = run("no", "--model", voice, "-o", str(tmp_path / "plain.flac"), "--plain")
    assert plain.exit_code == 0
    assert (soundfile.read(tmp_path / "plain.flac", dtype="int16")[0] == samples).all()
    many = run("no", "go", "--model", voice, "-o", str(tmp_path / "folder"))
    assert many.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["go-0002.wav", "no-0001.wav"]


def test_stream(voice: str, tmp_path: Path) -> None:
    raw, file = tmp_path / "no.raw", tmp_path / "no.wav"
    assert run("no", "--model", voice, "--stream", str(raw)).exit_code == 0
    assert run("no", "--model", voice, "-o", str(file)).exit_code == 0
    assert raw.read_bytes() == soundfile.read(file, dtype="int16")[0].astype("<i2").tobytes()
    out = run("no", "--model", voice, "--stream", "-")
    assert out.exit_code == 0
    assert out.stdout_bytes == raw.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "b", "-o", "x.wav"], "name a folder"),
        (["a", "-o", "x.mp3"], ".wav or .flac"),
        (["a", "--depth", "maskgit"], "no `mask_predictor`"),
        (["a", "--depth", "maskgit", "--plain"], "takes no drafts"),
        (["a", "b", "--stream", "-"], "one text"),
        (["a", "--plain", "--drafter", "residual"], "--plain"),
    ],
)
def test_refusals(arguments: list[str], said: str, voice: str) -> None:
    result = run(*arguments, "--model", voice)
    assert result.exit_code != 0
    assert said in result.output + str(result.stderr)


def test_csm(csm: str, voice: str, tmp_path: Path) -> None:
    made = [tmp_path / f"{name}.wav" for name in ("drafted", "plain", "other")]
    asked = (["--speaker", "0"], ["--plain"], ["--speaker", "1"])
    for file, options in zip(made, asked, strict=True):
        result = run("no", "--model", csm, "-o", str(file), "--temperature", "1", "--top-k", "9", *options)
        assert result.exit_code == 0, result.output
    samples = [soundfile.read(file, dtype="int16") for file in made]
    assert samples[0][1] == 24_000
    assert (samples[0][0] == samples[1][0]).all()
    assert (samples[0][0] != samples[2][0]).any()
    for model, options, said in (
        (csm, ["--speed", "2"], "takes no --speed"),
        (csm, ["--depth", "maskgit"], "--depth-steps"),
        (voice, ["--speaker", "1"], "takes no --speaker"),
    ):
        refused = run("no", "--model", model, "-o", str(tmp_path / "no.wav"), *options)
        assert refused.exit_code != 0
        assert said in refused.output + str(refused.stderr)
    assert not (tmp_path / "no.wav").exists()


def test_a_text_that_cannot_be_read(voice: str, tmp_path: Path) -> None:
    raw = tmp_path / "x.raw"
    result = run("привет", "--model", voice, "--stream", str(raw))
    assert result.exit_code != 0
    assert not raw.exists()
