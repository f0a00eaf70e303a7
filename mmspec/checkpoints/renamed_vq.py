"""Build a diffusers ``VQModel`` from the tensors of a VQGAN that names them otherwise; the networks are the same.

1 x 1 convolutions of the attention become linear layers. Nothing is guessed: every tensor must be there, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import VQModel
from torch import Tensor

from mmspec.checkpoints.reading import check_tensors


def build_vq(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    source_name: Callable[[str], str],
    name: str,
    *,
    dtype: torch.dtype | None = None,
) -> VQModel:
    """Return the ``VQModel`` of ``config`` with ``tensors`` in it.

    Args:
        tensors: The foreign state dict.
        config: Arguments of ``VQModel``.
        source_name: Foreign name of a tensor of ``VQModel``.
        name: Of the file, for messages.
        dtype: Type of the weights; by default the file's.

    Raises:
        ValueError: Naming every missing, unexpected and misshapen tensor.
    """
    with init_empty_weights():
        model = VQModel(**config)
    targets = {target: tuple(parameter.shape) for target, parameter in model.state_dict().items()}
    sources = {target: source_name(target) for target in targets}
    expected = {source: _source_shape(source, targets[target]) for target, source in sources.items()}
    check_tensors(tensors, expected, name)
    state = {target: tensors[source].reshape(targets[target]) for target, source in sources.items()}
    model.load_state_dict({k: v.to(dtype).contiguous() for k, v in state.items()}, strict=True, assign=True)
    return model.requires_grad_(False).eval()


def _source_shape(source: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    is_attention = re.search(r"\.(?:q|k|v|proj_out)\.weight$", source)
    return (*shape, 1, 1) if is_attention else shape
