"""``mmspec ask``: a question about pictures, answered in text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import options
from mmspec.cli.image import check_method
from mmspec.cli.loading import load_reader, set_method
from mmspec.cli.output import complain

DEFAULT_VISION_LANGUAGE_MODEL = "mmspec/tiny-vlm"


def ask(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", show_default=False, help="A picture, or a video file.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", show_default=False)],
    also: Annotated[
        list[Path] | None, typer.Option("--image", help="A further picture or video; may be repeated.")
    ] = None,
    model: options.Model = DEFAULT_VISION_LANGUAGE_MODEL,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 96,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be repeated.")] = None,
    as_json: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="KEYS|FILE", help="Answer as JSON: keys of texts as name,kind, or a JSON schema."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the answer, for --temperature above 0. Default: a fresh one.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel="Sampling")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all tokens.", rich_help_panel="Sampling")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all tokens.", rich_help_panel="Sampling")] = 1.0,
    drafter: options.DrafterName = None,
    acceptance: options.AcceptanceName = None,
    assignments: options.Assignments = None,
    plain: options.Plain = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Ask about a picture or a video; the answer is written as it comes, and is that of plain decoding.

    The answer goes to standard output, the figures of the decoding to standard error.

    [bold]Example[/]: mmspec ask line.png "read the text"
    """
    schema = None if as_json is None else schema_of(as_json)
    check_method(plain, drafter, acceptance, None, assignments)
    pipe = load_reader(model, device, dtype)
    set_method(pipe, drafter, acceptance, assignments or [])
    asked: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "stop_strings": stop, "seed": seed, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "speculate": not plain, "json_schema": schema,
    }  # fmt: skip
    pictures, videos = sorted_out([image, *(also or [])])
    for part in pipe.stream(question, pictures, videos, **asked):
        sys.stdout.write(part.delta)
        sys.stdout.flush()
    sys.stdout.write("\n")
    complain(str(part.output.stats), style="")


def sorted_out(files: list[Path]) -> tuple[list[Path], list[Path] | None]:
    """Pictures and videos among ``files``, by their endings."""
    from mmspec.image.video_files import VIDEO_SUFFIXES

    videos = [file for file in files if file.suffix.lower() in VIDEO_SUFFIXES]
    return [file for file in files if file not in videos], videos or None


def schema_of(words: str) -> dict[str, Any]:
    """The JSON schema in a file, or that of an object whose keys are listed and whose values are texts.

    Raises:
        ValueError: If the file is damaged, or a key is empty.
    """
    from mmspec.models.loading import read_json

    if Path(words).is_file():
        return read_json(Path(words))
    keys = [key.strip() for key in words.split(",")]
    if not all(keys) or words.endswith(".json"):
        raise ValueError(f"--json takes keys such as name,kind, or the file of a JSON schema; got {words!r}.")
    return {"type": "object", "properties": {key: {"type": "string"} for key in keys}}
