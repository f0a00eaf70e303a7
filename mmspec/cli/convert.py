"""``mmspec convert``: released files to folders that the pipelines load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.convert_video import cosmos_ar, cosmos_dv
from mmspec.cli.output import say, tell_files

app = typer.Typer(help="Convert released files to folders that the pipelines load.", no_args_is_help=True)
app.command("cosmos-dv")(cosmos_dv)
app.command("cosmos-ar")(cosmos_ar)


@app.callback()
def group() -> None:
    """Convert released files to folders that the pipelines load."""


@app.command("llamagen")
def llamagen(
    transformer: Annotated[Path, typer.Argument(help="Decoder file, e.g. c2i_L_256.pt.")],
    vq: Annotated[Path, typer.Argument(help="VQ tokenizer file, e.g. vq_ds16_c2i.pt.")],
    output: Annotated[Path, typer.Argument(help="Folder to make; must not exist or be empty.")],
    image_size: Annotated[str, typer.Option(help="Pixels that the decoder was trained for: 256, or 256x384 (h x w).")],
    text_encoder: Annotated[
        str | None, typer.Option(help="Folder or hub id of the T5 encoder (google/flan-t5-xl for the released ones).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of decoder and text encoder; default as stored.")] = None,
    vq_dtype: Annotated[str | None, typer.Option(help="Type of the VQ tokenizer; default as stored.")] = None,
    num_heads: Annotated[
        int | None, typer.Option(help="Attention heads, where the size is none of the published.")
    ] = None,
    components_only: Annotated[
        bool, typer.Option("--components-only", help="Write the components without the pipeline's index.")
    ] = False,
) -> None:
    """Convert a released LlamaGen decoder and its VQ tokenizer; nothing is written if a file does not fit.

    [bold]Example[/]: mmspec convert llamagen c2i_L_256.pt vq_ds16_c2i.pt llamagen-l-256 --image-size 256
    """
    size = parse_size(image_size)
    for file in (transformer, vq):
        if not file.exists():
            raise FileNotFoundError(f"{file} does not exist; name a released file.")
    from mmspec.checkpoints.writing import convert_llamagen
    from mmspec.runner.device import pick_dtype

    convert_llamagen(
        transformer, vq, output, image_size=size, text_encoder=text_encoder, num_heads=num_heads,
        dtype=None if dtype is None else pick_dtype(dtype), vq_dtype=None if vq_dtype is None else pick_dtype(vq_dtype),
        components_only=components_only,
    )  # fmt: skip
    tell_files([output])
    if not components_only:
        say(f"Try: mmspec image --model {output} {'PROMPT' if text_encoder else '--class-label 207'} --drafter jacobi")


@app.command("any-order")
def any_order(
    kind: Annotated[str, typer.Argument(help="randar or arpg.")],
    transformer: Annotated[Path, typer.Argument(help="Decoder file, e.g. randar_0.7b_llamagen_360k.safetensors.")],
    vq: Annotated[Path, typer.Argument(help="LlamaGen's VQ tokenizer file, e.g. vq_ds16_c2i.pt.")],
    output: Annotated[Path, typer.Argument(help="Folder to make; must not exist or be empty.")],
    image_size: Annotated[str, typer.Option(help="Pixels that the decoder was trained for.")] = "256",
    num_heads: Annotated[
        int | None, typer.Option(help="Attention heads, where the size is none of the published.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the decoder; default as stored.")] = None,
) -> None:
    """Convert a released RandAR or ARPG decoder and its VQ tokenizer; nothing is written if a file does not fit.

    [bold]Example[/]: mmspec convert any-order randar model.safetensors vq_ds16_c2i.pt randar-xl
    """
    size = parse_size(image_size)
    for file in (transformer, vq):
        if not file.exists():
            raise FileNotFoundError(f"{file} does not exist; name a released file.")
    from mmspec.checkpoints.any_order import convert_any_order
    from mmspec.runner.device import pick_dtype

    number = None if dtype is None else pick_dtype(dtype)
    convert_any_order(kind, transformer, vq, output, image_size=size, num_heads=num_heads, dtype=number)
    tell_files([output])
    say(f"Try: mmspec image --model {output} --class-label 207 --drafter jacobi --set drafter.initializer=uniform")


@app.command("lantern-drafter")
def lantern_drafter(
    drafter: Annotated[Path, typer.Argument(help="Drafter file or folder as published by LANTERN.")],
    output: Annotated[Path, typer.Argument(help="Folder to make; must not exist or be empty.")],
    target: Annotated[
        Path | None, typer.Option(help="Converted pipeline that it drafts for; the drafter will refuse any other.")
    ] = None,
    num_heads: Annotated[
        int | None, typer.Option(help="Attention heads, where the width is none of the published.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the weights; default as stored.")] = None,
) -> None:
    """Convert a published LANTERN drafter for LlamaGen; nothing is written if a tensor is missing or unexpected.

    [bold]Example[/]: mmspec convert lantern-drafter drafter.safetensors llamagen-xl/feature_drafter --target llamagen-xl
    """
    for path in (drafter, target):
        if path is not None and not path.exists():
            raise FileNotFoundError(f"{path} does not exist; name a released file or a converted folder.")
    from mmspec.checkpoints.lantern_drafter import convert_lantern_drafter
    from mmspec.runner.device import pick_dtype

    convert_lantern_drafter(
        drafter, output, target=target, num_heads=num_heads, dtype=None if dtype is None else pick_dtype(dtype)
    )
    tell_files([output])
    if target is not None:
        say(f"Try: mmspec image --model {target} PROMPT --drafter feature --set drafter.weights={output}")


@app.command("chameleon-vq")
def chameleon_vq(
    checkpoint: Annotated[Path, typer.Argument(help="vqgan.ckpt of Meta's Chameleon release.")],
    output: Annotated[Path, typer.Argument(help="Folder to make; must not exist or be empty.")],
    dtype: Annotated[str | None, typer.Option(help="Type of the weights; default as stored.")] = None,
) -> None:
    """Convert Chameleon's picture tokenizer with its decoder, which Anole and Lumina-mGPT need to make pictures.

    [bold]Example[/]: mmspec convert chameleon-vq vqgan.ckpt chameleon-vq
    """
    if not checkpoint.exists():
        raise FileNotFoundError(f"{checkpoint} does not exist; name the released file.")
    from mmspec.checkpoints.chameleon_vq import convert_chameleon_vq
    from mmspec.runner.device import pick_dtype

    convert_chameleon_vq(checkpoint, output, dtype=None if dtype is None else pick_dtype(dtype))
    tell_files([output])
    say(f'Load with: ChameleonPipeline.from_pretrained(MODEL, vq="{output}", style="anole" or "lumina")')


@app.command("qwen3-tts")
def qwen3_tts(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a Qwen3-TTS release, with config.json.")],
    output: Annotated[Path, typer.Argument(help="Folder to make; must not exist or be empty.")],
    dtype: Annotated[str | None, typer.Option(help="Type of the weights; default as stored.")] = None,
) -> None:
    """Convert talker and code predictor of Qwen3-TTS; nothing is written if a tensor is missing or unexpected.

    [bold]Example[/]: mmspec convert qwen3-tts Qwen3-TTS-12Hz-0.6B-Base qwen3-tts-talker
    """
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"{checkpoint} is no folder; name the folder of a release.")
    from mmspec.checkpoints.qwen3_tts import convert_qwen3_tts
    from mmspec.runner.device import pick_dtype

    convert_qwen3_tts(checkpoint, output, None if dtype is None else pick_dtype(dtype))
    tell_files([output])


@app.command("glm-ocr-mtp")
def glm_ocr_mtp(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a GLM-OCR release, with config.json.")],
    output: Annotated[Path, typer.Argument(help="Folder to make; must not exist or be empty.")],
    dtype: Annotated[str | None, typer.Option(help="Type of the weights; default as stored.")] = None,
) -> None:
    """Convert the multi-token-prediction head of GLM-OCR, which transformers leaves out, to a drafter for that model.

    [bold]Example[/]: mmspec convert glm-ocr-mtp GLM-OCR glm-ocr-mtp
    """
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"{checkpoint} is no folder; name the folder of a release.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")
    from mmspec.checkpoints.glm_ocr_mtp import load_glm_ocr_mtp
    from mmspec.models.transformers_loading import load_transformers_model
    from mmspec.runner.device import pick_dtype

    target = load_transformers_model(checkpoint)
    number = None if dtype is None else pick_dtype(dtype)
    load_glm_ocr_mtp(checkpoint, target=target, dtype=number).save_pretrained(output)
    tell_files([output])
    say(
        f"Try: mmspec ask PICTURE 'Text Recognition:' --model {checkpoint} --drafter mtp --set drafter.weights={output}"
    )


def parse_size(text: str) -> int | tuple[int, int]:
    """``256`` or ``256x384`` as pixels; ValueError for anything else."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"--image-size takes a side such as 256 or height x width such as 256x384, got {text!r}.")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))
