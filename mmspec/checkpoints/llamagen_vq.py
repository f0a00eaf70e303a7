"""Convert LlamaGen's VQ tokenizers (``vq_ds16_c2i``, ``vq_ds8_c2i``, ``vq_ds16_t2i``) to a diffusers ``VQModel``.

The networks are the same, so every tensor is only renamed; 1 x 1 convolutions of the attention become linear layers.
One value changes: LlamaGen normalises codebook rows (L2) at every lookup, diffusers never does, so the rows are
normalised once, here. Sun et al., 2024; the design is Esser et al., 2021, "Taming Transformers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import VQModel
from torch import Tensor

from mmspec.checkpoints.reading import read_tensors
from mmspec.checkpoints.renamed_vq import build_vq
from mmspec.models.strict import list_names

_CODEBOOK = "quantize.embedding.weight"
_TRAINING_ONLY = ("quantize.codebook_used",)  # counts of codes seen lately
# diffusers' name -> the authors' name, applied in this order
_RENAMES = (
    (r"(?:down|up)_blocks\.(\d+)\.resnets\.", r"conv_blocks.\1.res."),
    (r"(?:down|up)_blocks\.(\d+)\.attentions\.", r"conv_blocks.\1.attn."),
    (r"down_blocks\.(\d+)\.downsamplers\.0\.", r"conv_blocks.\1.downsample."),
    (r"up_blocks\.(\d+)\.upsamplers\.0\.", r"conv_blocks.\1.upsample."),
    (r"mid_block\.resnets\.0\.", "mid.0."),
    (r"mid_block\.attentions\.0\.", "mid.1."),
    (r"mid_block\.resnets\.1\.", "mid.2."),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
)


def load_llamagen_vq(path: str | Path, *, dtype: torch.dtype | None = None) -> VQModel:
    """Load a released LlamaGen VQ tokenizer; its downsampling (16 or 8) is read off the tensors.

    Args:
        path: File or folder, as in :func:`~mmspec.checkpoints.reading.read_tensors`.
        dtype: Type of the weights; by default the file's. The codebook is normalised in float32 before.

    Raises:
        ValueError: If the file is refused or damaged, or a tensor is missing, unexpected or of another shape.
    """
    name = Path(path).name
    tensors = {key: value for key, value in read_tensors(path).items() if key not in _TRAINING_ONLY}
    if _CODEBOOK in tensors:
        codebook = tensors[_CODEBOOK]
        tensors[_CODEBOOK] = F.normalize(codebook.float(), dim=-1).to(codebook.dtype)
    return build_vq(tensors, infer_vq_config(tensors, name), _source_name, name, dtype=dtype)


def convert_llamagen_vq(path: str | Path, output: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """Write a released VQ tokenizer as ``output/vq`` and return that folder."""
    folder = Path(output) / "vq"
    load_llamagen_vq(path, dtype=dtype).save_pretrained(folder)
    return folder


def _source_name(target: str) -> str:
    for pattern, replacement in _RENAMES:
        target = re.sub(pattern, replacement, target)
    return target


def infer_vq_config(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Read codebook, channels and depth off the tensors; names of a damaged file are checked later, against these."""
    levels: dict[int, int] = {}
    blocks = set()
    for key, value in tensors.items():
        if match := re.fullmatch(r"encoder\.conv_blocks\.(\d+)\.res\.(\d+)\.norm2\.weight", key):
            levels[int(match[1])] = value.shape[0]
            blocks.add(int(match[2]))
    needed = {_CODEBOOK, "post_quant_conv.weight"}
    if not levels or sorted(levels) != list(range(len(levels))) or not needed <= tensors.keys():
        raise ValueError(
            f"{name} is no LlamaGen VQ tokenizer, or lacks some of {', '.join(sorted(needed))} and "
            f"encoder.conv_blocks.N.res.M.norm2.weight. It holds {list_names(tensors, 5)}."
        )
    depth = len(levels)
    return {
        "down_block_types": ("DownEncoderBlock2D",) * (depth - 1) + ("AttnDownEncoderBlock2D",),
        "up_block_types": ("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * (depth - 1),
        "block_out_channels": tuple(levels[level] for level in range(depth)),
        "layers_per_block": max(blocks) + 1,
        "latent_channels": tensors["post_quant_conv.weight"].shape[0],
        "num_vq_embeddings": tensors[_CODEBOOK].shape[0],
        "vq_embed_dim": tensors[_CODEBOOK].shape[-1],
        "lookup_from_codebook": True,
    }
