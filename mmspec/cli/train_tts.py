"""``mmspec train tts``: the stages of the embedded voice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.output import tell_files
from mmspec.cli.recipes import BatchSize, Device, Minutes, Output, Resume, Seed, Settings, Steps, run_recipe

app = typer.Typer(help="Train the embedded voice, stage by stage.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder of the recordings, the output of 'mmspec train tts data'.")]
Quantizer = Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts quantizer'.")]


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
def alignment(data: Data) -> None:
    """Find where the characters are in the recordings, with the embedded recogniser; takes some minutes.

    [bold]Example[/]: mmspec train tts alignment --data voice
    """
    from mmspec.training.tts_alignment import build

    tell_files([build(data)])


@app.command()
def quantizer(
    data: Data, output: Output, seed: Seed = None, device: Device = "auto", settings: Settings = None
) -> None:
    """Fit the codes by k-means; takes a minute.

    [bold]Example[/]: mmspec train tts quantizer --data voice --output runs/quantizer
    """
    given = {"data": data, "output": output, "seed": seed}
    run_recipe("mmspec.training.tts_quantizer", "QuantizerConfig", given, device, settings)


@app.command()
def codec(
    data: Data,
    quantizer: Quantizer,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the decoder of the codec.

    [bold]Example[/]: mmspec train tts codec --data voice --quantizer runs/quantizer --output runs/codec --steps 1000
    """
    given = {
        "data": data, "quantizer": quantizer, "output": output, "steps": steps, "minutes": minutes,
        "batch_size": batch_size, "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.tts_codec", "CodecConfig", given, device, settings)


@app.command()
def talker(
    data: Data,
    quantizer: Quantizer,
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the talker and its code predictor.

    [bold]Example[/]: mmspec train tts talker --data voice --quantizer runs/quantizer --output runs/talker --steps 1500
    """
    given = {
        "data": data, "quantizer": quantizer, "output": output, "steps": steps, "minutes": minutes, "seed": seed,
        "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.tts_talker", "TalkerConfig", given, device, settings)


@app.command()
def durations(
    data: Data,
    quantizer: Quantizer,
    talker: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts talker'.")],
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train how long characters last, with the rest of the talker frozen.

    [bold]Example[/]: mmspec train tts durations --data voice --quantizer runs/quantizer --talker runs/talker --output runs/voice --steps 1000
    """
    given = {
        "data": data, "quantizer": quantizer, "talker": talker, "output": output, "steps": steps, "minutes": minutes,
        "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.tts_durations", "DurationsConfig", given, device, settings)


@app.command()
def drafter(
    data: Data,
    quantizer: Quantizer,
    talker: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts durations'.")],
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train the learned part of the residual drafter on codes that the model draws itself.

    [bold]Example[/]: mmspec train tts drafter --data voice --quantizer runs/quantizer --talker runs/durations --output runs/drafter --steps 1500
    """
    given = {
        "data": data, "quantizer": quantizer, "talker": talker, "output": output, "steps": steps, "minutes": minutes,
        "batch_size": batch_size, "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.tts_drafter", "ResidualDrafterConfig", given, device, settings)


@app.command()
def maskgit(
    data: Data,
    quantizer: Quantizer,
    talker: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts durations'.")],
    output: Output,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    resume: Resume = False,
    settings: Settings = None,
) -> None:
    """Train a network that fills residual codes in parallel, for 'mmspec speak --depth maskgit'; an option of a voice.

    [bold]Example[/]: mmspec train tts maskgit --data voice --quantizer runs/quantizer --talker runs/durations --output runs/maskgit --steps 2000
    """
    given = {
        "data": data, "quantizer": quantizer, "talker": talker, "output": output, "steps": steps, "minutes": minutes,
        "batch_size": batch_size, "seed": seed, "resume": resume,
    }  # fmt: skip
    run_recipe("mmspec.training.tts_maskgit", "MaskPredictorConfig", given, device, settings)


@app.command()
def export(
    data: Data,
    quantizer: Quantizer,
    codec: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts codec'.")],
    talker: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts talker'.")],
    durations: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts durations'.")],
    drafter: Annotated[Path, typer.Option(help="Output folder of 'mmspec train tts drafter'.")],
    output: Output,
    maskgit: Annotated[
        Path | None, typer.Option(help="Output folder of 'mmspec train tts maskgit', if there is one.")
    ] = None,
    assessment: Annotated[Path | None, typer.Option(help="Text file: how it sounds, for the card.")] = None,
) -> None:
    """Write the trained voice and its card. Needs jiwer and pocketsphinx.

    [bold]Example[/]: mmspec train tts export --data voice --quantizer runs/quantizer --codec runs/codec --talker runs/talker --durations runs/durations --drafter runs/drafter -o tiny-tts
    """
    from mmspec.training.tts_export import ExportConfig
    from mmspec.training.tts_export import export as write

    config = ExportConfig(
        data=data, quantizer=quantizer, codec=codec, talker=talker, durations=durations, drafter=drafter, maskgit=maskgit
    )  # fmt: skip
    said = "" if assessment is None else assessment.read_text().strip()
    tell_files([write(config, output, said)])
