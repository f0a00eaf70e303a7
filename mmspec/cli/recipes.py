"""What the commands of ``mmspec train`` share: their options, and how a recipe is configured and run."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.settings import parse_value

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


def run_recipe(module: str, config: str, given: dict[str, Any], device: str, settings: list[str] | None) -> None:
    """Configure and run ``module.train``; options that were not given keep the recipe's defaults.

    Raises:
        ValueError: For a setting that the recipe refuses or does not know.
    """
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
