"""``mmspec train tts``: the stages of the embedded voice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.recipes import BatchSize, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe

app = typer.Typer(help="Train the embedded voice, stage by stage.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder of the recordings, the output of 'mmspec train tts data'.")]
Codec = Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts codec'.")]


@app.callback()
def group() -> None:
    """Train the embedded voice, stage by stage."""


@app.command()
def data(data: Annotated[Path, typer.Option(help="Folder for packages and recordings; about 100 MB.")]) -> None:
    """Fetch the recordings of one speaker: needs apt-get and dpkg.

    [bold]Example[/]: mmspec train tts data --data voice
    """
    from mmspec.training.tts_data import TtsCorpusConfig, build

    tell_files([build(TtsCorpusConfig(data=data))])


@app.command()
def codec(
    data: Data,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the codec.

    [bold]Example[/]: mmspec train tts codec --data voice --output runs/codec --minutes 30
    """
    given = {
        "data": data, "output": output, "steps": steps, "minutes": minutes, "batch_size": batch_size, "seed": seed,
        "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.tts_codec", "CodecConfig", given, device, settings)
