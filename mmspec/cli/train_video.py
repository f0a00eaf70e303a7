"""``mmspec train video-tokenizer``, ``video-ar`` and ``video-export``: the recipes of mmspec/tiny-video."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.recipes import BatchSize, Compile, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe

Data = Annotated[Path, typer.Option(help="Folder of the emoji archives; missing ones are fetched with npm.")]


def video_tokenizer(
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
    """Train the video tokenizer of mmspec/tiny-video on procedural clips.

    [bold]Example[/]: mmspec train video-tokenizer --data emoji --output runs/video-tokenizer --minutes 15
    """
    given = {
        "data": data, "output": output, "steps": steps, "minutes": minutes, "batch_size": batch_size, "seed": seed,
        "compile": compile, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.video_tokenizer", "VideoTokenizerConfig", given, device, settings)


def video_ar(
    data: Data,
    tokenizer: Annotated[Path, typer.Option(help="Folder of the trained tokenizer, made by video-tokenizer.")],
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
    """Train the decoder and the text encoder of mmspec/tiny-video.

    [bold]Example[/]: mmspec train video-ar --data emoji --tokenizer runs/video-tokenizer/tokenizer --output runs/video-ar
    --minutes 60
    """
    given = {
        "data": data, "tokenizer": tokenizer, "output": output, "steps": steps, "minutes": minutes,
        "batch_size": batch_size, "seed": seed, "compile": compile, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.video_ar", "VideoARConfig", given, device, settings)


def video_export(
    run: Annotated[Path, typer.Option(help="Output folder of 'mmspec train video-ar', of a running training too.")],
    output: Output,
    tokenizer_run: Annotated[
        list[Path] | None,
        typer.Option(help="Output folder of 'mmspec train video-tokenizer'; repeat it, first to last."),
    ] = None,
    assessment: Annotated[Path | None, typer.Option(help="Text for the card on what the clips look like.")] = None,
    steps: Steps = None,
) -> None:
    """Write a trained video model, its samples and its card; with ``--steps`` if that was the training's limit.

    A model that started from an exported one has its tokenizer: then there is no ``--tokenizer-run``.

    [bold]Example[/]: mmspec train video-export --run runs/video-ar --tokenizer-run runs/video-tokenizer -o tiny-video
    """
    from mmspec.training import video_ar, video_tokenizer
    from mmspec.training.video_export import export

    runs = [video_tokenizer.saved_config(folder) for folder in tokenizer_run or ()]
    text = "" if assessment is None else assessment.read_text()
    tell_files([export(video_ar.saved_config(run, steps), runs, output, text)])
