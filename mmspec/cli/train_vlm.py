"""``mmspec train vlm``: the data and the target of the embedded vision-language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.recipes import BatchSize, Compile, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe

app = typer.Typer(help="Train the embedded vision-language model.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder of emoji archives, fonts and words.")]


@app.callback()
def group() -> None:
    """Train the embedded vision-language model."""


@app.command()
def data(data: Data) -> None:
    """Fetch emoji with npm, and fonts and words with apt-get; about 60 MB.

    [bold]Example[/]: mmspec train vlm data --data vlm-data
    """
    from mmspec.training.vlm_tasks import DataConfig, build

    tell_files([build(DataConfig(data))])


@app.command()
def target(
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
    """Train the model, measure it on held-out pictures and save it as a pipeline in the folder pipeline of --output.

    [bold]Example[/]: mmspec train vlm target --data vlm-data --output runs/vlm --minutes 60
    """
    given = {
        "data": data, "output": output, "steps": steps, "minutes": minutes, "batch_size": batch_size, "seed": seed,
        "compile": compile, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.vlm_target", "VlmTargetConfig", given, device, settings)
