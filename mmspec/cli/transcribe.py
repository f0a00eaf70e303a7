"""``mmspec transcribe``: recordings to text, subtitles or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import options
from mmspec.cli.files import unlinked
from mmspec.cli.loading import load_recogniser
from mmspec.cli.output import complain, say, tell_files

DEFAULT_SPEECH_MODEL = "mmspec/tiny-asr"
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)]


def transcribe(
    files: Files,
    model: options.Model = DEFAULT_SPEECH_MODEL,
    preset: Annotated[
        str | None,
        typer.Option(help="exact (text of plain decoding), accurate, balanced or fast; default: the checkpoint's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, words with times included, as JSON.")] = False,
    srt: Annotated[bool, typer.Option("--srt", help="SubRip subtitles.")] = False,
    vtt: Annotated[bool, typer.Option("--vtt", help="WebVTT subtitles.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write one file per recording to; default: print.")
    ] = None,
    overwrite: options.Overwrite = False,
    language: Annotated[str | None, typer.Option(help="Spoken language, for models that take one.")] = None,
    punctuation: Annotated[bool, typer.Option("--punctuation", help="Ask for punctuation and capitals.")] = False,
    segment_seconds: Annotated[
        float | None, typer.Option(help="Split at the first pause behind so many seconds.")
    ] = None,
    plain: options.Plain = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Transcribe recordings (wav, flac, ogg, mp3; any rate, mono or stereo).

    A recording that cannot be read is reported, the others are transcribed, and the exit code is 1.

    [bold]Example[/]: mmspec transcribe talk.wav --preset exact --srt
    """
    kind = _kind(as_json, srt, vtt)
    if plain and preset:
        raise ValueError("--plain decodes without speculation; leave out --preset.")
    if kind in ("srt", "vtt") and out is None and len(files) > 1:
        raise ValueError(f"--{kind} of {len(files)} recordings needs a folder to write to: --out.")
    targets = _targets(files, kind, out, overwrite)
    pipe = load_recogniser(model, device, dtype)
    asked: dict[str, Any] = {
        "preset": preset, "language": language, "punctuation": punctuation, "segment_seconds": segment_seconds,
        "speculate": not plain,
    }  # fmt: skip
    done, failed = [], 0
    for file, target in zip(files, targets, strict=True):
        try:
            output = pipe(file, **asked)
        except (ValueError, OSError) as error:
            complain(f"Error: {error}")
            failed += 1
            continue
        done.append((file, output))
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            unlinked(target, out or target).write_text(rendered(file, output, kind) + "\n")
            tell_files([target])
        elif kind != "json":
            say(rendered(file, output, kind) if len(files) == 1 else f"{file}: {output.texts[0]}")
    if kind == "json" and out is None:
        say(json.dumps([facts(file, output) for file, output in done], indent=1, ensure_ascii=False))
    if failed:
        complain(f"{failed} of {len(files)} recordings were not transcribed.")
        raise typer.Exit(1)


def _kind(as_json: bool, srt: bool, vtt: bool) -> str:
    chosen = [name for name, wanted in (("json", as_json), ("srt", srt), ("vtt", vtt)) if wanted]
    if len(chosen) > 1:
        raise ValueError(f"Choose one of --{' and --'.join(chosen)}.")
    return chosen[0] if chosen else "txt"


def _targets(files: Sequence[Path], kind: str, out: Path | None, overwrite: bool) -> list[Path | None]:
    """Where the transcript of each file goes.

    Raises:
        ValueError: If two recordings would go to one file.
        NotADirectoryError, FileExistsError: If the folder is a file, or a target exists.
    """
    if out is None:
        return [None] * len(files)
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out {out} is a file; name a folder.")
    targets: list[Path] = [out / f"{file.stem}.{kind}" for file in files]
    if double := next((target for target in targets if targets.count(target) > 1), None):
        raise ValueError(f"Two recordings would both go to {double}; transcribe them into two folders.")
    if not overwrite and (there := next((target for target in targets if target.exists()), None)):
        raise FileExistsError(f"{there} exists; add --overwrite to replace it.")
    return list(targets)


def rendered(file: Path, output: Any, kind: str) -> str:
    """The transcript of one recording as ``txt``, ``json``, ``srt`` or ``vtt``."""
    from mmspec.speech.subtitles import subtitles

    if kind == "json":
        return json.dumps(facts(file, output), indent=1, ensure_ascii=False)
    text: str = output.texts[0]
    return text if kind == "txt" else subtitles(output.words[0], kind).rstrip("\n")


def facts(file: Path, output: Any) -> dict[str, Any]:
    """Everything about the transcript of one recording, as plain values."""
    return {"file": str(file), **output.facts(0), "stats": output.stats.summary()}
