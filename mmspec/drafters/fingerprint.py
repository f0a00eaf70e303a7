"""Which target a trained drafter belongs to: the target's class, its settings, and a coarse print of its output head.

A drafter of another target runs without an error and has nothing accepted, so it is refused beforehand. The print of the
weights survives another dtype, quantisation and adapters on the layers; another training of the same network does not
pass for the first.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

_ROWS, _PROBES = 64, 8
_TOLERANCE = 0.05


_TEXT_SETTINGS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip
"""What tells two language models of transformers apart; their other settings differ between versions of the library."""


def fingerprint(network: Any) -> dict[str, Any]:
    """Class, settings and weight print of a target network, as values that JSON keeps."""
    if hasattr(network.config, "get_text_config"):
        text = network.config.get_text_config()
        settings = {name: getattr(text, name, None) for name in _TEXT_SETTINGS}
    else:
        settings = {name: value for name, value in dict(network.config).items() if not name.startswith("_")}
    return {"class": type(network).__name__, "settings": settings, "head": _probe(_head(network))}


def check_fingerprint(wanted: dict[str, Any], network: Any, part: str = "drafter") -> None:
    """Compare ``network`` with the fingerprint ``wanted`` of a drafter, or of another ``part`` that was made for a target.

    A setting that the network's class had not yet when the print was made counts as its default.

    Raises:
        ValueError: Naming what differs, with both values.
    """
    found = fingerprint(network)
    if found["class"] != wanted["class"]:
        _refuse(part, f"its class is {wanted['class']}, the target's {found['class']}")
    defaults = {name: own.default for name, own in inspect.signature(type(network).__init__).parameters.items()}
    old = {name: defaults.get(name) for name in found["settings"]} | wanted["settings"]
    differences = [
        f"`{name}` {old[name]!r} instead of {found['settings'].get(name)!r}"
        for name in sorted(old)
        if old[name] != found["settings"].get(name)
    ]
    if differences:
        _refuse(part, "its target had " + ", ".join(differences))
    there, here = torch.tensor(wanted["head"]), torch.tensor(found["head"])
    if len(here) and len(there) and float((there - here).norm()) > _TOLERANCE * float(there.norm()):
        _refuse(part, "its target has the same sizes, but other weights")


def _refuse(part: str, reason: str) -> None:
    raise ValueError(
        f"`{part}` was made for another target: {reason}. Load the {part} of this checkpoint, or train one for it "
        "with `mmspec train`."
    )


def _head(network: Any) -> Tensor:
    """The weight (V, D) of the output head."""
    find = getattr(network, "get_output_embeddings", None)
    head = find() if callable(find) else network.head
    return head.weight


def _probe(weight: Tensor) -> list[float]:
    """Projections of a few rows on fixed patterns of signs; nothing where the weights are not in memory."""
    if weight.is_meta:
        return []
    rows = torch.linspace(0, len(weight) - 1, min(_ROWS, len(weight)), device=weight.device).round().long()
    flat = weight.detach()[rows].float().flatten()
    place = torch.arange(flat.numel(), device=flat.device)
    # signs from the digits of multiples of an irrational number: the same everywhere, without a generator
    signs = torch.stack([((place * (0.6180339887 + probe)) % 2 < 1).float() * 2 - 1 for probe in range(_PROBES)])
    return [round(value, 4) for value in (signs @ flat).tolist()]
