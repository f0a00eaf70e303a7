"""Compiling a forward for few static shapes."""

from __future__ import annotations

from typing import Any

import torch


def compile_static(network: Any, mode: str) -> Any:
    """``network`` compiled in torch's ``mode``, with room for a graph per bucket of rows, nodes and slots.

    Torch by itself falls back to eager execution after eight.
    """
    compiled = torch.compile(network, dynamic=False, mode=mode)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=128):
            return compiled(*args, **kwargs)

    return forward
