"""``mmspec video``: clips that continue a picture or a clip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import options
from mmspec.cli.files import slug, unlinked
from mmspec.cli.image import check_method
from mmspec.cli.loading import load_video_pipeline, set_method
from mmspec.cli.output import complain, say, tell_files

DEFAULT_VIDEO_MODEL = "mmspec/tiny-video"
SUFFIXES = (".mp4", ".gif")

Sources = Annotated[
    list[Path] | None, typer.Argument(metavar="[SOURCE]...", help="Pictures, mp4 or gif files.", show_default=False)
]


def video(
    sources: Sources = None,
    model: options.Model = DEFAULT_VIDEO_MODEL,
    prompt: Annotated[list[str] | None, typer.Option(help="Text: one for all sources, or repeated, one each.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .mp4 or .gif file for one clip, or a folder.")] = Path(
        "outputs"
    ),
    kind: Annotated[str, typer.Option("--format", help="mp4 or gif, for folders.")] = "gif",
    overwrite: options.Overwrite = False,
    num_frames: Annotated[int | None, typer.Option(help="Frames of a clip; an error lists the legal ones.")] = None,
    context_frames: Annotated[int | None, typer.Option(help="How many last frames of a clip to go on from.")] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Allow more frames than the model was trained for.")
    ] = False,
    fps: Annotated[float | None, typer.Option(help="Frames per second; default: the checkpoint's.")] = None,
    seed: options.Seed = None,
    num_videos: Annotated[int, typer.Option(help="Clips per source.", min=1)] = 1,
    guidance_scale: options.GuidanceScale = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    drafter: options.DrafterName = None,
    acceptance: options.AcceptanceName = None,
    assignments: options.Assignments = None,
    plain: options.Plain = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
    micro_batch_size: options.MicroBatchSize = None,
) -> None:
    """Continue pictures or clips, several tokens per forward; without a source, those that come with the model.

    With the default method the clips are those of plain decoding with the same seeds, whatever the drafter, the window
    and the batch.

    [bold]Example[/]: mmspec video ball.png --prompt "soccer ball moves left" --seed 7 --out ball.mp4
    """
    check_method(plain, drafter, acceptance, None, assignments)
    inputs, prompts = _inputs(sources, prompt, model)
    targets = _targets(out, kind, inputs, num_videos, overwrite)
    pipe = load_video_pipeline(model, device, dtype)
    set_method(pipe, drafter, acceptance, assignments or [])
    if not (plain or pipe.drafter):
        complain("This checkpoint has no drafter, so this is plain decoding; add --drafter jacobi.", style="yellow")
    output_type = targets[0].suffix.lower().removeprefix(".")
    output = pipe(
        video=inputs, prompt=prompts, num_frames=num_frames, context_frames=context_frames, extend=extend, fps=fps,
        seed=seed, num_videos_per_prompt=num_videos, guidance_scale=guidance_scale, temperature=temperature,
        top_k=top_k, top_p=top_p, speculate=not plain, micro_batch_size=micro_batch_size, output_type=output_type,
    )  # fmt: skip
    for path, content in zip(targets, output.frames, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path = unlinked(path, out) if overwrite else path
        with path.open("wb" if overwrite else "xb") as file:  # "x": two runs at once cannot take one name
            file.write(content)
        tell_files([path])
    say(str(output.stats))


def _inputs(sources: list[Path] | None, prompt: list[str] | None, model: str) -> tuple[list[Path], Any]:
    """Sources and texts, by default those of the checkpoint.

    Raises:
        ValueError: If there are none, or the texts are not one for all or one each.
        FileNotFoundError: If a source does not exist.
    """
    if not sources:
        from mmspec.bench.video import read_samples
        from mmspec.models.loading import local_folder

        samples = read_samples(local_folder(model) or Path(model))
        sources = [path for path, _ in samples]
        texts = [text for _, text in samples]
        prompt = prompt or (None if None in texts else [str(text) for text in texts])
    if prompt and len(prompt) not in (1, len(sources)):
        raise ValueError(f"There are {len(prompt)} of --prompt for {len(sources)} sources; give one, or one each.")
    for source in sources:
        if not source.is_file():
            raise FileNotFoundError(f"{source} does not exist; name a picture, an mp4 or a gif.")
    return sources, prompt if not prompt or len(prompt) > 1 else prompt[0]


def _targets(out: Path, kind: str, inputs: list[Path], num_videos: int, overwrite: bool) -> list[Path]:
    """One path per clip, checked before anything is computed.

    Raises:
        ValueError: For an unknown kind of file, or one file for several clips.
        FileExistsError: If a file exists and may not be overwritten.
    """
    if f".{kind}" not in SUFFIXES:
        raise ValueError(f"--format is mp4 or gif, got {kind!r}.")
    count = len(inputs) * num_videos
    if out.suffix.lower() in SUFFIXES and not out.is_dir():
        if count > 1:
            raise ValueError(f"--out names the file {out}, but there are {count} clips; name a folder.")
        targets = [out]
    elif out.suffix and not out.is_dir():
        raise ValueError(f"--out names {out}; clips are written as .mp4 or .gif, or into a folder.")
    else:
        names = [slug(path.stem) for path in inputs for _ in range(num_videos)]
        targets = [out / f"{name}-{number:04d}.{kind}" for number, name in enumerate(names, start=1)]
    for path in targets:
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists; name another place or add --overwrite.")
    return targets
