"""Named settings of CTC-drafted recognition: how sure a hypothesis must be, and what is done where it is not.

``accurate``, ``balanced`` and ``fast`` have the published thresholds (Saon et al., 2026) of entropy and of token
likelihood; a checkpoint may come with its own. ``exact`` promises the text of plain decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.greedy import GreedyAcceptance
from mmspec.acceptance.likelihood import TESTS, LikelihoodAcceptance
from mmspec.acceptance.match import MatchAcceptance
from mmspec.speech.ctc_drafter import CTCDrafter

#: names of verification: the exact ones, then the tests of LikelihoodAcceptance
VERIFICATIONS = ("greedy", "sample", *TESTS)


@dataclass(frozen=True)
class Preset:
    """Largest entropy of a final hypothesis, 0 for none, and least likelihood of a token, ``None`` for exact."""

    entropy: float
    likelihood: float | None


PRESETS = {
    "exact": Preset(0.0, None),
    "accurate": Preset(0.0, 0.4),
    "balanced": Preset(0.7, 0.2),
    "fast": Preset(3.0, 0.1),
}


def choose_preset(name: str, own: Mapping[str, Sequence[float]] | None = None) -> Preset:
    """The preset called ``name``; a checkpoint's ``own`` thresholds replace the published ones.

    Raises:
        ValueError: For an unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown `preset` {name!r}; choose one of {', '.join(PRESETS)}.")
    if name != "exact" and own and name in own:
        entropy, likelihood = own[name]
        return Preset(float(entropy), float(likelihood))
    return PRESETS[name]


def preset_method(preset: Preset, drafter: CTCDrafter | None) -> tuple[CTCDrafter, Acceptance]:
    """Drafter and rule of ``preset``; the CTC model and the other settings are those of ``drafter``."""
    settings: dict[str, Any] = dict(drafter.config) if drafter else {}
    settings = {name: value for name, value in settings.items() if not name.startswith("_")}
    made = CTCDrafter(**{**settings, "on_fail": "resync", "entropy_threshold": preset.entropy})
    if drafter is not None:
        made.ctc, made.language = drafter.ctc, drafter.language
    if preset.likelihood is None:
        return made, CoupledAcceptance()
    return made, LikelihoodAcceptance("abs", preset.likelihood)


def verification(name: str, threshold: float | None = None) -> Acceptance:
    """The rule called ``name`` in the literature of CTC drafting.

    ``greedy`` keeps what is most likely. ``sample`` keeps a token with the probability that the target gives it and
    else draws from the rest, which is to draw from the target and compare: :class:`MatchAcceptance`.

    Raises:
        ValueError: For an unknown name, or a threshold for an exact rule.
    """
    if name not in VERIFICATIONS:
        raise ValueError(f"Unknown verification {name!r}; choose one of {', '.join(VERIFICATIONS)}.")
    if name in TESTS:
        return LikelihoodAcceptance(name, threshold)
    if threshold is not None:
        raise ValueError(f"Verification {name!r} is exact and takes no threshold, got {threshold}.")
    return GreedyAcceptance() if name == "greedy" else MatchAcceptance()
