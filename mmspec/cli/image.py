"""``mmspec image``: pictures from prompts or classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.files import PictureWriter, check_target, slug
from mmspec.cli.loading import DEFAULT_IMAGE_MODEL, load_pipeline, set_method
from mmspec.cli.output import complain, say, tell_files
from mmspec.cli.settings import KINDS

SAMPLING = "Sampling (default: what the checkpoint recommends)"
METHOD = "Method (default: what the checkpoint recommends)"


def image(
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", show_default=False)] = None,
    model: Annotated[str, typer.Option(help="Embedded name, folder or hub id.")] = DEFAULT_IMAGE_MODEL,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .png file for one picture, or a folder.")] = Path(
        "outputs"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of the same name.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the first picture; the next have seed + 1, ...")] = None,
    num_images: Annotated[int, typer.Option(help="Pictures per prompt.", min=1)] = 1,
    class_label: Annotated[
        list[str] | None, typer.Option(help="Class number or name instead of a prompt; may be repeated.")
    ] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="What to steer away from.")] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(help="1 switches guidance off.", rich_help_panel=SAMPLING)
    ] = None,
    temperature: Annotated[float | None, typer.Option(rich_help_panel=SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(help="0 keeps all tokens.", rich_help_panel=SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(help="1 keeps all tokens.", rich_help_panel=SAMPLING)] = None,
    drafter: Annotated[
        str | None, typer.Option(help="jacobi, ngram, ...; an unknown name lists all.", rich_help_panel=METHOD)
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="coupled, ratio, ...; an unknown name lists all.", rich_help_panel=METHOD)
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KIND.NAME=VALUE", help="A setting, e.g. drafter.window=16.", rich_help_panel=METHOD
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="One token per forward, no speculation.", rich_help_panel=METHOD)
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32 (auto; exact), bfloat16 or float16 (equal up to rounding).")
    ] = "auto",
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Decode at most this many pictures together; changes memory only.")
    ] = None,
) -> None:
    """Generate pictures, several tokens per forward, and write them as PNG files that hold their seed and method.

    With the default method the pictures are those of plain decoding with the same seeds, whatever the drafter, the
    window and the batch.

    [bold]Example[/]: mmspec image "red apple, noto style" --seed 7 --num-images 4 --out apples
    """
    if plain and (drafter or acceptance or assignments):
        raise ValueError(f"--plain decodes without speculation; leave out --{' and --'.join((*KINDS, 'set'))}.")
    conditions = _conditions(prompts, class_label)
    check_target(out, len(conditions) * num_images, overwrite)
    pipe = load_pipeline(model, device, dtype)
    set_method(pipe, drafter, acceptance, assignments or [])
    if not plain and pipe.drafter is None:
        complain("This checkpoint has no drafter, so this is plain decoding; add --drafter jacobi.", style="yellow")
    asked: dict[str, Any] = {
        "negative_prompt": negative_prompt, "guidance_scale": guidance_scale, "temperature": temperature,
        "top_k": top_k, "top_p": top_p,
    }  # fmt: skip
    given = {"prompt": conditions} if prompts else {"class_labels": [_label(text) for text in conditions]}
    output = pipe(
        **given, **asked, seed=seed, num_images_per_prompt=num_images, speculate=not plain,
        micro_batch_size=micro_batch_size,
    )  # fmt: skip
    writer = PictureWriter(out, overwrite)
    paths = []
    for row, picture in enumerate(output.images):
        condition = conditions[row // num_images]
        facts = _facts(
            pipe, model, output.stats, row, {"prompt": condition} if prompts else {"class_label": condition}
        )
        facts["settings"] |= {name: value for name, value in asked.items() if value is not None}
        paths.append(writer.write(picture, slug(condition), facts))
    tell_files(paths)
    say(str(output.stats))


def _conditions(prompts: list[str] | None, labels: list[str] | None) -> list[str]:
    if bool(prompts) == bool(labels):
        raise ValueError('Give prompts or --class-label, one of the two, e.g. mmspec image "red apple, noto style".')
    return prompts or labels or []


def _label(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _facts(pipe: Any, model: str, stats: Any, row: int, condition: dict[str, str]) -> dict[str, Any]:
    """What a picture's file says about how it was made."""
    from mmspec.models.versions import versions

    names = ("guidance_scale", "temperature", "top_k", "top_p")
    settings: dict[str, Any] = {name: getattr(pipe.config, name) for name in names if hasattr(pipe.config, name)}
    if stats.method != "plain":
        for kind in KINDS:
            component = getattr(pipe, kind)
            settings[kind] = None if component is None else public_config(component)
    return {
        **condition,
        "seed": str(stats.seeds[row]),
        "method": stats.method,
        "guarantee": stats.guarantee.value,
        "model": model,
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "settings": settings,
        "versions": versions(),
    }


def public_config(component: Any) -> dict[str, Any]:
    """Settings of a drafter or rule, with its class."""
    settings = {key: value for key, value in component.config.items() if not key.startswith("_")}
    return {"class": type(component).__name__, **settings}
