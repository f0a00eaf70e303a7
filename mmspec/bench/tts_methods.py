"""Named methods of speech synthesis, one thing changed at a time.

``default`` is what the checkpoint recommends; ``head-shift`` leaves the learned part out; ``always`` drafts all residual codes whatever was
measured; ``chain`` drafts without branches; ``ratio`` keeps the law instead of the tokens; ``jacobi`` drafts by the target's own earlier guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.speech.residual_drafter import ResidualDrafter


@dataclass(frozen=True)
class TtsMethod:
    """A method by name."""

    name: str
    default: bool = False

    def build(self, pipe: Any) -> tuple[Any, Any]:
        """Drafter and rule for ``pipe``; ``None`` for plain decoding."""
        own = pipe.drafter if isinstance(pipe.drafter, ResidualDrafter) else ResidualDrafter()
        settings = {"prior": own.config.prior, "heads": own.heads}
        if self.default:
            return pipe.drafter or own, pipe.acceptance or CoupledAcceptance()
        if self.name == "head-shift":
            return ResidualDrafter(), CoupledAcceptance()
        if self.name == "chain":
            return ResidualDrafter(node_cost=own.config.node_cost, **settings), CoupledAcceptance()
        if self.name == "always":
            return ResidualDrafter(adaptive=False, **settings), CoupledAcceptance()
        if self.name == "ratio":
            return ResidualDrafter(coupling="independent", **settings), RatioAcceptance()
        if self.name == "jacobi":
            return JacobiDrafter(window=pipe.talker.config.num_codebooks, controller="fixed"), CoupledAcceptance()
        return None, CoupledAcceptance()


TTS_METHODS: dict[str, TtsMethod] = {
    method.name: method
    for method in (
        TtsMethod("plain"),
        TtsMethod("default", default=True),
        *(TtsMethod(name) for name in ("head-shift", "chain", "always", "ratio", "jacobi")),
    )
}
QUICK_TTS = ("plain", "default", "head-shift")


def choose_tts_methods(names: Sequence[str] | None, quick: bool = False) -> list[TtsMethod]:
    """The methods called ``names``, by default all or the quick ones; ``plain`` always comes first.

    Raises:
        ValueError: For an unknown name, with the legal ones.
    """
    chosen = list(names or (QUICK_TTS if quick else TTS_METHODS))
    if unknown := [name for name in chosen if name not in TTS_METHODS]:
        raise ValueError(f"Unknown method {unknown[0]!r}; choose from {', '.join(TTS_METHODS)}.")
    return [TTS_METHODS[name] for name in dict.fromkeys(["plain", *chosen])]
