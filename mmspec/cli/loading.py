"""Loading a pipeline for a command: device, dtype, and the method that the user asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmspec.cli.output import is_terminal
from mmspec.cli.settings import KINDS, build_component, parse_assignments

DEFAULT_IMAGE_MODEL = "mmspec/emoji-t2i"


def load_pipeline(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the image model ``model`` onto ``device``; a progress bar of decoding only where a person sees it."""
    from mmspec.pipelines.auto import AutoImagePipeline

    pipe = _load(AutoImagePipeline, model, device, dtype)
    pipe.set_progress_bar_config(disable=not is_terminal(), leave=False)
    return pipe


def load_recogniser(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the recogniser ``model`` onto ``device``: an embedded or saved pipeline, or a speech model of transformers."""
    from mmspec.pipelines.auto_speech import AutoSpeechRecognitionPipeline

    return _load(AutoSpeechRecognitionPipeline, model, device, dtype)


def load_voice(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the voice ``model`` onto ``device``: an embedded or saved pipeline, or a speech model of transformers."""
    from mmspec.pipelines.auto_text_to_speech import AutoTextToSpeechPipeline

    return _load(AutoTextToSpeechPipeline, model, device, dtype)


def load_video_pipeline(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the video model ``model`` onto ``device``; a progress bar of decoding only where a person sees it."""
    from mmspec.pipelines.video import VideoPipeline

    pipe = _load(VideoPipeline, model, device, dtype)
    pipe.set_progress_bar_config(disable=not is_terminal(), leave=False)
    return pipe


def load_reader(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the vision-language model ``model`` onto ``device``: an embedded or saved pipeline, or one of transformers."""
    from mmspec.pipelines.auto_vision_language import AutoVisionLanguagePipeline

    return _load(AutoVisionLanguagePipeline, model, device, dtype)


def _load(pipeline: Any, model: str, device: str, dtype: str) -> Any:
    """``pipeline`` of ``model`` on ``device``, without the libraries' progress bars."""
    from diffusers.utils.logging import disable_progress_bar as quiet_diffusers
    from transformers.utils.logging import disable_progress_bar as quiet_transformers

    from mmspec.runner.device import pick_device, pick_dtype

    quiet_diffusers()
    quiet_transformers()
    place = pick_device(device)
    pipe = pipeline.from_pretrained(model, dtype=pick_dtype(dtype, place)).to(place)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def set_method(
    pipe: Any, drafter: str | None, acceptance: str | None, assignments: Sequence[str], schedule: str | None = None
) -> None:
    """Replace the pipeline's drafter, acceptance rule and schedule by what the options say.

    Raises:
        TypeError, ValueError: For unknown names and settings.
    """
    settings = parse_assignments(assignments)
    drafts = bool(drafter or acceptance or settings["drafter"] or settings["acceptance"])
    if drafts and (schedule or settings["schedule"]):
        raise ValueError(
            "A schedule decodes without drafter and rule; leave out --schedule, or --drafter and --acceptance."
        )
    if drafts and getattr(pipe, "schedule", None) is not None:  # the checkpoint's own, which would go before
        pipe.schedule = None
    for kind, name in zip(KINDS, (drafter, acceptance, schedule), strict=True):
        if name is not None or settings[kind]:
            saved = getattr(pipe, kind, None)
            setattr(pipe, kind, build_component(kind, name, settings[kind], saved, pipe.source))
    pipe.to(pipe.device)  # a new drafter may have weights


def prompts_of(model: str, given: Sequence[str] | None = None) -> list[str]:
    """The prompts ``given``, or those that the checkpoint's ``prompts.json`` lists.

    Raises:
        ValueError: If there are none.
    """
    from mmspec.bench.image import read_prompts
    from mmspec.models.loading import local_folder

    if given:
        return list(given)
    folder = local_folder(model)
    return read_prompts(Path(folder) if folder else Path(model))


def samples_of(model: str) -> Path:
    """Folder of the recordings that come with a recogniser.

    Raises:
        ValueError: If there is none.
    """
    from mmspec.models.loading import local_folder

    folder = Path(model) if Path(model).is_dir() else local_folder(model)
    if folder is None or not (folder / "samples").is_dir():
        raise ValueError(f"{model} comes without recordings; give a folder of them with --data.")
    return folder / "samples"
