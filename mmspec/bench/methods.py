"""Named methods: a drafter's settings and an acceptance rule, or a schedule.

The Jacobi methods differ in one thing at a time: window and controller, coupling and rule, or initialiser. All that is
not in a name is as in ``jacobi-fixed-w64``: a fixed window of 64, gumbel coupling, the initialiser that
the checkpoint recommends and the coupled rule.

Feature drafters are the checkpoint's own weights. Each ``lantern-*`` method has an exact counterpart that drafts alike:
``feature-chain-drawn`` for ``lantern-chain-*``, ``feature-static-drawn`` for the static trees of drawn tokens, and
``feature-static`` and ``feature-chain`` for ``lantern-bounded-*``, whose tokens are chosen. ``lantern-compat`` is the authors' code, a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.coupled import CoupledAcceptance
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

    A drafter with weights loads them from the checkpoint that is measured.

    ``default`` marks the method that the checkpoint recommends, which takes its parts from the pipeline.
    """

    name: str
    drafter: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rule: str = "coupled"
    rule_settings: dict[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    default: bool = False
    peer: bool = False

    def build(self, saved: Parts, model: str | None = None) -> Parts:
        """The parts, given those that the checkpoint ``model`` came with."""
        if self.default:
            return Parts(saved.drafter or DRAFTERS.create("jacobi"), saved.rule or CoupledAcceptance(), saved.schedule)
        rule = ACCEPTANCE_RULES.create(self.rule, **self.rule_settings)
        if self.schedule is not None:
            return Parts(None, rule, SCHEDULES.create(self.schedule, **self.settings))
        if self.drafter is None:
            return Parts(None, rule)
        settings = self.settings
        if self.drafter == "jacobi" and isinstance(saved.drafter, JacobiDrafter):
            chosen = {name: saved.drafter.config[name] for name in ("initializer", "mix")}
            settings = chosen | settings
        drafter = DRAFTERS.load(self.drafter)
        if hasattr(drafter, "with_settings"):  # it has weights
            return Parts(drafter.from_pretrained(model).with_settings(**settings), rule)
        return Parts(drafter(**settings), rule)


_CHAIN: dict[str, Any] = {"mode": "sampled", "tree": "chain", "num_nodes": 8}
_DRAWN: dict[str, Any] = {"mode": "sampled", "tree": "static", "num_nodes": 21}
_CHOSEN: dict[str, Any] = {"mode": "top-k", "tree": "static", "num_nodes": 21}
_SJD: dict[str, Any] = {"window": 64, "controller": "fixed", "coupling": "independent"}


def _jacobi(name: str, rule: str = "coupled", window: int = 64, **settings: Any) -> Method:
    return Method(name, "jacobi", {"window": window, "controller": "fixed", **settings}, rule)


def _feature(name: str, rule: str = "coupled", peer: bool = False, **settings: Any) -> Method:
    return Method(name, "feature", settings, rule, peer=peer)


def _lantern(name: str, settings: dict[str, Any] = _DRAWN, peer: bool = False, **rule_settings: Any) -> Method:
    return Method(f"lantern-{name}", "feature", settings, "lantern", rule_settings, peer=peer)


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
        _jacobi("sjd-w16", "ratio", 16, coupling="independent"),
        _jacobi("jacobi-maximal-w16", "ratio", 16, coupling="maximal"),
        _jacobi("jacobi-gumbel-w16", "ratio", 16, coupling="gumbel"),
        _feature("feature-chain", mode="top-k", tree="chain", num_nodes=8),
        _feature("feature-static", **_CHOSEN),
        _feature("feature-dynamic", mode="top-k", tree="dynamic", num_nodes=16),
        _feature("feature-chain-drawn", "ratio", **_CHAIN),
        _feature("feature-static-drawn", "recursive", **_DRAWN),
        _lantern("chain-delta-0.1", _CHAIN, delta=0.1),
        _lantern("chain-delta-0.4", _CHAIN, delta=0.4),
        _lantern("delta-0.1", delta=0.1),
        _lantern("delta-0.4", delta=0.4),
        _lantern("lam-2", lam=2.0),
        _lantern("bounded-0.4", _CHOSEN, delta=0.4),
        _lantern("bounded-chain-0.8", {**_CHAIN, "mode": "top-k"}, delta=0.8),
        _lantern("compat", peer=True, delta=0.4, residual="lantern_compat"),
        *(
            Method(f"sjd-{rule}", "jacobi", _SJD, rule, settings)
            for rule, settings in (
                ("grouped", {}), ("cool", {}), ("fuzzy", {}), ("typical", {}), ("lantern", {"delta": 0.4}),
            )
        ),
    )
}  # fmt: skip
SUITES: dict[str, Sequence[str]] = {
    "default": [
        "plain", "default", "jacobi-fixed-w64", "jacobi-fixed-w16", "sjd", "jacobi-maximal", "jacobi-gumbel",
        *(f"init-{kind}" for kind in INITIALIZERS), "ngram",
    ],
    "methods": [
        "plain", "default", "jacobi-fixed-w64", "sjd", "jacobi-maximal", "jacobi-gumbel", "jacobi-fixed-w16", "sjd-w16",
        "jacobi-maximal-w16", "jacobi-gumbel-w16", "feature-chain", "feature-static", "feature-dynamic",
        "feature-chain-drawn", "lantern-chain-delta-0.1", "lantern-chain-delta-0.4", "feature-static-drawn",
        "lantern-delta-0.1", "lantern-delta-0.4", "lantern-lam-2", "lantern-bounded-0.4", "lantern-compat",
        "sjd-grouped", "sjd-cool", "sjd-fuzzy", "sjd-typical", "sjd-lantern", "zipar-w2", "zipar-w4", "zipar-w8",
    ],
    "quick": ["plain", "default", "jacobi-fixed-w16"],
}  # fmt: skip


def choose_methods(names: Sequence[str] | None, suite: str = "default") -> list[Method]:
    """The methods called ``names``, by default those of ``suite``; ``plain`` always comes first.

    Raises:
        ValueError: For an unknown name, with the legal ones.
    """
    if suite not in SUITES:
        raise ValueError(f"Unknown suite {suite!r}; choose from {', '.join(SUITES)}.")
    chosen = list(names or SUITES[suite])
    if unknown := [name for name in chosen if name not in METHODS]:
        raise ValueError(f"Unknown method {unknown[0]!r}; choose from {', '.join(METHODS)}.")
    return [METHODS[name] for name in dict.fromkeys(["plain", *chosen])]


@dataclass(frozen=True)
class BuiltMethod:
    """A method with its parts made."""

    method: Method
    parts: Parts

    @property
    def drafter(self) -> Any:
        """The drafter, if the method has one."""
        return self.parts.drafter

    def run(self, pipe: Any, call: Callable[..., Any]) -> Any:
        """``call(speculate=...)`` with the method's parts in ``pipe``."""
        self.parts.put(pipe)
        return call(speculate=self.parts.drafter is not None or self.parts.schedule is not None)


def build_methods(methods: Sequence[Method], pipe: Any) -> dict[str, BuiltMethod]:
    """Make the parts of every method; the pipeline's own are those of ``default``."""
    saved = Parts.of(pipe)
    return {method.name: BuiltMethod(method, method.build(saved, pipe.source)) for method in methods}
