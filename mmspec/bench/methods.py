"""Named methods: a drafter's settings and an acceptance rule, or a schedule.

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
from mmspec.schedules import SCHEDULES


@dataclass(frozen=True)
class Parts:
    """The swappable parts of a pipeline."""

    drafter: Any
    rule: Any
    schedule: Any = None

    @classmethod
    def of(cls, pipe: Any) -> Parts:
        """The parts that ``pipe`` has now."""
        return cls(pipe.drafter, pipe.acceptance, getattr(pipe, "schedule", None))

    def put(self, pipe: Any) -> None:
        """Make these the parts of ``pipe``; pipelines without a grid have no schedule to replace."""
        pipe.drafter, pipe.acceptance = self.drafter, self.rule
        if self.schedule is not None or getattr(pipe, "schedule", None) is not None:
            pipe.schedule = self.schedule


@dataclass(frozen=True)
class Method:
    """A method by its parts, by name; ``settings`` are the drafter's or the schedule's. Neither is plain decoding.

    ``default`` marks the method that the checkpoint recommends, which takes its parts from the pipeline.
    """

    name: str
    drafter: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rule: str = "coupled"
    schedule: str | None = None
    default: bool = False
    peer: bool = False

    def build(self, saved: Parts) -> Parts:
        """The parts, given those that the checkpoint came with."""
        if self.default:
            return Parts(saved.drafter or DRAFTERS.create("jacobi"), saved.rule or CoupledAcceptance(), saved.schedule)
        rule = ACCEPTANCE_RULES.create(self.rule)
        if self.schedule is not None:
            return Parts(None, rule, SCHEDULES.create(self.schedule, **self.settings))
        if self.drafter is None:
            return Parts(None, rule)
        settings = self.settings
        if self.drafter == "jacobi" and isinstance(saved.drafter, JacobiDrafter):
            chosen = {name: saved.drafter.config[name] for name in ("initializer", "mix")}
            settings = chosen | settings
        return Parts(DRAFTERS.create(self.drafter, **settings), rule)


def _jacobi(name: str, rule: str = "coupled", window: int = 64, **settings: Any) -> Method:
    return Method(name, "jacobi", {"window": window, "controller": "fixed", **settings}, rule)


def _zipar(window: int) -> Method:
    return Method(f"zipar-w{window}", settings={"window": window}, schedule="zipar")


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
        *(_zipar(window) for window in (2, 4, 8)),
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
    """A method with its parts made, for grids of ``grid`` rows and columns."""

    method: Method
    parts: Parts
    grid: tuple[int, int]

    @property
    def drafter(self) -> Any:
        """The drafter, if the method has one."""
        return self.parts.drafter

    @property
    def guarantee(self) -> Guarantee:
        """What the method promises."""
        schedule = self.parts.schedule
        return self.parts.rule.guarantee if schedule is None else schedule.guarantee(*self.grid)

    def run(self, pipe: Any, call: Callable[..., Any]) -> Any:
        """``call(speculate=...)`` with the method's parts in ``pipe``."""
        self.parts.put(pipe)
        return call(speculate=self.parts.drafter is not None or self.parts.schedule is not None)


def build_methods(methods: Sequence[Method], pipe: Any) -> dict[str, BuiltMethod]:
    """Make the parts of every method; the pipeline's own are those of ``default``."""
    saved = Parts.of(pipe)
    return {method.name: BuiltMethod(method, method.build(saved), pipe.grid) for method in methods}
