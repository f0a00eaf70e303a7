"""Connectionist temporal classification (Graves et al., 2006): posteriors, greedy hypotheses, entropy, alignment.

Symbols: T frames of a clip (padding is never among them), C labels, a_t the most likely label of frame t,
H_t = -sum_c P_t(c) ln(P_t(c) + 1e-10) its entropy in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mmspec.speech.signal_functions import forced_align


@dataclass(frozen=True)
class Run:
    """One emitted label with its frames ``first`` to ``last``, both included."""

    label: int
    first: int
    last: int


@dataclass(frozen=True)
class Posterior:
    """What a CTC head says about a clip.

    Args:
        log_probs: Log-posteriors (T, C), float32, on the CPU.
        blank: The blank label.
        seconds_per_frame: Length of a frame.

    Raises:
        ValueError: If the tensor is not (T, C) or the blank is none of its labels.
    """

    log_probs: Tensor
    blank: int
    seconds_per_frame: float

    def __post_init__(self) -> None:
        if self.log_probs.dim() != 2 or not 0 <= self.blank < self.log_probs.shape[1]:
            raise ValueError(
                f"A posterior needs log-probabilities (T, C) and a blank below C, got {tuple(self.log_probs.shape)} "
                f"and {self.blank}."
            )

    @property
    def num_frames(self) -> int:
        return len(self.log_probs)

    def path(self) -> list[int]:
        """The most likely label of every frame."""
        labels: list[int] = self.log_probs.argmax(-1).tolist() if self.num_frames else []
        return labels

    def runs(self) -> list[Run]:
        """The greedy hypothesis."""
        return collapse(self.path(), self.blank)

    def entropy(self) -> Tensor:
        """H_t of every frame (T,)."""
        probs = self.log_probs.exp()
        return -(probs * (probs + 1e-10).log()).sum(-1)

    def blank_share(self) -> float:
        """Mean blank probability over the clip; 1 without frames."""
        return float(self.log_probs[:, self.blank].exp().mean()) if self.num_frames else 1.0

    def confidences(self, runs: Sequence[Run]) -> list[float]:
        """Of each run, the largest posterior of its label."""
        return [math.exp(float(self.log_probs[r.first : r.last + 1, r.label].max())) for r in runs]


def collapse(path: Sequence[int], blank: int) -> list[Run]:
    """Merge equal neighbours of ``path``, then delete blanks."""
    runs: list[Run] = []
    for frame, label in enumerate(path):
        if frame and label == path[frame - 1]:
            if label != blank:
                runs[-1] = Run(label, runs[-1].first, frame)
        elif label != blank:
            runs.append(Run(label, frame, frame))
    return runs


def mean_confidence(confidences: Sequence[float]) -> float:
    """Geometric mean; 0 for none."""
    if not confidences:
        return 0.0
    return math.exp(sum(math.log(max(c, 1e-10)) for c in confidences) / len(confidences))


def align(posterior: Posterior, labels: Sequence[int]) -> list[Run] | None:
    """Frames of every one of ``labels`` in the most likely alignment with the clip.

    Returns:
        One run a label, in order; ``None`` where the clip has too few frames for them, or there are none.
    """
    repeats = sum(a == b for a, b in pairwise(labels))
    if not labels or len(labels) + repeats > posterior.num_frames:
        return None
    # hard zeros would make some texts impossible; every text that fits has an alignment
    log_probs = posterior.log_probs.clamp_min(-30.0)
    path, _ = forced_align(log_probs[None], torch.tensor([list(labels)], dtype=torch.int32), blank=posterior.blank)
    return collapse(path[0].tolist(), posterior.blank)
