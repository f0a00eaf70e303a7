"""Loading a pipeline for a command: device, dtype, and the method that the user asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmspec.cli.output import is_terminal
from mmspec.cli.settings import build_component, parse_assignments

DEFAULT_IMAGE_MODEL = "mmspec/emoji-t2i"


def load_pipeline(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the pipeline ``model`` onto ``device``; a progress bar of decoding only where a person sees it."""
    from diffusers.utils.logging import disable_progress_bar as quiet_diffusers
    from transformers.utils.logging import disable_progress_bar as quiet_transformers

    from mmspec.pipelines.base import SpecPipeline
    from mmspec.runner.device import pick_device, pick_dtype

    quiet_diffusers()
    quiet_transformers()
    place = pick_device(device)
    pipe = SpecPipeline.from_pretrained(model, dtype=pick_dtype(dtype, place)).to(place)
    pipe.set_progress_bar_config(disable=not is_terminal(), leave=False)
    return pipe


def load_recogniser(model: str, device: str = "auto", dtype: str = "auto") -> Any:
    """Load the recogniser ``model`` onto ``device``: an embedded or saved pipeline, or a speech model of transformers."""
    from diffusers.utils.logging import disable_progress_bar as quiet_diffusers
    from transformers.utils.logging import disable_progress_bar as quiet_transformers

    from mmspec.pipelines.auto_speech import AutoSpeechRecognitionPipeline
    from mmspec.runner.device import pick_device, pick_dtype

    quiet_diffusers()
    quiet_transformers()
    place = pick_device(device)
    pipe = AutoSpeechRecognitionPipeline.from_pretrained(model, dtype=pick_dtype(dtype, place)).to(place)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def set_method(pipe: Any, drafter: str | None, acceptance: str | None, assignments: Sequence[str]) -> None:
    """Replace the pipeline's drafter and acceptance rule by what the options say.

    Raises:
        TypeError, ValueError: For unknown names and settings.
    """
    settings = parse_assignments(assignments)
    for kind, name in (("drafter", drafter), ("acceptance", acceptance)):
        setattr(pipe, kind, build_component(kind, name, settings[kind], getattr(pipe, kind)))
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
