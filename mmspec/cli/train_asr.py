"""``mmspec train asr``: the stages of the embedded speech recogniser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import say, tell_files
from mmspec.cli.recipes import Compile, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe

app = typer.Typer(help="Train the embedded speech recogniser, stage by stage.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder of the corpus, the output of 'mmspec train asr data'.")]
Reader = Annotated[Path, typer.Option(help="Output folder of 'mmspec train asr reader'.")]
Ctc = Annotated[Path, typer.Option(help="Output folder of 'mmspec train asr ctc'.")]


@app.callback()
def group() -> None:
    """Train the embedded speech recogniser, stage by stage."""


@app.command()
def data(
    data: Annotated[Path, typer.Option(help="Folder for packages and features; about 1 GB.")],
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
) -> None:
    """Fetch the recordings and synthesise the rest: needs apt-get, flite, espeak-ng, bible-kjv and piper-tts.

    [bold]Example[/]: mmspec train asr data --data speech
    """
    from mmspec.training.asr_data import CorpusConfig, build

    tell_files([build(CorpusConfig(data=data, workers=workers))])


@app.command()
def reader(
    data: Data,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the language model to read imitated CTC output.

    [bold]Example[/]: mmspec train asr reader --data speech --output runs/reader --minutes 14
    """
    given = {
        "data": data, "output": output, "steps": steps, "minutes": minutes, "seed": seed,
        "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.asr_reader", "ReaderConfig", given, device, settings)


@app.command()
def ctc(
    data: Data,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    device: Device = "auto",
    compile: Compile = False,
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the encoder with CTC.

    [bold]Example[/]: mmspec train asr ctc --data speech --output runs/ctc --minutes 20
    """
    given = {
        "data": data, "output": output, "steps": steps, "minutes": minutes, "seed": seed, "compile": compile,
        "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.asr_ctc", "CtcConfig", given, device, settings)


@app.command()
def joint(
    data: Data,
    reader: Reader,
    ctc: Ctc,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train encoder, projector and language model together.

    [bold]Example[/]: mmspec train asr joint --data speech --reader runs/reader --ctc runs/ctc --output runs/asr --minutes 50
    """
    given = {
        "data": data, "reader": reader, "ctc": ctc, "output": output, "steps": steps, "minutes": minutes,
        "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.asr", "AsrConfig", given, device, settings)


@app.command()
def drafter(
    data: Data, model: Annotated[Path, typer.Option(help="Folder of the recogniser, whose drafter is replaced.")]
) -> None:
    """Count the character model of the drafter on the texts of the training; takes a minute.

    [bold]Example[/]: mmspec train asr drafter --data speech --model tiny-asr
    """
    from mmspec.training.asr_export import write_drafter

    tell_files([write_drafter(data, model)])


@app.command()
def sets(
    data: Data, output: Annotated[Path, typer.Option("--output", "-o", help="Folder for FLAC files and transcripts.")]
) -> None:
    """Write the three evaluation sets, none of which is trained on, as FLAC files with transcripts.

    [bold]Example[/]: mmspec train asr sets --data speech --output sets
    """
    from mmspec.training.asr_data import CorpusConfig
    from mmspec.training.asr_sets import write_sets

    tell_files(write_sets(CorpusConfig(data=data), output))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Option(help="Folder of the recogniser.")],
    sets: Annotated[Path, typer.Option(help="Folder that 'mmspec train asr sets' wrote.")],
    pocketsphinx: Annotated[bool, typer.Option(help="Measure pocketsphinx on the same files.")] = False,
) -> None:
    """Print word error rates of CTC alone and of plain decoding. Needs jiwer.

    [bold]Example[/]: mmspec train asr evaluate --model mmspec/checkpoints/tiny-asr --sets sets --pocketsphinx
    """
    from mmspec.training.asr_eval import measure_folder

    for name, result in measure_folder(model, sets, pocketsphinx).items():
        rates = ", ".join(f"{kind} {value['wer']:.3f}" for kind, value in result.items() if isinstance(value, dict))
        say(f"{name}: {result['recordings']} recordings, {result['words']} words; WER {rates}")


@app.command()
def export(
    data: Data,
    reader: Reader,
    ctc: Ctc,
    run: Annotated[Path, typer.Option(help="Output folder of 'mmspec train asr joint'.")],
    sets: Annotated[Path, typer.Option(help="Folder that 'mmspec train asr sets' wrote.")],
    output: Output,
    last: Annotated[bool, typer.Option("--last", help="The last weights instead of their running average.")] = False,
) -> None:
    """Write the trained recogniser, its samples and its card. Needs jiwer and pocketsphinx.

    [bold]Example[/]: mmspec train asr export --data speech --reader runs/reader --ctc runs/ctc --run runs/asr --sets sets -o tiny-asr
    """
    from mmspec.training.asr import AsrConfig
    from mmspec.training.asr_export import export as write

    config = AsrConfig(data=data, reader=reader, ctc=ctc, output=run, minutes=1)
    tell_files([write(config, sets, output, averaged=not last)])
