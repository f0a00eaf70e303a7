"""Named methods of speech recognition, one thing changed at a time.

``exact`` promises plain decoding's text; ``accurate``, ``balanced`` and ``fast`` are the presets. ``resume`` and
``text-resync`` leave out one part of ``exact``. The peer ``restart`` is the released behaviour of CTC-drafted
recognition (Saon et al., 2026): a draft is kept whole or not at all, and a row that fails is decoded anew from its
prompt, at the published thresholds of its notebook (entropy 0.7, likelihood 0.2) and without testing the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.drafters.ngram import NGramDrafter
from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.presets import PRESETS


@dataclass(frozen=True)
class SpeechMethod:
    """A method by name; ``preset`` takes its parts from the pipeline's thresholds."""

    name: str
    preset: str | None = None
    default: bool = False
    peer: bool = False

    def build(self, pipe: Any) -> tuple[Any, Any]:
        """Drafter and rule for ``pipe``; ``None`` for plain decoding."""
        if self.default:
            return pipe.drafter or CTCDrafter(), pipe.acceptance or CoupledAcceptance()
        own = pipe.drafter if isinstance(pipe.drafter, CTCDrafter) else None
        if self.preset is not None:
            return pipe.preset_parts(self.preset)
        if self.name == "resume":
            made = _with_model(CTCDrafter("resume"), own)
            made.language = None if own is None else own.language
            return made, CoupledAcceptance()
        if self.name == "restart":
            return _with_model(CTCDrafter("restart", 0.7), own), LikelihoodAcceptance("abs", 0.2, eos_threshold=0.0)
        if self.name == "restart-exact":
            return _with_model(CTCDrafter("restart"), own), CoupledAcceptance()
        if self.name == "ngram":
            return NGramDrafter(), CoupledAcceptance()
        return None, CoupledAcceptance()


def _with_model(drafter: CTCDrafter, own: CTCDrafter | None) -> CTCDrafter:
    """``drafter`` with the CTC model of ``own``, but without its character model: peers draft what the head says."""
    if own is not None:
        drafter.ctc = own.ctc
    return drafter


SPEECH_METHODS: dict[str, SpeechMethod] = {
    method.name: method
    for method in (
        SpeechMethod("plain"),
        SpeechMethod("default", default=True),
        *(SpeechMethod(name, preset=name) for name in PRESETS),
        SpeechMethod("resume"),
        SpeechMethod("ngram"),
        SpeechMethod("restart-exact", peer=True),
        SpeechMethod("restart", peer=True),
    )
}
QUICK_SPEECH = ("plain", "default", "balanced", "restart")


def choose_speech_methods(names: Sequence[str] | None, quick: bool = False) -> list[SpeechMethod]:
    """The methods called ``names``, by default all or the quick ones; ``plain`` always comes first.

    Raises:
        ValueError: For an unknown name, with the legal ones.
    """
    chosen = list(names or (QUICK_SPEECH if quick else SPEECH_METHODS))
    if unknown := [name for name in chosen if name not in SPEECH_METHODS]:
        raise ValueError(f"Unknown method {unknown[0]!r}; choose from {', '.join(SPEECH_METHODS)}.")
    return [SPEECH_METHODS[name] for name in dict.fromkeys(["plain", *chosen])]
