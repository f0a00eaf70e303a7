"""``mmspec convert cosmos-dv`` and ``cosmos-ar``: released Cosmos files to folders that the video pipeline loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import say, tell_files

DType = Annotated[str | None, typer.Option(help="Type of the weights; default as stored.")]


def cosmos_dv(
    files: Annotated[list[Path], typer.Argument(help="autoencoder.jit, or encoder.jit and decoder.jit.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder to make; must not exist or be empty.")],
    dtype: DType = None,
) -> None:
    """Convert a released Cosmos discrete video tokenizer; nothing is written if a tensor is missing or unexpected.

    [bold]Example[/]: mmspec convert cosmos-dv autoencoder.jit --out cosmos-dv8x16x16
    """
    _exist(*files)
    from mmspec.checkpoints.cosmos_writing import convert_cosmos_dv
    from mmspec.runner.device import pick_dtype

    convert_cosmos_dv(files, output, dtype=None if dtype is None else pick_dtype(dtype))
    tell_files([output])


def cosmos_ar(
    file: Annotated[Path, typer.Argument(help="model.pt of a released decoder.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder to make; must not exist or be empty.")],
    video_tokenizer: Annotated[
        Path | None, typer.Option(help="Folder made by cosmos-dv; without it only the decoder is written.")
    ] = None,
    text_encoder: Annotated[
        str | None, typer.Option(help="Folder or hub id of the T5 encoder (google-t5/t5-11b), for Video2World.")
    ] = None,
    latent_shape: Annotated[str, typer.Option(help="Latent frames x rows x columns of the training.")] = "5x40x64",
    yarn: Annotated[
        bool | None, typer.Option("--yarn/--no-yarn", help="Stretched positions; default: models of 40 layers.")
    ] = None,
    dtype: DType = None,
) -> None:
    """Convert a released Cosmos autoregressive decoder; nothing is written if a tensor is missing or unexpected.

    [bold]Example[/]: mmspec convert cosmos-ar model.pt --out cosmos-4b --video-tokenizer cosmos-dv8x16x16
    """
    shape = parse_shape(latent_shape)
    _exist(file, *([] if video_tokenizer is None else [video_tokenizer]))
    from mmspec.checkpoints.cosmos_writing import convert_cosmos_ar
    from mmspec.runner.device import pick_dtype

    convert_cosmos_ar(
        file, output, video_tokenizer=video_tokenizer, text_encoder=text_encoder, latent_shape=shape, yarn=yarn,
        dtype=None if dtype is None else pick_dtype(dtype),
    )  # fmt: skip
    tell_files([output])
    if video_tokenizer is not None:
        say(f"Try: mmspec video PICTURE --model {output} --drafter jacobi --set drafter.initializer=copy-frame")


def _exist(*paths: Path) -> None:
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; name a released file or a converted folder.")


def parse_shape(text: str) -> tuple[int, int, int]:
    """``5x40x64`` as latent frames, rows and columns; ValueError for anything else."""
    sizes = text.lower().split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"--latent-shape takes frames x rows x columns such as 5x40x64, got {text!r}.")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])
