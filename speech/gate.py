"""The entropy gate: whether a CTC hypothesis is sure enough to be final without the language model.

A hypothesis passes if an aggregate of its frames' entropies is at most the threshold (Saon et al., 2026, take the
maximum). With E the frames' entropies, a the greedy path:

    max            max_t E_t
    topm           mean of the ``top`` largest
    mean_nonblank  mean over frames with a_t != blank
    p95            95th percentile
    max_run        mean over the frames of each emitted label, then the largest
    rate           share of non-blank frames with E_t > ``high``
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.speech.ctc import Posterior

AGGREGATES = ("max", "max_run", "mean_nonblank", "p95", "rate", "topm")
EMPTY_POLICIES = ("accept", "verify")


@dataclass(frozen=True)
class EntropyGate:
    """When a CTC hypothesis is final.

    Args:
        threshold: Largest aggregate to accept, in nats (a share for ``rate``); 0 closes the gate.
        aggregate: One of :data:`AGGREGATES`.
        normalised: Divide entropies by ln C, so that one threshold fits vocabularies of any size.
        top: How many frames ``topm`` averages.
        high: What counts as a high entropy for ``rate``.
        empty: ``accept`` takes an empty hypothesis for silence where the mean blank probability exceeds
            ``silence``; ``verify`` always asks the language model.
        silence: See ``empty``.

    Raises:
        ValueError: For values outside their range.
    """

    threshold: float = 0.0
    aggregate: str = "max"
    normalised: bool = False
    top: int = 3
    high: float = 0.5
    empty: str = "accept"
    silence: float = 0.99

    def __post_init__(self) -> None:
        if self.aggregate not in AGGREGATES:
            raise ValueError(f"Unknown `aggregate` {self.aggregate!r}; choose one of {', '.join(AGGREGATES)}.")
        if self.empty not in EMPTY_POLICIES:
            raise ValueError(f"Unknown `empty` policy {self.empty!r}; choose one of {', '.join(EMPTY_POLICIES)}.")
        if not 0 <= self.threshold < math.inf:
            raise ValueError(f"`threshold` must be at least 0 and finite, got {self.threshold}.")
        if self.top < 1 or not 0 <= self.silence <= 1:
            raise ValueError(f"`top` must be at least 1 and `silence` in [0, 1], got {self.top} and {self.silence}.")

    def value(self, posterior: Posterior) -> float:
        """The aggregate of ``posterior``; infinite where the greedy hypothesis is empty."""
        runs = posterior.runs()
        if not runs:
            return math.inf
        entropy = posterior.entropy()
        if self.normalised:
            entropy = entropy / math.log(posterior.log_probs.shape[1])
        if self.aggregate == "max_run":
            return max(float(entropy[run.first : run.last + 1].mean()) for run in runs)
        spoken = torch.tensor(posterior.path()) != posterior.blank
        return float(self._aggregate(entropy, spoken))

    def _aggregate(self, entropy: Tensor, spoken: Tensor) -> Tensor:
        if self.aggregate == "max":
            return entropy.max()
        if self.aggregate == "topm":
            return entropy.topk(min(self.top, len(entropy))).values.mean()
        if self.aggregate == "p95":
            return entropy.quantile(0.95)
        if self.aggregate == "rate":
            return (entropy[spoken] > self.high).float().mean()
        return entropy[spoken].mean()

    def is_silence(self, posterior: Posterior) -> bool:
        """Whether the clip is confidently empty, so that a language model could only invent something."""
        return self.empty == "accept" and not posterior.runs() and posterior.blank_share() > self.silence

    def accepts(self, posterior: Posterior) -> bool:
        """Whether the greedy hypothesis is final; never where the gate is closed."""
        return self.threshold > 0 and self.value(posterior) <= self.threshold
