"""Recordings of every kind become the same samples; what is no recording is refused by name."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from mmspec.speech.audio import Clip, load_audio
from tests.oracles.speech import RATE, babble

SOUND = babble(1.0)


def stored(samples: Tensor, rate: int, format: str, subtype: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.numpy(), rate, format=format, subtype=subtype)
    return buffer.getvalue()


def near(clip: Clip, tolerance: float) -> bool:
    error = clip.samples[:RATE] - SOUND[: len(clip.samples)]
    return len(clip.samples) == RATE and float(error.square().mean().sqrt()) < tolerance


@pytest.mark.parametrize(
    ("format", "subtype", "tolerance"),
    [("WAV", "PCM_16", 1e-4), ("WAV", "PCM_24", 1e-6), ("WAV", "FLOAT", 1e-7), ("WAV", "PCM_U8", 5e-3),
     ("FLAC", "PCM_24", 1e-6), ("OGG", "VORBIS", 2e-2)],
)  # fmt: skip
def test_files_of_every_kind(format: str, subtype: str, tolerance: float, tmp_path: Path) -> None:
    content = stored(SOUND, RATE, format, subtype)
    file = tmp_path / f"a.{format.lower()}"
    file.write_bytes(content)
    for source in (file, str(file), content, bytearray(content), io.BytesIO(content)):
        assert near(load_audio(source, RATE), tolerance)
    assert load_audio(file, RATE).name == str(file)


def test_mp3(tmp_path: Path) -> None:
    content = stored(babble(2.0), RATE, "MP3", "MPEG_LAYER_III")
    clip = load_audio(content, RATE)
    assert abs(clip.seconds - 2.0) < 0.15
    assert float(clip.samples.std()) == pytest.approx(float(babble(2.0).std()), rel=0.1)


@pytest.mark.parametrize(
    "array",
    [SOUND, SOUND.numpy(), SOUND.double(), (SOUND * 32768).short(), (SOUND.double() * 2**31).int().numpy(),
     ((SOUND * 128) + 128).round().to(torch.uint8), SOUND.tolist(), torch.stack([SOUND, SOUND]),
     torch.stack([SOUND, SOUND], 1).numpy(), SOUND[None], SOUND[:, None]],
)  # fmt: skip
def test_arrays_of_every_kind(array: Any) -> None:
    for source, rate in (((array, RATE), None), ({"array": array, "sampling_rate": RATE}, None), (array, RATE)):
        assert near(load_audio(source, RATE, rate), 5e-3)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_any_rate_keeps_duration_and_sound(rate: int) -> None:
    """Fault 45: the number of samples is measured in seconds, and the pitch stays."""
    time = torch.arange(rate * 2) / rate
    tone = 0.5 * (2 * torch.pi * 440 * time).sin()
    clip = load_audio((torch.stack([tone, tone], 1).numpy().astype(np.float64), rate), RATE)
    assert abs(len(clip.samples) - 2 * RATE) <= 1
    spectrum = torch.fft.rfft(clip.samples).abs()
    assert float(spectrum.argmax()) / 2 == pytest.approx(440, abs=1)
    assert float(clip.samples[1000:-1000].std()) == pytest.approx(0.5 / 2**0.5, rel=0.02)


def test_channels_are_averaged_and_a_clear_offset_is_removed() -> None:
    left, right = SOUND, torch.zeros_like(SOUND)
    assert torch.allclose(load_audio((torch.stack([left, right]), RATE), RATE).samples, SOUND / 2, atol=1e-6)
    centred = SOUND - SOUND.mean()
    assert torch.allclose(load_audio((centred + 0.2, RATE), RATE).samples, centred, atol=1e-6)
    assert torch.equal(load_audio((centred, RATE), RATE).samples, centred)


@pytest.mark.parametrize(
    ("source", "rate", "message"),
    [
        (SOUND, None, "rate"),
        ((SOUND, 12.5), None, "12.5"),
        ((SOUND, 12), None, "1000..768000"),
        ((SOUND * 30_000, RATE), None, r"\[-1, 1\]"),
        ((torch.full((9,), float("nan")), RATE), None, "sample 0"),
        ((torch.tensor([0.0, 0.1, float("inf")]), RATE), None, "sample 2"),
        ((torch.zeros(20, 30), RATE), None, r"\(20, 30\)"),
        ((torch.zeros(3, 4), RATE), None, "told apart"),
        ((SOUND, RATE, 1), None, r"\(array, rate\)"),
        ({"array": SOUND}, None, "sampling_rate"),
        (b"", None, "empty"),
        (b"this is no sound at all" * 20, None, "not audio"),
        (stored(SOUND, RATE, "WAV", "PCM_16")[:500], None, "cut short"),
        (stored(SOUND, RATE, "WAV", "PCM_16")[:30], None, "cut short"),
        (b"RIFF" + b"\x00" * 200, None, "not audio"),
        (stored(SOUND, RATE, "FLAC", "PCM_16")[:40], None, "not audio"),
        ((torch.zeros(9, dtype=torch.long), RATE), None, "int16"),
        (3.5, RATE, "path"),
    ],
)
def test_what_is_no_recording_is_refused(source: Any, rate: int | None, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        load_audio(source, RATE, rate, number=7)
    assert "audio[7]" in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.wav"):
        load_audio(tmp_path / "nothing.wav", RATE)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        load_audio(tmp_path, RATE)


def test_empty_recordings_are_recordings() -> None:
    assert load_audio((torch.zeros(0), RATE), RATE).seconds == 0
    assert load_audio(stored(torch.zeros(0), RATE, "WAV", "PCM_16"), RATE).seconds == 0
    assert load_audio((torch.zeros(1), 44_100), RATE).seconds < 1e-3
