"""``mmspec bench all``: every suite, one after the other, into one file and one folder of figures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import bench, options
from mmspec.cli.ask import DEFAULT_VISION_LANGUAGE_MODEL
from mmspec.cli.loading import DEFAULT_IMAGE_MODEL
from mmspec.cli.output import complain, say, tell_files
from mmspec.cli.speak import DEFAULT_VOICE
from mmspec.cli.transcribe import DEFAULT_SPEECH_MODEL
from mmspec.cli.video import DEFAULT_VIDEO_MODEL

SUITES: dict[str, tuple[str, Callable[..., None]]] = {
    "image": (DEFAULT_IMAGE_MODEL, bench.image),
    "asr": (DEFAULT_SPEECH_MODEL, bench.asr),
    "tts": (DEFAULT_VOICE, bench.tts),
    "video": (DEFAULT_VIDEO_MODEL, bench.video),
    "vlm": (DEFAULT_VISION_LANGUAGE_MODEL, bench.vlm),
    "batch": (DEFAULT_IMAGE_MODEL, bench.batch),
}
"""Model and command of each suite."""


def bench_all(
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="image, asr, tts, video, vlm or batch; may be repeated. Default: all whose model is embedded."
        ),
    ] = None,
    items: Annotated[int | None, typer.Option(help="Items of each suite; default: each suite's own.", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few methods and items, some minutes in all.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for charts of ratios, limit, time and acceptance, as PNG files.")
    ] = None,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Run the suites on the embedded models, each with its methods interleaved in this process.

    The exit code is 1 if a method of any suite broke its promise of plain decoding's output.

    [bold]Example[/]: mmspec bench all --quick --json bench.json --plot figures
    """
    from mmspec.bench.plots import check_installed, write_figures
    from mmspec.bench.report import SCHEMA, circumstances
    from mmspec.models.loading import embedded_checkpoints
    from mmspec.models.versions import versions

    there = embedded_checkpoints()
    chosen = suite or [name for name, (model, _) in SUITES.items() if model in there]
    if unknown := [name for name in chosen if name not in SUITES]:
        raise ValueError(f"Unknown --suite {unknown[0]!r}; choose from {', '.join(SUITES)}.")
    if plot is not None:
        check_installed()
        if plot.exists() and not plot.is_dir():
            raise NotADirectoryError(f"--plot {plot} is a file; name a folder.")
    reports, broken = _run(chosen, items, quick, device, dtype)
    if json_file is not None:
        facts = {"versions": versions(), **circumstances()}
        whole = {"schema": SCHEMA, "suite": "all", "device": reports[0]["device"], **facts, "suites": reports}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(whole, indent=1) + "\n")
        tell_files([json_file])
    if plot is not None:
        tell_files([path for report in reports for path in write_figures(report, plot)])
    if broken:
        complain(f"Suites with methods that are not equal to plain decoding: {', '.join(broken)}.")
        raise typer.Exit(1)


def _run(
    chosen: list[str], items: int | None, quick: bool, device: str, dtype: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The reports of the suites, and the names of those that found a broken promise."""
    reports, broken = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys(chosen):
            say(f"{name}:", style="bold")
            file = Path(folder) / f"{name}.json"
            try:
                SUITES[name][1](items=items, quick=quick, json_file=file, device=device, dtype=dtype)
            except typer.Exit:  # told by the suite; its figures are written
                broken.append(name)
            reports.append(json.loads(file.read_text()))
    return reports, broken


def register(app: typer.Typer) -> None:
    """Add the command to the group of the suites."""
    app.command("all")(bench_all)
