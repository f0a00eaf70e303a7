"""Named methods of the video suite.

They differ in one thing at a time: window and controller, coupling and rule, or initialiser. All that is not in a name
is as in ``jacobi-fixed-w64``: a fixed window of 64, gumbel coupling, the coupled rule and the initialiser that the
checkpoint recommends. ``start-*`` compares initialisers at a window of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.bench.methods import Method
from mmspec.drafters.initializers import FRAME_INITIALIZERS, INITIALIZERS


def _jacobi(name: str, rule: str = "coupled", window: int = 64, **settings: Any) -> Method:
    return Method(name, "jacobi", {"window": window, "controller": "fixed", **settings}, rule)


VIDEO_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("plain"),
        Method("default", default=True),
        _jacobi("jacobi-fixed-w32", window=32),
        _jacobi("jacobi-fixed-w64"),
        _jacobi("jacobi-fixed-w128", window=128),
        _jacobi("jacobi-frame", window=128, within_frame=True),
        _jacobi("jacobi-adaptive", window=256, controller="adaptive"),
        _jacobi("sjd", "ratio", coupling="independent"),
        _jacobi("jacobi-maximal", "ratio", coupling="maximal"),
        _jacobi("jacobi-gumbel", "ratio", coupling="gumbel"),
        *(
            _jacobi(f"start-{kind}", window=32, initializer=kind)
            for kind in sorted((*INITIALIZERS, *FRAME_INITIALIZERS))
        ),
        Method("ngram", "ngram"),
    )
}
QUICK = ("plain", "default", "start-copy-frame", "start-uniform")


def choose_video_methods(names: Sequence[str] | None, quick: bool = False) -> list[Method]:
    """The methods called ``names``, by default all or the quick ones; ``plain`` always comes first.

    Raises:
        ValueError: For an unknown name, with the legal ones.
    """
    chosen = list(names or (QUICK if quick else VIDEO_METHODS))
    if unknown := [name for name in chosen if name not in VIDEO_METHODS]:
        raise ValueError(f"Unknown method {unknown[0]!r}; choose from {', '.join(VIDEO_METHODS)}.")
    return [VIDEO_METHODS[name] for name in dict.fromkeys(["plain", *chosen])]
