"""One class to load any image model: the pipeline is picked by the checkpoint's configuration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import mmspec
from mmspec.image.families import model_types
from mmspec.models.loading import HUB_OPTIONS, find_config
from mmspec.pipelines.image import ImagePipeline


class AutoImagePipeline:
    """Load a checkpoint as the image pipeline that it needs. It has no instances of its own."""

    def __init__(self) -> None:
        raise OSError("AutoImagePipeline has no instances; use AutoImagePipeline.from_pretrained(name).")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> ImagePipeline:
        """Load an image pipeline.

        Args:
            pretrained_model_name_or_path: An embedded name (``mmspec/emoji-t2i``), the folder or hub id of a saved
                pipeline, or that of a transformers model of a known family, as its authors publish it.
            kwargs: As for the pipeline's own ``from_pretrained``.

        Raises:
            ValueError: If the checkpoint is unknown, damaged, or of no family of image models known here.
        """
        name = pretrained_model_name_or_path
        kind, config = find_config(name, **{option: kwargs[option] for option in HUB_OPTIONS if option in kwargs})
        if kind == "pipeline":
            pipeline = getattr(mmspec, str(config.get("_class_name")), None)
            if not (inspect.isclass(pipeline) and issubclass(pipeline, ImagePipeline)):
                raise ValueError(
                    f"{name} holds a {config.get('_class_name')!r}, which is no image pipeline. {_legal()}"
                )
        elif (model_type := config.get("model_type")) in model_types():
            pipeline = getattr(mmspec, model_types()[model_type])
        else:
            found = f"a model of type {model_type!r}" if model_type else f"a {config.get('_class_name')!r} alone"
            raise ValueError(f"{name} holds {found}, which is no image model known here. {_legal()}")
        return pipeline.from_pretrained(name, **kwargs)


def _legal() -> str:
    pipelines = sorted(
        name
        for name in mmspec.__all__
        if name.endswith("Pipeline")
        and inspect.isclass(value := getattr(mmspec, name))
        and issubclass(value, ImagePipeline)
    )
    return (
        f"Legal are saved {', '.join(p for p in pipelines if p != 'ImagePipeline')} folders, and models of type "
        f"{', '.join(sorted(model_types()))}."
    )
