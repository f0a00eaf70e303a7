"""``mmspec train randar`` and ``randar-export``: the recipe of mmspec/emoji-randar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.recipes import BatchSize, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe


def randar(
    data: Annotated[Path, typer.Option(help="Folder of the emoji archives; missing ones are fetched with npm.")],
    vq: Annotated[Path, typer.Option(help="Folder of the trained tokenizer, e.g. that of mmspec/emoji-t2i.")],
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the any-order decoder of mmspec/emoji-randar.

    [bold]Example[/]: mmspec train randar --data emoji --vq emoji-t2i/vq --output runs/randar --minutes 40
    """
    given = {
        "data": data, "vq": vq, "output": output, "steps": steps, "minutes": minutes, "batch_size": batch_size,
        "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.randar", "RandARConfig", given, device, settings)


def randar_export(
    run: Annotated[Path, typer.Option(help="Output folder of 'mmspec train randar', of a running training too.")],
    output: Output,
    assessment: Annotated[Path | None, typer.Option(help="Text for the card on what pictures look like.")] = None,
    steps: Steps = None,
) -> None:
    """Write a trained any-order model and its card; with ``--steps`` if that was the training's limit.

    [bold]Example[/]: mmspec train randar-export --run runs/randar -o emoji-randar
    """
    from mmspec.training.randar import saved_config
    from mmspec.training.randar_export import export

    tell_files([export(saved_config(run, steps), output, "" if assessment is None else assessment.read_text())])
