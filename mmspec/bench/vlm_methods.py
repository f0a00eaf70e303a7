"""Named methods of the vision-language suite.

``default`` is what the checkpoint recommends, its block drafter with a tree. Methods with weights take them from the
checkpoint that is measured; ``assisted`` drafts with a small model of the same family, by default the target's own lower
layers. Peers are transformers' generation on the same weights: token by token, with prompt lookup, and with the same
assistant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.bench.methods import BuiltMethod, Method, Parts
from mmspec.bench.vlm_peers import PEERS
from mmspec.drafters import DRAFTERS
from mmspec.models.loading import local_folder


def _block(name: str, **settings: Any) -> Method:
    return Method(f"block-{name}", "block", settings)


VLM_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("plain"),
        Method("default", default=True),
        _block("tree-16", tree="dynamic", mode="top-k", num_nodes=16),
        _block("tree-32", tree="dynamic", mode="top-k", num_nodes=32),
        _block("chain", tree="chain", mode="top-k"),
        _block("graft", tree="dynamic", mode="top-k", num_nodes=32, graft=10),
        _block("coupled", tree="dynamic", mode="coupled", num_nodes=16),
        Method("eagle3", "eagle3"),
        Method("eagle3-chain", "eagle3", {"tree": "chain", "num_nodes": 6}),
        Method("mtp", "mtp"),
        Method("ngram", "ngram"),
        Method("assisted", "model"),
        *(Method(name, peer=True) for name in PEERS),
    )
}
QUICK_VLM = ("plain", "default", "ngram", "transformers-prompt-lookup")


def choose_vlm_methods(names: Sequence[str] | None, quick: bool = False) -> list[Method]:
    """The methods called ``names``, by default all or the quick ones; ``plain`` always comes first.

    Raises:
        ValueError: For an unknown name, with the legal ones.
    """
    chosen = list(names or (QUICK_VLM if quick else VLM_METHODS))
    if unknown := [name for name in chosen if name not in VLM_METHODS]:
        raise ValueError(f"Unknown method {unknown[0]!r}; choose from {', '.join(VLM_METHODS)}.")
    return [VLM_METHODS[name] for name in dict.fromkeys(["plain", *chosen])]


def drafters_there(methods: Sequence[Method], model: str) -> list[Method]:
    """``methods`` without those whose weights the checkpoint ``model`` does not hold."""
    folder = local_folder(model)

    def there(method: Method) -> bool:
        drafter: Any = None if method.drafter is None else DRAFTERS.load(method.drafter)
        if not hasattr(drafter, "place_in"):
            return True
        return folder is not None and (folder / drafter.place_in(folder)).is_dir()

    return [method for method in methods if there(method)]


def build_vlm_methods(methods: Sequence[Method], pipe: Any, assistant: Any) -> dict[str, BuiltMethod]:
    """Make the parts of every method; ``assistant`` is the model that drafts for ``assisted``."""
    saved = Parts.of(pipe)
    built = {}
    for method in methods:
        if method.peer:
            parts = Parts(None, None)
        elif method.drafter == "model":
            parts = Parts(DRAFTERS.create("model", num_draft_tokens=5, model=assistant), None)
        else:
            parts = method.build(saved, pipe.source)
        if parts.drafter is not None:
            parts.drafter.to(pipe.device)
        built[method.name] = BuiltMethod(method, parts)
    return built
