"""Options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SAMPLING = "Sampling (default: what the checkpoint recommends)"
METHOD = "Method (default: what the checkpoint recommends)"

Model = Annotated[str, typer.Option(help="Embedded name, folder or hub id.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DType = Annotated[str, typer.Option(help="float32 (auto; exact), bfloat16 or float16 (equal up to rounding).")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of the first picture; the next have seed + 1, ... Default: a fresh one each.")
]
FixedSeed = Annotated[int, typer.Option(help="Seed of the first picture; the next have seed + 1, ...", min=0)]
OwnPrompts = Annotated[
    list[str] | None, typer.Option("--prompt", help="Own prompt instead of the checkpoint's; may be repeated.")
]

Prompts = Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", show_default=False)]
ImageOut = Annotated[Path, typer.Option("--out", "-o", help="A .png file for one picture, or a folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files of the same name.")]
NumImages = Annotated[int, typer.Option(help="Pictures per prompt.", min=1)]
ClassLabels = Annotated[
    list[str] | None,
    typer.Option("--class-label", help="Class number or name instead of a prompt; may be repeated."),
]
MicroBatchSize = Annotated[
    int | None, typer.Option(help="Decode at most this many pictures together; changes memory only.")
]

Height = Annotated[int | None, typer.Option(help="Pixels, for models with several sizes.")]
Width = Annotated[int | None, typer.Option(help="Pixels, for models with several sizes.")]
AspectRatio = Annotated[str | None, typer.Option(help="width:height such as 16:9, instead of height and width.")]

NegativePrompt = Annotated[str | None, typer.Option(help="What to steer away from.")]
GuidanceScale = Annotated[float | None, typer.Option(help="1 switches guidance off.", rich_help_panel=SAMPLING)]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)]
TopK = Annotated[int | None, typer.Option(help="0 keeps all tokens.", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(help="1 keeps all tokens.", rich_help_panel=SAMPLING)]

DrafterName = Annotated[
    str | None,
    typer.Option("--drafter", help="jacobi, ngram, ...; an unknown name lists all.", rich_help_panel=METHOD),
]
AcceptanceName = Annotated[
    str | None,
    typer.Option("--acceptance", help="coupled, ratio, ...; an unknown name lists all.", rich_help_panel=METHOD),
]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="Another order than raster, in place of a drafter: zipar; an unknown name lists all.",
        rich_help_panel=METHOD,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KIND.NAME=VALUE", help="A setting: drafter.window=16.", rich_help_panel=METHOD),
]
Plain = Annotated[bool, typer.Option("--plain", help="One token per forward, no speculation.", rich_help_panel=METHOD)]
