"""``mmspec train``: the recipes of the embedded checkpoints."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.settings import parse_value

app = typer.Typer(help="Train the embedded checkpoints from their data.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder of the emoji archives; missing ones are fetched with npm.")]
Output = Annotated[Path, typer.Option("--output", "--out", "-o", help="Folder of checkpoint, log and result.")]
Steps = Annotated[int | None, typer.Option(help="Stop after this many steps.")]
Minutes = Annotated[float | None, typer.Option(help="Stop after this many minutes, all resumptions counted.")]
BatchSize = Annotated[int | None, typer.Option(help="Samples a step.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random choice.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the network; pays from some minutes on.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --output.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, e.g. learning_rate=5e-4.")
]


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
    _train("mmspec.training.vq", "VQConfig", given, device, settings)


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
    _train("mmspec.training.llamagen", "LlamaGenConfig", given, device, settings)


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
    _train("mmspec.training.image_drafter", "ImageDrafterConfig", given, device, settings)


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
    _train("mmspec.training.spatial", "SpatialHeadsConfig", given, device, settings)


def _train(module: str, config: str, given: dict[str, Any], device: str, settings: list[str] | None) -> None:
    from mmspec.runner.device import pick_device

    recipe = importlib.import_module(module)
    more = parse_fields(getattr(recipe, config), settings or [], taken=set(given) | {"device"})
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    result = recipe.train(getattr(recipe, config)(**options, **more, device=str(pick_device(device))))
    tell_files([Path(result)])


def parse_fields(config: Any, assignments: list[str], taken: set[str]) -> dict[str, Any]:
    """Read ``name=value`` entries for the fields of a dataclass; those ``taken`` have options of their own.

    Raises:
        ValueError: For an unknown field, with the legal names, or an entry of another form.
    """
    legal = [field.name for field in dataclasses.fields(config) if field.name not in taken]
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in legal:
            raise ValueError(f"--set takes NAME=VALUE with a name of {', '.join(legal)}; got {assignment!r}.")
        value = parse_value(text)
        values[name] = tuple(value) if isinstance(value, list) else value
    return values
