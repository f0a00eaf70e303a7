"""``mmspec image``: pictures from prompts or classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmspec.cli import options
from mmspec.cli.files import PictureWriter, check_target, slug
from mmspec.cli.loading import DEFAULT_IMAGE_MODEL, load_pipeline, set_method
from mmspec.cli.output import complain, say, tell_files
from mmspec.cli.settings import KINDS


def image(
    prompts: options.Prompts = None,
    model: options.Model = DEFAULT_IMAGE_MODEL,
    out: options.ImageOut = Path("outputs"),
    overwrite: options.Overwrite = False,
    seed: options.Seed = None,
    num_images: options.NumImages = 1,
    class_label: options.ClassLabels = None,
    height: options.Height = None,
    width: options.Width = None,
    aspect_ratio: options.AspectRatio = None,
    negative_prompt: options.NegativePrompt = None,
    guidance_scale: options.GuidanceScale = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    drafter: options.DrafterName = None,
    acceptance: options.AcceptanceName = None,
    schedule: options.ScheduleName = None,
    assignments: options.Assignments = None,
    plain: options.Plain = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
    micro_batch_size: options.MicroBatchSize = None,
) -> None:
    """Generate pictures, several tokens per forward, and write them as PNG files that hold their seed and method.

    With the default method the pictures are those of plain decoding with the same seeds, whatever the drafter, the
    window and the batch.

    [bold]Example[/]: mmspec image "red apple, noto style" --seed 7 --num-images 4 --out apples
    """
    check_method(plain, drafter, acceptance, schedule, assignments)
    conditions = _conditions(prompts, class_label)
    check_target(out, len(conditions) * num_images, overwrite)
    pipe = load_pipeline(model, device, dtype)
    set_method(pipe, drafter, acceptance, assignments or [], schedule)
    if not (plain or pipe.drafter or pipe.schedule):
        complain("This checkpoint has no drafter, so this is plain decoding; add --drafter jacobi.", style="yellow")
    asked: dict[str, Any] = {
        "negative_prompt": negative_prompt, "guidance_scale": guidance_scale, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "height": height, "width": width, "aspect_ratio": aspect_ratio,
    }  # fmt: skip
    given: dict[str, Any] = (
        {"prompt": conditions} if prompts else {"class_labels": [_label(text) for text in conditions]}
    )
    given |= {"seed": seed, "num_images_per_prompt": num_images, "micro_batch_size": micro_batch_size}
    output = pipe(**given, **asked, speculate=not plain)
    common = facts_of(pipe, model, output.stats, {name: value for name, value in asked.items() if value is not None})
    writer = PictureWriter(out, overwrite)
    for row, picture in enumerate(output.images):
        condition = conditions[row // num_images]
        own = {"prompt" if prompts else "class_label": condition, "seed": str(output.stats.seeds[row])}
        tell_files([writer.write(picture, slug(condition), {**own, **common})])
    say(str(output.stats))


def check_method(plain: bool, *chosen: str | list[str] | None) -> None:
    """Raise ValueError if plain decoding is asked for together with parts of a speculative method."""
    if plain and any(chosen):
        raise ValueError(f"--plain decodes without speculation; leave out --{' and --'.join((*KINDS, 'set'))}.")


def _conditions(prompts: list[str] | None, labels: list[str] | None) -> list[str]:
    if bool(prompts) == bool(labels):
        raise ValueError('Give prompts or --class-label, one of the two, e.g. mmspec image "red apple, noto style".')
    return prompts or labels or []


def _label(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def facts_of(pipe: Any, model: str, stats: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What the pictures of a call say about how they were made; ``asked`` are the settings that the user gave."""
    from mmspec.models.versions import versions

    names = ("guidance_scale", "temperature", "top_k", "top_p")
    settings: dict[str, Any] = {name: getattr(pipe.config, name) for name in names if hasattr(pipe.config, name)}
    if stats.method != "plain":
        scheduled = getattr(pipe, "schedule", None) is not None  # then drafter and rule had no part in it
        for kind in ("schedule",) if scheduled else ("drafter", "acceptance"):
            component = getattr(pipe, kind)
            settings[kind] = None if component is None else public_config(component)
    return {
        "method": stats.method,
        "guarantee": stats.guarantee.value,
        "model": model,
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "settings": settings | asked,
        "versions": versions(),
    }


def public_config(component: Any) -> dict[str, Any]:
    """Settings of a drafter or rule, with its class."""
    settings = {key: value for key, value in component.config.items() if not key.startswith("_")}
    return {"class": type(component).__name__, **settings}
