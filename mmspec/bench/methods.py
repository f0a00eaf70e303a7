"""Named methods: a drafter's settings and an acceptance rule.

The Jacobi methods differ in one thing at a time: window and controller, coupling and rule, or initialiser. All that is
not in a name is as in ``jacobi-fixed-w64``: a fixed window of 64, gumbel coupling, the initialiser that
the checkpoint recommends and the coupled rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.core.verify import Guarantee
from mmspec.drafters import DRAFTERS
from mmspec.drafters.initializers import INITIALIZERS
from mmspec.drafters.jacobi import JacobiDrafter


@dataclass(frozen=True)
class Method:
    """A method by its parts, by name and settings; ``drafter=None`` is plain decoding.

    ``default`` marks the method that the checkpoint recommends, which takes its parts from the pipeline.
    """

    name: str
    drafter: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rule: str = "coupled"
    default: bool = False
    peer: bool = False

    def build(self, saved_drafter: Any, saved_rule: Any) -> tuple[Any, Any]:
        """Drafter and rule, given those that the checkpoint came with."""
        if self.default:
            return saved_drafter or DRAFTERS.create("jacobi"), saved_rule or CoupledAcceptance()
        rule = ACCEPTANCE_RULES.create(self.rule)
        if self.drafter is None:
            return None, rule
        settings = self.settings
        if self.drafter == "jacobi" and isinstance(saved_drafter, JacobiDrafter):
            settings = {"initializer": saved_drafter.config.initializer, "mix": saved_drafter.config.mix} | settings
        return DRAFTERS.create(self.drafter, **settings), rule


def _jacobi(name: str, rule: str = "coupled", window: int = 64, **settings: Any) -> Method:
    return Method(name, "jacobi", {"window": window, "controller": "fixed", **settings}, rule)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("plain"),
        Method("default", default=True),
        _jacobi("jacobi-fixed-w64"),
        _jacobi("jacobi-fixed-w16", window=16),
        _jacobi("sjd", "ratio", coupling="independent"),
        _jacobi("jacobi-maximal", "ratio", coupling="maximal"),
        _jacobi("jacobi-gumbel", "ratio", coupling="gumbel"),
        *(_jacobi(f"init-{kind}", initializer=kind) for kind in INITIALIZERS),
        Method("ngram", "ngram"),
    )
}
QUICK = ("plain", "default", "jacobi-fixed-w16")


def choose_methods(names: Sequence[str] | None, quick: bool = False) -> list[Method]:
    """The methods called ``names``, by default all or the quick ones; ``plain`` always comes first.

    Raises:
        ValueError: For an unknown name, with the legal ones.
    """
    chosen = list(names or (QUICK if quick else METHODS))
    if unknown := [name for name in chosen if name not in METHODS]:
        raise ValueError(f"Unknown method {unknown[0]!r}; choose from {', '.join(METHODS)}.")
    return [METHODS[name] for name in dict.fromkeys(["plain", *chosen])]


@dataclass(frozen=True)
class BuiltMethod:
    """A method with its parts made."""

    method: Method
    drafter: Any
    rule: Any

    @property
    def guarantee(self) -> Guarantee:
        """What the method promises."""
        return self.rule.guarantee

    def run(self, pipe: Any, call: Callable[..., Any]) -> Any:
        """``call(speculate=...)`` with the method's parts in ``pipe``."""
        pipe.drafter, pipe.acceptance = self.drafter, self.rule
        return call(speculate=self.drafter is not None)


def build_methods(methods: Sequence[Method], pipe: Any) -> dict[str, BuiltMethod]:
    """Make the parts of every method; the pipeline's own are those of ``default``."""
    drafter, rule = pipe.drafter, pipe.acceptance
    return {method.name: BuiltMethod(method, *method.build(drafter, rule)) for method in methods}
