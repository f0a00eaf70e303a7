"""Write a pipeline folder from converted parts.

Everything is read and checked before the first byte is written, so a bad file leaves no half-made folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.checkpoints.llamagen import load_llamagen_transformer
from mmspec.checkpoints.llamagen_vq import load_llamagen_vq
from mmspec.image.vq import downsample_factor


def convert_llamagen(
    transformer_file: str | Path,
    vq_file: str | Path,
    output: str | Path,
    *,
    image_size: int | tuple[int, int],
    text_encoder: str | Path | None = None,
    num_heads: int | None = None,
    dtype: torch.dtype | None = None,
    vq_dtype: torch.dtype | None = None,
    components_only: bool = False,
) -> Path:
    """Convert released LlamaGen files to a folder that ``LlamaGenPipeline.from_pretrained`` loads.

    Args:
        transformer_file, vq_file: The decoder and the VQ tokenizer, in any released layout.
        output: Folder to make; it must not exist or be empty.
        image_size: Pixels of the picture (side, or height and width) that the decoder was trained for.
        text_encoder: Folder or hub id of the T5 model with its tokenizer (flan-t5-xl in the release); ``None`` writes
            none, and a pipeline for captions then takes embeddings only.
        num_heads: Attention heads of the decoder where it has no published size.
        dtype: Type of decoder and text encoder; by default as stored.
        vq_dtype: Type of the VQ tokenizer; by default as stored.
        components_only: Write the component folders without the pipeline's ``model_index.json``.

    Returns:
        ``output``.

    Raises:
        ValueError: If a file is refused or damaged, or the parts do not fit one another.
        FileExistsError: If ``output`` holds something.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")
    vq = load_llamagen_vq(vq_file, dtype=vq_dtype)
    transformer = load_llamagen_transformer(
        transformer_file, image_size=image_size, downsample=downsample_factor(vq), num_heads=num_heads, dtype=dtype
    )
    if transformer.config.vocab_size != vq.config.num_vq_embeddings:
        raise ValueError(
            f"The decoder has {transformer.config.vocab_size} codes, the VQ tokenizer {vq.config.num_vq_embeddings}. "
            f"They belong to different releases."
        )
    parts = {"transformer": transformer, "vq": vq}
    if text_encoder is not None:
        parts |= load_text_encoder(text_encoder, transformer.config.caption_dim, dtype)
    if components_only:
        write_components(parts, output)
    else:
        write_llamagen_pipeline(parts, output)
    return output


def load_text_encoder(name: str | Path, caption_dim: int | None, dtype: torch.dtype | None) -> dict[str, Any]:
    """Load the "text_encoder" and "tokenizer" of a folder or hub id.

    Raises:
        ValueError: If the decoder takes no captions or features of another width.
    """
    from transformers import AutoConfig, AutoTokenizer, T5EncoderModel

    width = AutoConfig.from_pretrained(name).d_model  # before gigabytes are read for nothing
    if caption_dim != width:
        takes = "no captions" if caption_dim is None else f"features of width {caption_dim}"
        raise ValueError(f"`text_encoder` {str(name)!r} has width {width}, but the decoder takes {takes}.")
    encoder = T5EncoderModel.from_pretrained(name, dtype=dtype or "auto")
    return {"text_encoder": encoder.eval(), "tokenizer": AutoTokenizer.from_pretrained(name)}


def write_components(parts: Mapping[str, Any], output: Path) -> None:
    """Write each part to the sub-folder of its name."""
    for name, part in parts.items():
        part.save_pretrained(output / name)


def write_llamagen_pipeline(parts: Mapping[str, Any], output: Path) -> None:
    """Write the parts and the ``model_index.json`` of a ``LlamaGenPipeline``."""
    from mmspec.pipelines.llamagen import LlamaGenPipeline  # the import brings in all of diffusers' pipelines

    LlamaGenPipeline(**parts).save_pretrained(output)
