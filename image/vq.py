"""Image tokens to pictures and back, for any diffusers ``VQModel`` that looks codes up in its codebook.

Values are those of the network and are *not* clamped: a decoded picture lies roughly in [-1, 1] and overshoots at
hard edges. Whoever turns it into bytes clamps it, as diffusers' ``VaeImageProcessor.postprocess`` does.

The codebook of LlamaGen (Sun et al., 2024) is used L2-normalised; its rows are stored normalised here, see
``mmspec.checkpoints.llamagen_vq``.

Symbols of the shapes: B pictures, H and W rows and columns of codes, h and w of pixels, E code width, K codes.
"""

from __future__ import annotations

import torch
from diffusers import VQModel
from torch import Tensor


def downsample_factor(vq: VQModel) -> int:
    """Pixels per code and side."""
    return 2 ** (len(vq.config.block_out_channels) - 1)


def codebook(vq: VQModel) -> Tensor:
    """The vectors that codes stand for when ``vq`` decodes them (K, E), float32.

    Raises:
        ValueError: If the weights are not in memory, as under sequential CPU offload.
    """
    rows = vq.quantize.embedding.weight.detach()
    if rows.is_meta:
        raise ValueError(
            "The codebook of `vq` is not in memory; use `enable_model_cpu_offload` instead of the sequential one."
        )
    return rows.float()


@torch.no_grad()
def decode_codes(vq: VQModel, codes: Tensor, *, micro_batch: int | None = None) -> Tensor:
    """Turn codes (B, H, W) into pictures (B, 3, h, w), roughly in [-1, 1] and not clamped.

    Args:
        vq: The VQ model.
        codes: Integers in [0, K), in raster order: ``codes[b, r, c]`` is the cell in row r, column c.
        micro_batch: Decode this many pictures at a time, to bound memory; ``None`` decodes all together.

    Raises:
        ValueError: For another number of dimensions, codes outside the codebook, or a model without lookup.
    """
    if not vq.config.lookup_from_codebook:
        raise ValueError(
            "`vq` has `lookup_from_codebook=False` and cannot decode codes; set it to True in its config."
        )
    if codes.ndim != 3:
        raise ValueError(f"`codes` has shape {tuple(codes.shape)}; it must be (pictures, rows, columns).")
    size = vq.config.num_vq_embeddings
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < size:
        raise ValueError(f"`codes` reach from {int(codes.min())} to {int(codes.max())}; the codebook has {size} rows.")
    width = vq.quantize.embedding.weight.shape[1]
    pictures = [
        vq.decode(part.to(vq.device), force_not_quantize=True, shape=(*part.shape, width), return_dict=False)[0]
        for part in codes.split(micro_batch or max(len(codes), 1))
    ]
    return torch.cat(pictures)


@torch.no_grad()
def encode_images(vq: VQModel, images: Tensor, *, micro_batch: int | None = None) -> Tensor:
    """Turn pictures (B, 3, h, w) in [-1, 1] into the codes (B, H, W) of the nearest rows of the codebook.

    With a codebook of unit rows, the nearest row does not depend on the length of the latent vector, so the
    normalisation of latents that LlamaGen's encoder performs needs no step of its own.

    Raises:
        ValueError: If the sides are not multiples of the model's downsampling.
    """
    factor = downsample_factor(vq)
    if images.ndim != 4 or images.shape[-2] % factor or images.shape[-1] % factor or not images.numel():
        raise ValueError(
            f"`images` has shape {tuple(images.shape)}; it must be (pictures, {vq.config.in_channels}, height, width) "
            f"with sides that are positive multiples of {factor}."
        )
    rows = codebook(vq)
    codes = [
        _nearest(vq.encode(part.to(vq.device, vq.dtype)).latents.float(), rows)
        for part in images.split(micro_batch or len(images))
    ]
    return torch.cat(codes)


def _nearest(latents: Tensor, rows: Tensor) -> Tensor:
    """Index (B, H, W) of the row of ``rows`` (K, E) closest to each vector of ``latents`` (B, E, H, W).

    argmin |z - e|^2 = argmax z.e - |e|^2 / 2; without |z|^2 a long latent vector does not swamp the difference.
    """
    vectors = latents.permute(0, 2, 3, 1).flatten(0, 2)
    scores = torch.addmm(-rows.square().sum(-1) / 2, vectors, rows.T)
    return scores.argmax(-1).unflatten(0, (latents.shape[0], *latents.shape[2:]))
