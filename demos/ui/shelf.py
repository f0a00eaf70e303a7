"""Pipelines of the demos, loaded when they are first asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

MODELS = {
    "image": "mmspec/emoji-t2i",
    "asr": "mmspec/tiny-asr",
    "tts": "mmspec/tiny-tts",
    "vlm": "mmspec/tiny-vlm",
    "video": "mmspec/tiny-video",
}
"""What each demo loads by default: the checkpoints that come with the package."""


class Shelf:
    """Holds one pipeline of each kind.

    Args:
        models: What to load by kind: embedded names, folders, or hub ids; kinds that are left out have their default.
        device: Where the pipelines run, as for ``mmspec --device``.
        loaded: Pipelines that are there already, by kind.

    Raises:
        ValueError: For an unknown kind.
    """

    def __init__(
        self,
        models: Mapping[str, str] | None = None,
        device: str = "auto",
        loaded: Mapping[str, Any] | None = None,
    ) -> None:
        for kind in (*(models or {}), *(loaded or {})):
            if kind not in MODELS:
                raise ValueError(f"Unknown kind of demo {kind!r}; choose one of {', '.join(MODELS)}.")
        self.models = MODELS | dict(models or {})
        self.device = device
        self._loaded = dict(loaded or {})
        self._locks = {kind: threading.Lock() for kind in MODELS}

    def get(self, kind: str) -> Any:
        """The pipeline of ``kind``; the first call loads it, others wait for that.

        Raises:
            ValueError: If there is no such checkpoint, or it is damaged.
        """
        with self._locks[kind]:
            if kind not in self._loaded:
                if (missing := self.missing(kind)) is not None:
                    raise ValueError(missing)
                self._loaded[kind] = _load(kind, self.models[kind], self.device)
            return self._loaded[kind]

    def missing(self, kind: str) -> str | None:
        """What is missing before ``kind`` can be shown, in words; ``None`` if nothing is known to be."""
        from mmspec.models.loading import embedded_checkpoints

        name = self.models[kind]
        if kind in self._loaded or not name.startswith("mmspec/") or name in embedded_checkpoints():
            return None
        return (
            f"The checkpoint {name} does not come with this version of mmspec (there are "
            f"{', '.join(embedded_checkpoints())}). Start the demo with --model {kind}=FOLDER, or a hub id."
        )


def _load(kind: str, name: str, device: str) -> Any:
    from mmspec.cli import loading

    loaders = {
        "image": loading.load_pipeline,
        "asr": loading.load_recogniser,
        "tts": loading.load_voice,
        "vlm": loading.load_reader,
        "video": loading.load_video_pipeline,
    }
    pipe = loaders[kind](name, device)
    pipe.set_progress_bar_config(disable=True)
    return pipe
