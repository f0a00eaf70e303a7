"""Is there speech at all, and where does a long recording pause? Plain signal measures, no model.

Speech is uneven: the energy in any band moves by many decibels within a second. Silence, noise and hum are even. The
pauses at which recordings are split are found from the left, so a recording that arrives bit by bit is split at the
same places as one that is there at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

_FRAME = 0.025  # seconds
_BANDS = 8
_SHORTEST = 0.05  # seconds; nothing shorter is a word
_SILENT = -60.0  # dB of full scale
_EVEN = 3.0  # dB of spread over time; white noise has about 1, speech about 10
_ACTIVE = 50.0  # dB below the loudest band that still count as heard
_LONG_ENOUGH = 0.3  # seconds; shorter sounds may be even and still be speech


def holds_speech(samples: Tensor, sampling_rate: int) -> bool:
    """Whether a clip (n,) may hold speech: it is not too short, not silent, and not the same throughout."""
    seconds = len(samples) / sampling_rate
    if seconds < _SHORTEST:
        return False
    frames = _frames(samples, sampling_rate)
    level = 10 * frames.square().mean(-1).clamp_min(1e-12).log10()
    if float(level.max()) < _SILENT:
        return False
    if seconds < _LONG_ENOUGH:
        return True
    power = torch.fft.rfft(frames * torch.hann_window(frames.shape[1])).abs().square()[:, 1:]
    size = power.shape[1] // _BANDS
    bands = power[:, : size * _BANDS].reshape(len(power), _BANDS, size).mean(-1)
    decibels = 10 * bands.clamp_min(1e-12).log10()  # (frames, bands)
    mean = decibels.mean(0)
    heard = mean > mean.max() - _ACTIVE
    return float(decibels.std(0)[heard].median()) > _EVEN


def _frames(samples: Tensor, sampling_rate: int) -> Tensor:
    """Frames (m, size) with half overlap."""
    size = int(_FRAME * sampling_rate)
    return samples.unfold(0, size, size // 2)


@dataclass(frozen=True)
class Segment:
    """Samples ``first`` to before ``last`` of a recording.

    ``seam`` says how it ends: ``end`` of the recording, ``pause``: in the middle of a pause, ``forced``: at the
    quietest place there was, which may lie inside a word.
    """

    first: int
    last: int
    seam: str


@dataclass
class PauseSplitter:
    """Cut a recording, as it arrives, into segments that end in pauses.

    Args:
        sampling_rate: Samples a second.
        max_seconds: Longest segment.
        min_seconds: A segment ends at the first pause behind this.
        pause_seconds: Shortest pause to cut at.

    Raises:
        ValueError: If the lengths do not fit one another.
    """

    sampling_rate: int
    max_seconds: float
    min_seconds: float
    pause_seconds: float = 0.4
    _levels: list[float] = field(default_factory=list)
    _rest: Tensor = field(default_factory=lambda: torch.zeros(0))
    _start: int = 0  # of the open segment, in frames

    #: seconds of a frame here
    hop = 0.02
    #: a frame is quiet this many dB below the loudest of its segment, or below this level
    below_peak = 30.0
    floor = -55.0

    def __post_init__(self) -> None:
        if not 0 < self.pause_seconds <= self.min_seconds < self.max_seconds:
            raise ValueError(
                f"`pause_seconds` <= `min_seconds` < `max_seconds` must hold, got {self.pause_seconds}, "
                f"{self.min_seconds} and {self.max_seconds}."
            )
        self._size = int(self.hop * self.sampling_rate)
        self.received = 0

    def feed(self, samples: Tensor) -> list[Segment]:
        """Take the next samples (n,) and return the segments that they complete."""
        self.received += len(samples)
        pending = torch.cat([self._rest, samples])
        count = len(pending) // self._size
        frames = pending[: count * self._size].reshape(count, self._size)
        self._rest = pending[count * self._size :]
        found: list[Segment] = []
        for level in (10 * frames.square().mean(-1).clamp_min(1e-12).log10()).tolist():
            self._levels.append(level)
            if (cut := self._cut()) is not None:
                frame, seam = cut
                found.append(Segment(self._start * self._size, frame * self._size, seam))
                self._levels, self._start = self._levels[frame - self._start :], frame
        return found

    def finish(self) -> list[Segment]:
        """The last segment, if anything is left."""
        first = self._start * self._size
        return [Segment(first, self.received, "end")] if first < self.received else []

    def _cut(self) -> tuple[int, str] | None:
        """Where the open segment ends, if its newest frame decides that."""
        levels, pause = self._levels, round(self.pause_seconds / self.hop)
        if len(levels) * self.hop >= self.min_seconds:
            quiet = max(max(levels) - self.below_peak, self.floor)
            if all(level < quiet for level in levels[-pause:]):
                return self._start + len(levels) - pause // 2, "pause"
        if (len(levels) + 1) * self.hop > self.max_seconds:
            width = max(1, pause // 4)
            half = len(levels) // 2
            sums = [sum(levels[at : at + width]) for at in range(half, len(levels) - width + 1)]
            return self._start + half + sums.index(min(sums)) + width // 2, "forced"
        return None


def split(
    samples: Tensor, sampling_rate: int, max_seconds: float, min_seconds: float, *, always: bool = False
) -> list[Segment]:
    """Segments of a whole recording (n,): one where it is not longer than ``max_seconds``, unless ``always``."""
    if not always and len(samples) <= max_seconds * sampling_rate:
        return [Segment(0, len(samples), "end")]
    splitter = PauseSplitter(sampling_rate, max_seconds, min_seconds)
    return [*splitter.feed(samples), *splitter.finish()]
