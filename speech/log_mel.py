"""Log-mel features of speech in plain torch, in stacks of consecutive frames.

Magnitudes: Stevens, Volkmann and Newman, 1937, "A Scale for the Measurement of the Psychological Magnitude Pitch"; the
HTK form of the scale. Everything is normalised by the loudest cell of the recording, so loudness does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import SchedulerMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor

MAX_SECONDS = 600
"""Longest recording that is accepted in one piece; attention would need too much memory beyond."""


def mel_filters(num_mels: int, n_fft: int, sample_rate: int, f_min: float, f_max: float) -> Tensor:
    """Triangular filters on the HTK mel scale, peak 1.

    Returns:
        Weights (n_fft // 2 + 1, num_mels).
    """
    low, high = (2595.0 * torch.log10(1 + torch.tensor(f, dtype=torch.float64) / 700) for f in (f_min, f_max))
    steps = torch.arange(num_mels + 2, dtype=torch.float64) / (num_mels + 1)
    edges = 700 * (10 ** ((low + (high - low) * steps) / 2595) - 1)  # Hz
    bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64)[:, None] * sample_rate / n_fft
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()


class LogMelFeatureExtractor(SchedulerMixin, ConfigMixin):
    """Turns mono waveforms into stacked log-mel frames; saved beside the model whose input it makes.

    Args:
        sample_rate: Samples a second that waveforms must have.
        num_mels: Mel bands.
        n_fft, win_length, hop_length: Samples of the transform, its Hann window and its step.
        f_min, f_max: Band edges of the lowest and highest filter, Hz.
        dynamic_range: Decades of power below the loudest cell that are told apart.
        stack: Consecutive frames joined into one feature vector; the feature step is ``hop_length * stack`` samples.

    Raises:
        ValueError: If a setting is out of range.
    """

    config_name = "feature_extractor_config.json"
    has_compatibles = False

    @register_to_config
    def __init__(
        self,
        sample_rate: int = 16_000,
        num_mels: int = 80,
        n_fft: int = 512,
        win_length: int = 400,
        hop_length: int = 160,
        f_min: float = 50.0,
        f_max: float = 7000.0,
        dynamic_range: float = 6.0,
        stack: int = 2,
    ) -> None:
        for name in ("sample_rate", "num_mels", "n_fft", "win_length", "hop_length", "dynamic_range", "stack"):
            if getattr(self.config, name) <= 0:
                raise ValueError(f"`{name}` is {getattr(self.config, name)}; it must be positive.")
        if win_length > n_fft:
            raise ValueError(f"`win_length` is {win_length}; it must be at most `n_fft` = {n_fft}.")
        if not 0 <= f_min < f_max <= sample_rate / 2:
            raise ValueError(
                f"`f_min`, `f_max` are {f_min}, {f_max}; they must satisfy 0 <= f_min < f_max <= rate / 2."
            )
        self._filters = mel_filters(num_mels, n_fft, sample_rate, f_min, f_max)
        self._window = torch.hann_window(win_length)

    @classmethod
    def from_pretrained(cls, folder: Any, **kwargs: Any) -> LogMelFeatureExtractor:
        """Load the settings saved in ``folder``."""
        extractor = cls.from_config(cls.load_config(folder, **kwargs))
        assert isinstance(extractor, LogMelFeatureExtractor)
        return extractor

    def save_pretrained(self, folder: Any, **kwargs: Any) -> None:
        """Write the settings to ``folder``."""
        self.save_config(folder, **kwargs)

    @property
    def feature_size(self) -> int:
        """Numbers a feature vector has."""
        return self.config.num_mels * self.config.stack

    @property
    def seconds_per_feature(self) -> float:
        """Time between feature vectors."""
        return self.config.hop_length * self.config.stack / self.config.sample_rate

    def log_mel(self, waveform: Tensor) -> Tensor:
        """Unstacked frames of one waveform.

        Args:
            waveform: Samples (n,) in [-1, 1], n at least 1.

        Returns:
            Frames (n // hop_length + 1, num_mels); the loudest cell is 1, the floor -1.
        """
        n_fft = self.config.n_fft
        samples = waveform.float()
        # reflection needs more samples than it mirrors; zeros are what a recording of nothing would have there
        samples = F.pad(samples, (0, max(0, n_fft // 2 + 1 - len(samples))))
        samples = F.pad(samples[None], (n_fft // 2, n_fft // 2), mode="reflect")[0]
        frames = samples.unfold(0, n_fft, self.config.hop_length)[: len(waveform) // self.config.hop_length + 1]
        inset = (n_fft - self.config.win_length) // 2
        window = F.pad(self._window, (inset, n_fft - self.config.win_length - inset))
        power = torch.fft.rfft(frames * window).abs().square()
        return self.normalise((power @ self._filters).clamp(min=1e-10).log10())

    def normalise(self, decades: Tensor) -> Tensor:
        """Map log10 powers of one recording to [-1, 1], relative to the loudest cell."""
        relative = (decades - decades.max()).clamp(min=-self.config.dynamic_range)
        return 2 * relative / self.config.dynamic_range + 1

    def stacked(self, frames: Tensor) -> Tensor:
        """Join frames (t, num_mels) into features (t // stack, feature_size); frames left over are dropped."""
        stack = self.config.stack
        return frames[: len(frames) // stack * stack].reshape(-1, self.feature_size)

    def __call__(self, waveforms: Tensor | Sequence[Tensor], sample_rate: int) -> tuple[Tensor, Tensor]:
        """Features of a batch; each row is what it would be alone.

        Args:
            waveforms: Mono waveforms (n,), of any lengths of at least ``hop_length * stack`` samples.
            sample_rate: Samples a second of the waveforms.

        Returns:
            Features (B, T, feature_size), zero behind each row's end, and row lengths (B,).

        Raises:
            TypeError: If a waveform is not a float tensor.
            ValueError: If the rate differs, or a waveform is not mono, not finite, too short or too long.
        """
        if sample_rate != self.config.sample_rate:
            raise ValueError(f"`sample_rate` is {sample_rate}; this model needs {self.config.sample_rate}: resample.")
        rows = [self.stacked(self.log_mel(self._checked(waveform))) for waveform in waveforms]
        if not rows:
            raise ValueError("`waveforms` is empty; give at least one.")
        lengths = torch.tensor([len(row) for row in rows])
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths

    def _checked(self, waveform: Tensor) -> Tensor:
        if not isinstance(waveform, Tensor) or not waveform.is_floating_point():
            raise TypeError(f"`waveforms` must hold float tensors in [-1, 1], got {type(waveform).__name__}.")
        least, most = self.config.hop_length * self.config.stack, MAX_SECONDS * self.config.sample_rate
        if waveform.ndim != 1 or not least <= len(waveform) <= most:
            raise ValueError(
                f"a waveform has shape {tuple(waveform.shape)}; it must be mono (n,) with {least} <= n <= {most}."
            )
        if not torch.isfinite(waveform).all():
            raise ValueError("a waveform holds values that are not finite.")
        return waveform.cpu()
