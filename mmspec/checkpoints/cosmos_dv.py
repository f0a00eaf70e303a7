"""Convert released Cosmos discrete video tokenizers to :class:`~mmspec.image.video_tokenizer.DiscreteVideoTokenizer`.

Files of ``nvidia/Cosmos-Tokenize1-DV8x16x16-720p``: ``autoencoder.jit``, or ``encoder.jit`` and ``decoder.jit``, or their
state dict. The networks are diffusers' Cosmos encoder and decoder under other names, so every tensor is only renamed.
TorchScript is read here, once, for its tensors; the pipelines never load any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor

from mmspec.checkpoints.reading import check_tensors, read_tensors, read_torchscript
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer

# the authors' name -> ours, applied in this order
_RENAMES = (
    (r"\bdown\.(\d+)", r"down_blocks.\1"),
    (r"\bup\.(\d+)", r"up_blocks.\1"),  # the authors count from the output; turned round by _count_up_blocks
    (r"\.block\.", ".resnets."),
    (r"\bdownsample\b", "downsamplers.0"),
    (r"\bupsample\b", "upsamplers.0"),
    (r"\bmid\.block_1\b", "mid_block.resnets.0"),
    (r"\bmid\.block_2\b", "mid_block.resnets.1"),
    (r"\bmid\.attn_1\.0\b", "mid_block.attentions.0"),
    (r"\bmid\.attn_1\.1\b", "mid_block.temp_attentions.0"),
    (r"\.([qkv])\.conv3d\b", r".to_\1"),
    (r"\.proj_out\.conv3d\b", ".to_out.0"),
    (r"\.0\.conv3d\b", ".conv_s"),
    (r"\.1\.conv3d\b", ".conv_t"),
    (r"\bconv([123])\.conv3d\b", r"conv\1"),
    (r"\bnin_shortcut\.conv3d\b", "conv_shortcut"),
    (r"quant_conv\.conv3d\b", "quant_conv"),
)
_DERIVED = re.compile(r"(^|\.)(wavelets|_arange|patch_size_buffer)$|^quantizer\.")
LEVELS = (8, 8, 8, 5, 5, 5)
"""Levels of the released quantiser, which the weights do not tell."""


def load_cosmos_dv(
    *paths: str | Path, levels: Sequence[int] = LEVELS, chunk_frames: int = 33, dtype: torch.dtype | None = None
) -> DiscreteVideoTokenizer:
    """Load a released tokenizer.

    Args:
        paths: One file with both networks, or those of encoder and decoder: TorchScript (``.jit``), or any that
            :func:`~mmspec.checkpoints.reading.read_tensors` reads.
        levels: Levels of the quantiser's channels.
        chunk_frames: Frames that are encoded together.
        dtype: Type of the weights; by default the files'.

    Raises:
        ValueError: If a file is refused or damaged, or a tensor is missing, unexpected or of another shape.
    """
    name = " and ".join(Path(path).name for path in paths)
    tensors: dict[str, Tensor] = {}
    for path in paths:
        read = read_torchscript if Path(path).suffix == ".jit" else read_tensors
        tensors |= {key: value for key, value in read(path).items() if not _DERIVED.search(key)}
    renamed = _rename(tensors)
    config = infer_config(renamed, name)
    if len(levels) != len(renamed["quant_conv.weight"]):
        raise ValueError(
            f"{name} quantises {len(renamed['quant_conv.weight'])} channels, but `levels` has {len(levels)} entries."
        )
    with init_empty_weights():
        model = DiscreteVideoTokenizer(**config, levels=tuple(levels), chunk_frames=chunk_frames)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    check_tensors(renamed, expected, name)
    state = {key: value.to(dtype=dtype).clone() for key, value in renamed.items()}
    model.load_state_dict(state, strict=True, assign=True)
    return model.requires_grad_(False).eval()


def _rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    levels = 1 + max([int(m[1]) for key in tensors if (m := re.match(r"decoder\.up\.(\d+)\.", key))], default=-1)
    renamed = {}
    for key, value in tensors.items():
        for pattern, replacement in _RENAMES:
            key = re.sub(pattern, replacement, key)
        renamed[re.sub(r"up_blocks\.(\d+)", lambda m: f"up_blocks.{levels - 1 - int(m[1])}", key)] = value
    return renamed


def infer_config(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Read widths, depth and compression off the renamed tensors.

    Raises:
        ValueError: If what tells them is missing.
    """
    needed = ("encoder.conv_in.conv_s.weight", "decoder.norm_out.norm.weight", "quant_conv.weight")
    if lacking := [key for key in needed if key not in tensors]:
        raise ValueError(f"{name} is no Cosmos video tokenizer: it lacks {', '.join(lacking)}.")
    first, quant = tensors[needed[0]], tensors["quant_conv.weight"]
    patch = round((first.shape[1] / 3) ** (1 / 3))
    encoder = [len(first), *_widths(tensors, "encoder.down_blocks")]
    decoder = [*_widths(tensors, "decoder.up_blocks")[::-1], _entry(tensors, name)]
    spatial, temporal = (
        sum(f"encoder.down_blocks.{k}.downsamplers.0.{part}.weight" in tensors for k in range(len(encoder)))
        for part in ("conv1", "conv2")
    )
    return {
        "encoder_channels": tuple(encoder),
        "decoder_channels": tuple(decoder),
        "layers_per_block": 1 + max(
            int(m[1]) for key in tensors if (m := re.match(r"encoder\.down_blocks\.0\.resnets\.(\d+)\.", key))
        ),
        "latent_channels": quant.shape[1],
        "patch_size": patch,
        "spatial_compression": patch * 2**spatial,
        "temporal_compression": patch * 2**temporal,
    }  # fmt: skip


def _widths(tensors: Mapping[str, Tensor], blocks: str) -> list[int]:
    """Output channels of the blocks, in order."""
    found = {
        int(m[1]): len(value)
        for key, value in tensors.items()
        if (m := re.fullmatch(re.escape(blocks) + r"\.(\d+)\.resnets\.0\.conv1\.conv_s\.weight", key))
    }
    return [found[block] for block in sorted(found)]


def _entry(tensors: Mapping[str, Tensor], name: str) -> int:
    """Channels of the decoder's coarsest level."""
    key = "decoder.conv_in.conv_s.weight"
    if key not in tensors:
        raise ValueError(f"{name} is no Cosmos video tokenizer: it lacks {key}.")
    return len(tensors[key])
