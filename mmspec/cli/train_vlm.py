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


@app.command()
def losses(
    output: Output,
    target: Annotated[str, typer.Option(help="Embedded name, folder or hub id of a vision-language model.")] = (
        "mmspec/tiny-vlm"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Folder that 'mmspec train vlm data' filled, for the embedded model.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Questions for other models, one JSON object a line: prompt, images, answer.")
    ] = None,
    held_out: Annotated[Path | None, typer.Option(help="Questions of the same form to measure on.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each training.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of each training.")] = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    settings: Settings = None,
) -> None:
    """Compare losses of block drafters on a corpus that the target would not write, with several seeds.

    Trains one drafter for each loss and seed; what is done already is not done again. By default ce against alr-ira with
    three seeds; others by --set losses='["ce", "kd"]' and --set seeds=[0,1].

    [bold]Example[/]: mmspec train vlm losses --target runs/vlm/pipeline --data vlm-data --output runs/losses --steps 400
    """
    given = {
        "output": output, "target": target, "data": data, "questions": questions, "held_out": held_out, "steps": steps,
        "minutes": minutes, "batch_size": batch_size,
    }  # fmt: skip
    run_recipe("mmspec.training.vlm_losses", "VlmLossesConfig", given, device, settings)


@app.command()
def export(
    data: Data,
    run: Annotated[Path, typer.Option(help="Output of 'mmspec train vlm target'.")],
    block: Annotated[Path, typer.Option(help="Output of 'mmspec train vlm-drafter', the recommended drafter.")],
    output: Annotated[Path, typer.Option("--output", "--out", "-o", help="Folder to write.")],
    eagle3: Annotated[
        Path | None, typer.Option(help="Output of 'mmspec train vlm-drafter --head eagle3', to come along.")
    ] = None,
    losses: Annotated[Path | None, typer.Option(help="Output of 'mmspec train vlm losses', for the card.")] = None,
    assessment: Annotated[Path | None, typer.Option(help="Text file with a paragraph for the card.")] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Nodes of the recommended drafts.")] = None,
) -> None:
    """Put target and drafters together as a checkpoint with questions, card and notice.

    [bold]Example[/]: mmspec train vlm export --data vlm-data --run runs/vlm --block runs/block --output tiny-vlm
    """
    given = {
        "data": data, "run": run, "block": block, "output": output, "eagle3": eagle3, "losses": losses,
        "assessment": assessment, "num_nodes": num_nodes,
    }  # fmt: skip
    run_recipe("mmspec.training.vlm_ship", "VlmShipConfig", given, "cpu", None)
