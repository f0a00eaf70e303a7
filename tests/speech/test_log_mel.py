"""Features of speech against an independent implementation, and independent of batch mates and loudness."""

import numpy as np
import pytest
import torch
from transformers.audio_utils import mel_filter_bank, spectrogram

from mmspec.speech.log_mel import LogMelFeatureExtractor, mel_filters


def tone(seconds: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(int(seconds * 16_000)) / 16_000
    return 0.3 * torch.sin(2 * torch.pi * 440 * time) + 0.05 * torch.randn(len(time), generator=generator)


def test_filters_are_those_of_transformers() -> None:
    ours = mel_filters(80, 512, 16_000, 50.0, 7000.0)
    theirs = mel_filter_bank(257, 80, 50.0, 7000.0, 16_000, norm=None, mel_scale="htk")
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-6)


def test_frames_are_those_of_a_direct_transform() -> None:
    extractor, waveform = LogMelFeatureExtractor(), tone(0.3)
    power = spectrogram(
        waveform.numpy().astype(np.float64),
        window=np.pad(torch.hann_window(400, dtype=torch.float64).numpy(), (56, 56)),
        frame_length=512,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=True,
        pad_mode="reflect",
        mel_filters=mel_filter_bank(257, 80, 50.0, 7000.0, 16_000, norm=None, mel_scale="htk"),
        mel_floor=1e-10,
    )
    expected = extractor.normalise(torch.from_numpy(np.log10(power)).T)
    assert torch.allclose(extractor.log_mel(waveform).double(), expected, atol=1e-4)


def test_a_row_is_what_it_is_alone() -> None:
    extractor = LogMelFeatureExtractor()
    waveforms = [tone(0.5, 1), tone(1.3, 2), tone(0.02, 3)]
    features, lengths = extractor(waveforms, 16_000)
    for row, length, waveform in zip(features, lengths, waveforms, strict=True):
        alone, (own,) = extractor([waveform], 16_000)
        assert own == length
        assert torch.equal(row[:length], alone[0])
        assert not row[length:].any()


def test_loudness_does_not_matter() -> None:
    extractor = LogMelFeatureExtractor()
    loud, _ = extractor([tone(0.5)], 16_000)
    quiet, _ = extractor([tone(0.5) * 0.1], 16_000)
    assert torch.allclose(loud, quiet, atol=1e-3)
    assert loud.max() == 1
    assert loud.min() >= -1


def test_settings_survive_saving(tmp_path) -> None:
    LogMelFeatureExtractor(num_mels=40, stack=4, f_max=6000.0).save_pretrained(tmp_path)
    loaded = LogMelFeatureExtractor.from_pretrained(tmp_path)
    assert (loaded.config.num_mels, loaded.config.stack, loaded.config.f_max) == (40, 4, 6000.0)
    assert loaded.feature_size == 160
    assert loaded.seconds_per_feature == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("waveform", "rate", "error", "text"),
    [
        (torch.zeros(16_000), 8000, ValueError, "needs 16000"),
        (torch.zeros(2, 16_000), 16_000, ValueError, "mono"),
        (torch.zeros(100), 16_000, ValueError, "320 <= n"),
        (torch.full((16_000,), float("nan")), 16_000, ValueError, "finite"),
        (torch.zeros(16_000, dtype=torch.int16), 16_000, TypeError, "float"),
    ],
)
def test_bad_waveforms_are_refused(waveform, rate, error, text) -> None:
    with pytest.raises(error, match=text):
        LogMelFeatureExtractor()([waveform], rate)


@pytest.mark.parametrize("settings", [{"num_mels": 0}, {"win_length": 1024}, {"f_min": 9000.0}, {"stack": -1}])
def test_bad_settings_are_refused(settings) -> None:
    with pytest.raises(ValueError):
        LogMelFeatureExtractor(**settings)


def test_no_waveform_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        LogMelFeatureExtractor()([], 16_000)
