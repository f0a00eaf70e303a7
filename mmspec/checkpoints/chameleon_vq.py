"""Convert Chameleon's picture tokenizer (``vqgan.ckpt`` of Meta's release) to a diffusers ``VQModel``.

Anole and Lumina-mGPT use it unchanged. transformers' ``ChameleonVQVAE`` is its encoder alone; this is the whole of it.
Names and network are those of Esser et al., 2021, "Taming Transformers for High-Resolution Image Synthesis", with
attention in the middle only; its decoder counts levels from the finest, diffusers' from the coarsest. Tensors may also
lie under ``model.vqmodel.``, as in checkpoints of a transformers model that kept them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel
from torch import Tensor

from mmspec.checkpoints.reading import read_tensors
from mmspec.checkpoints.renamed_vq import build_vq
from mmspec.models.strict import list_names

_CODEBOOK = "quantize.embedding.weight"
_TRAINING_ONLY = "loss."  # discriminator and perceptual loss
_PREFIX = "model.vqmodel."
# diffusers' name -> the authors' name, applied in this order
_RENAMES = (
    (r"down_blocks\.(\d+)\.resnets\.", r"down.\1.block."),
    (r"down_blocks\.(\d+)\.downsamplers\.0\.", r"down.\1.downsample."),
    (r"up_blocks\.(\d+)\.resnets\.", r"up.\1.block."),
    (r"up_blocks\.(\d+)\.upsamplers\.0\.", r"up.\1.upsample."),
    (r"mid_block\.resnets\.0\.", "mid.block_1."),
    (r"mid_block\.resnets\.1\.", "mid.block_2."),
    (r"mid_block\.attentions\.0\.", "mid.attn_1."),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
)


def load_chameleon_vq(path: str | Path, *, dtype: torch.dtype | None = None) -> VQModel:
    """Load Chameleon's VQ model.

    Args:
        path: File or folder, as in :func:`~mmspec.checkpoints.reading.read_tensors`.
        dtype: Type of the weights; by default the file's.

    Raises:
        ValueError: If the file is refused or damaged, or a tensor is missing, unexpected or of another shape.
    """
    name = Path(path).name
    tensors = read_tensors(path)
    if any(key.startswith(_PREFIX) for key in tensors):
        tensors = {key.removeprefix(_PREFIX): value for key, value in tensors.items() if key.startswith(_PREFIX)}
    tensors = {key: value for key, value in tensors.items() if not key.startswith(_TRAINING_ONLY)}
    config = infer_config(tensors, name)
    levels = len(config["block_out_channels"])
    return build_vq(tensors, config, lambda target: _source_name(target, levels), name, dtype=dtype)


def convert_chameleon_vq(path: str | Path, output: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """Write Chameleon's VQ model to the folder ``output``, for ``ChameleonPipeline``'s ``vq``.

    Raises:
        ValueError: As :func:`load_chameleon_vq`; nothing is written then.
        FileExistsError: If ``output`` holds something.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")
    load_chameleon_vq(path, dtype=dtype).save_pretrained(output)
    return output


def _source_name(target: str, levels: int) -> str:
    for pattern, replacement in _RENAMES:
        target = re.sub(pattern, replacement, target)
    return re.sub(r"^decoder\.up\.(\d+)\.", lambda match: f"decoder.up.{levels - 1 - int(match[1])}.", target)


def infer_config(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Read codebook, channels and depth off the tensors; names of a damaged file are checked later, against these."""
    channels: dict[int, int] = {}
    blocks = set()
    for key, value in tensors.items():
        if match := re.fullmatch(r"encoder\.down\.(\d+)\.block\.(\d+)\.norm2\.weight", key):
            channels[int(match[1])] = value.shape[0]
            blocks.add(int(match[2]))
    needed = {_CODEBOOK, "post_quant_conv.weight", "decoder.conv_in.weight"}
    if not channels or sorted(channels) != list(range(len(channels))) or not needed <= tensors.keys():
        raise ValueError(
            f"{name} is not Chameleon's VQ model with its decoder, or lacks some of {', '.join(sorted(needed))} and "
            f"encoder.down.N.block.M.norm2.weight. It holds {list_names(tensors, 5)}."
        )
    return {
        "down_block_types": ("DownEncoderBlock2D",) * len(channels),
        "up_block_types": ("UpDecoderBlock2D",) * len(channels),
        "block_out_channels": tuple(channels[level] for level in range(len(channels))),
        "layers_per_block": max(blocks) + 1,
        "latent_channels": tensors["post_quant_conv.weight"].shape[0],
        "num_vq_embeddings": tensors[_CODEBOOK].shape[0],
        "vq_embed_dim": tensors[_CODEBOOK].shape[-1],
        "lookup_from_codebook": True,
    }
