"""Write pipeline folders from released Cosmos files. Everything is read and checked before the first byte is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from mmspec.checkpoints.cosmos_ar import load_cosmos_ar
from mmspec.checkpoints.cosmos_dv import load_cosmos_dv
from mmspec.checkpoints.writing import load_text_encoder
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from mmspec.models.loading import load_component


def check_output(output: Path) -> None:
    """Raise FileExistsError if ``output`` holds something."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")


def convert_cosmos_dv(paths: Sequence[str | Path], output: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """Write a released video tokenizer as a folder of its own and return it; see :func:`load_cosmos_dv`."""
    check_output(Path(output))
    load_cosmos_dv(*paths, dtype=dtype).save_pretrained(output)
    return Path(output)


def convert_cosmos_ar(
    path: str | Path,
    output: str | Path,
    *,
    video_tokenizer: str | Path | None = None,
    text_encoder: str | Path | None = None,
    latent_shape: tuple[int, int, int] = (5, 40, 64),
    yarn: bool | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a released decoder, with a converted tokenizer as a whole pipeline.

    Args:
        path: The decoder's file.
        output: Folder to make; it must not exist or be empty.
        video_tokenizer: Folder of the converted tokenizer; without it only ``output/transformer`` is written.
        text_encoder: Folder or hub id of the T5 model with its tokenizer (T5-11B in the release), for Video2World.
        latent_shape, yarn, dtype: See :func:`load_cosmos_ar`.

    Raises:
        ValueError: If a file is refused or damaged, or the parts do not fit one another.
        FileExistsError: If ``output`` holds something.
    """
    output = Path(output)
    check_output(output)
    transformer = load_cosmos_ar(path, latent_shape=latent_shape, yarn=yarn, dtype=dtype)
    parts = {} if text_encoder is None else load_text_encoder(text_encoder, transformer.config.context_dim, dtype)
    if video_tokenizer is None:
        for name, part in {"transformer": transformer, **parts}.items():
            part.save_pretrained(output / name)
        return output
    tokenizer = load_component(Path(video_tokenizer))
    if not isinstance(tokenizer, DiscreteVideoTokenizer):
        raise ValueError(f"{video_tokenizer} holds a {type(tokenizer).__name__}, not a DiscreteVideoTokenizer.")
    from mmspec.pipelines.video import VideoPipeline  # the import brings in all of diffusers' pipelines

    VideoPipeline(transformer, tokenizer, **parts).save_pretrained(output)
    return output
