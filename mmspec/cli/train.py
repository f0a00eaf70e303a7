"""``mmspec train``: the recipes of the embedded checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.recipes import BatchSize, Compile, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe
from mmspec.cli.train_asr import app as asr
from mmspec.cli.train_randar import randar, randar_export
from mmspec.cli.train_tts import app as tts
from mmspec.cli.train_video import video_ar, video_export, video_tokenizer
from mmspec.cli.train_vlm import app as vlm

app = typer.Typer(help="Train the embedded checkpoints from their data.", no_args_is_help=True)
app.add_typer(asr, name="asr")
app.add_typer(tts, name="tts")
app.add_typer(vlm, name="vlm")
app.command("video-tokenizer")(video_tokenizer)
app.command("video-ar")(video_ar)
app.command("video-export")(video_export)
app.command("randar")(randar)
app.command("randar-export")(randar_export)

VLM_HEADS = {
    "block": ("mmspec.training.vlm_drafter", "VlmDrafterConfig"),
    "eagle3": ("mmspec.training.vlm_eagle3", "VlmEagle3Config"),
    "mtp": ("mmspec.training.vlm_mtp", "VlmMTPConfig"),
}
"""Kind of drafter -> module and configuration of its recipe."""

Data = Annotated[Path, typer.Option(help="Folder of the emoji archives; missing ones are fetched with npm.")]


@app.callback()
def group() -> None:
    """Train the embedded checkpoints from their data."""


@app.command("emoji-vq")
def emoji_vq(
    data: Data,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    compile: Compile = False,
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the image tokenizer of mmspec/emoji-t2i.

    [bold]Example[/]: mmspec train emoji-vq --data emoji --output runs/vq --minutes 20
    """
    given = {
        "data": data, "output": output, "steps": steps, "minutes": minutes, "batch_size": batch_size, "seed": seed,
        "compile": compile, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.vq", "VQConfig", given, device, settings)


@app.command("emoji-t2i")
def emoji_t2i(
    data: Data,
    vq: Annotated[Path, typer.Option(help="Folder of the trained tokenizer, the output of emoji-vq.")],
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    compile: Compile = False,
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the decoder and the text encoder of mmspec/emoji-t2i.

    [bold]Example[/]: mmspec train emoji-t2i --data emoji --vq runs/vq --output runs/t2i --minutes 60
    """
    given = {
        "data": data, "vq": vq, "output": output, "steps": steps, "minutes": minutes, "batch_size": batch_size,
        "seed": seed, "compile": compile, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.llamagen", "LlamaGenConfig", given, device, settings)


@app.command("image-drafter")
def image_drafter(
    output: Output,
    target: Annotated[str, typer.Option(help="Embedded name, folder or hub id of a LlamaGen pipeline.")] = (
        "mmspec/emoji-t2i"
    ),
    prompts: Annotated[
        Path | None, typer.Option(help="Captions to draw, one a line; not needed for mmspec/emoji-t2i and classes.")
    ] = None,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    compile: Compile = False,
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train a feature drafter for an image model, on pictures that the model draws itself.

    [bold]Example[/]: mmspec train image-drafter --output runs/drafter --minutes 15
    """
    given = {
        "output": output, "target": target, "prompts": prompts, "steps": steps, "minutes": minutes,
        "batch_size": batch_size, "seed": seed, "compile": compile, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.image_drafter", "ImageDrafterConfig", given, device, settings)


@app.command("spatial-heads")
def spatial_heads(
    output: Output,
    target: Annotated[str, typer.Option(help="Embedded name, folder or hub id of a LlamaGen pipeline.")] = (
        "mmspec/emoji-t2i"
    ),
    prompts: Annotated[
        Path | None, typer.Option(help="Captions to draw, one a line; not needed for mmspec/emoji-t2i and classes.")
    ] = None,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train heads that guess cells along the row and in the rows below, on pictures that the model draws itself.

    [bold]Example[/]: mmspec train spatial-heads --output runs/heads --minutes 6
    """
    given = {
        "output": output, "target": target, "prompts": prompts, "steps": steps, "minutes": minutes,
        "batch_size": batch_size, "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.spatial", "SpatialHeadsConfig", given, device, settings)


@app.command("vlm-drafter")
def vlm_drafter(
    output: Output,
    target: Annotated[str, typer.Option(help="Embedded name, folder or hub id of a vision-language model.")] = (
        "mmspec/tiny-vlm"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Folder that 'mmspec train vlm data' filled, for the embedded model.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Questions for other models, one JSON object a line: prompt, images, answer.")
    ] = None,
    held_out: Annotated[Path | None, typer.Option(help="Questions of the same form to measure on.")] = None,
    head: Annotated[str, typer.Option(help="block, eagle3 or mtp.")] = "block",
    loss: Annotated[
        str | None, typer.Option(help="Of block drafters: ce, kd, erase, alr or alr-ira; of mtp: ce or kd.")
    ] = None,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train a drafter for a vision-language model, in one process with the model itself.

    A block drafter (DFlash, GLANCE) drafts a block in one forward; an EAGLE-3 head and a recursive MTP
    head (FastMTP) draft token by token.

    [bold]Example[/]: mmspec train vlm-drafter --target runs/vlm/pipeline --data vlm-data --output runs/block --minutes 15
    """
    given = {
        "output": output, "target": target, "data": data, "questions": questions, "held_out": held_out, "steps": steps,
        "minutes": minutes, "batch_size": batch_size, "seed": seed, "resume": resume,
    }  # fmt: skip
    if head not in VLM_HEADS:
        raise ValueError(f"Unknown --head {head!r}; choose one of {', '.join(VLM_HEADS)}.")
    if head != "eagle3":
        given["loss"] = loss
    elif loss is not None:
        raise ValueError(f"--loss is for block drafters and MTP heads; a head {head!r} has one loss only.")
    run_recipe(*VLM_HEADS[head], given, device, settings)
