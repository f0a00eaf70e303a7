"""The application: global options, and one line a command."""

from __future__ import annotations

from typing import Annotated

import typer

import mmspec
from mmspec.cli import (
    ask,
    batch,
    bench,
    bench_all,
    convert,
    demo,
    doctor,
    image,
    models,
    speak,
    train,
    transcribe,
    video,
)
from mmspec.cli.errors import CommandGroup
from mmspec.cli.output import say

app = typer.Typer(
    name="mmspec",
    cls=CommandGroup,
    help="Speculative decoding for autoregressive image, speech, video and vision-language models.",
    epilog="Try [bold]mmspec demo[/], or [bold]mmspec COMMAND --help[/] for an example of every command.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"mmspec {mmspec.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the stack trace of an error; may also stand after the command.")
    ] = False,
) -> None:
    """Options of every command; ``debug`` is read by :class:`CommandGroup`."""


app.command("demo", rich_help_panel="Run")(demo.demo)
app.command("image", rich_help_panel="Run")(image.image)
app.command("video", rich_help_panel="Run")(video.video)
app.command("transcribe", rich_help_panel="Run")(transcribe.transcribe)
app.command("speak", rich_help_panel="Run")(speak.speak)
app.command("ask", rich_help_panel="Run")(ask.ask)
app.command("batch", rich_help_panel="Run")(batch.batch)
bench_all.register(bench.app)
app.add_typer(bench.app, name="bench", rich_help_panel="Measure")
app.command("models", rich_help_panel="Look up")(models.models)
app.command("doctor", rich_help_panel="Look up")(doctor.doctor)
app.add_typer(train.app, name="train", rich_help_panel="Make checkpoints")
app.add_typer(convert.app, name="convert", rich_help_panel="Make checkpoints")
