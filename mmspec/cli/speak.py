"""``mmspec speak``: texts to sound."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import options
from mmspec.cli.files import slug, unlinked
from mmspec.cli.loading import load_voice, set_method
from mmspec.cli.output import complain, say, tell_files

DEFAULT_VOICE = "mmspec/tiny-tts"
SUFFIXES = (".wav", ".flac")


def speak(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", show_default=False)],
    model: options.Model = DEFAULT_VOICE,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .wav or .flac file for one text, or a folder.")] = Path(
        "outputs"
    ),
    stream: Annotated[
        str | None,
        typer.Option(help="Write 16-bit mono samples to this file while they are made; - is standard output."),
    ] = None,
    overwrite: options.Overwrite = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the first text; the next have seed + 1, ...")] = None,
    reference: Annotated[Path | None, typer.Option(help="Recording that the speech continues in manner.")] = None,
    reference_text: Annotated[str | None, typer.Option(help="What is said in it.")] = None,
    speaker: Annotated[int | None, typer.Option(help="Number of the speaker, for voices that have several.")] = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1 shuns repeated first codes.", rich_help_panel=options.SAMPLING),
    ] = None,
    residual_temperature: Annotated[
        float | None, typer.Option(help="Of the residual codes.", rich_help_panel=options.SAMPLING)
    ] = None,
    residual_top_k: Annotated[
        int | None, typer.Option(help="Of the residual codes.", rich_help_panel=options.SAMPLING)
    ] = None,
    speed: Annotated[float, typer.Option(help="Rate of the speech, 0.5 to 2.")] = 1.0,
    depth: Annotated[
        str,
        typer.Option(
            help="How residual codes are drawn: ar, or maskgit, in parallel, with a law of its own, if the voice has it."
        ),
    ] = "ar",
    depth_steps: Annotated[int, typer.Option(help="Calls a frame of maskgit.")] = 3,
    max_frames: Annotated[int | None, typer.Option(help="Most frames of an utterance.")] = None,
    drafter: options.DrafterName = None,
    acceptance: options.AcceptanceName = None,
    assignments: options.Assignments = None,
    plain: options.Plain = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Speak texts, several codes per call of the model; the sound is that of plain decoding with the same seed.

    [bold]Example[/]: mmspec speak "Please enter your password." -o password.wav --seed 1
    """
    if plain and (drafter or acceptance or assignments):
        raise ValueError("--plain decodes without speculation; leave out --drafter, --acceptance and --set.")
    if depth == "maskgit" and (plain or drafter or acceptance or assignments):
        raise ValueError("--depth maskgit takes no drafts; leave out --plain, --drafter, --acceptance and --set.")
    if stream is not None and len(texts) != 1:
        raise ValueError(f"--stream writes one text, but there are {len(texts)}.")
    targets = _targets(texts, out, overwrite) if stream is None else []
    pipe = load_voice(model, device, dtype)
    set_method(pipe, drafter, acceptance, assignments or [])
    asked: dict[str, Any] = {
        "seed": seed, "temperature": temperature, "top_k": top_k, "repetition_penalty": repetition_penalty,
        "residual_temperature": residual_temperature, "residual_top_k": residual_top_k, "max_frames": max_frames,
        "reference": reference, "reference_text": reference_text, "speculate": not plain, "output_type": "pcm",
        "speaker": speaker, "speed": None if speed == 1.0 else speed, "depth": None if depth == "ar" else depth,
        "depth_steps": None if depth == "ar" else depth_steps,
    }  # fmt: skip
    asked = _known(pipe, asked)
    if stream is not None:
        _stream(pipe, texts[0], stream, overwrite, asked)
        return
    output = pipe(texts, **asked)
    for number, target in enumerate(targets):
        tell_files([output.save(unlinked(target, out), number)])
    say(str(output.stats))


def _known(pipe: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What is ``asked`` for at all.

    Raises:
        ValueError: If the voice has no such option.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    if unknown := sorted(given.keys() - inspect.signature(type(pipe).__call__).parameters.keys()):
        raise ValueError(
            f"A {type(pipe).__name__} takes no {', '.join('--' + name.replace('_', '-') for name in unknown)}; leave it out."
        )
    return given


def _stream(pipe: Any, text: str, place: str, overwrite: bool, asked: dict[str, Any]) -> None:
    """Write samples as they come, little-endian, to a file or to standard output."""
    if place != "-" and Path(place).exists() and not overwrite:
        raise FileExistsError(f"{place} exists; name another file or add --overwrite.")
    chunks = pipe.stream(text, **asked)  # arguments are checked before the file is touched
    with nullcontext(sys.stdout.buffer) if place == "-" else Path(place).open("wb") as file:
        for chunk in chunks:
            file.write(chunk.samples.astype("<i2").tobytes())
            file.flush()
            if chunk.finished:
                stats = chunk.output.stats
                first = f"first samples after {stats.seconds['first_audio']:.2f} s"
                complain(f"{chunk.sampling_rate} Hz, 16 bit, mono; {first}. {stats}", style="")


def _targets(texts: Sequence[str], out: Path, overwrite: bool) -> list[Path]:
    """Where each text goes.

    Raises:
        ValueError: If several texts should go into one file, or its kind is unknown.
        FileExistsError, NotADirectoryError: If a file is in the way.
    """
    if out.suffix and not out.is_dir():
        if out.suffix.lower() not in SUFFIXES:
            raise ValueError(f"--out names {out}; sound is written as {' or '.join(SUFFIXES)}.")
        if len(texts) > 1:
            raise ValueError(f"--out names the file {out}, but there are {len(texts)} texts; name a folder.")
        targets = [out]
    elif out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out {out} is a file and no folder; name a folder or a .wav file.")
    else:
        targets = [out / f"{slug(text)}-{number + 1:04d}.wav" for number, text in enumerate(texts)]
    if not overwrite and (there := next((target for target in targets if target.exists()), None)):
        raise FileExistsError(f"{there} exists; name another file or add --overwrite.")
    return targets
