"""Base of the drafters that are networks: loading from a checkpoint, and other settings on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from diffusers import ConfigMixin

from mmspec.drafters.base import Drafter
from mmspec.models.loading import local_folder
from mmspec.models.strict import StrictModelMixin

if TYPE_CHECKING:
    from typing_extensions import Self


class DrafterNetwork(StrictModelMixin, ConfigMixin, Drafter):
    """A drafter with weights.

    Attributes:
        folder: Its folder within that of a pipeline.
        recipe: The command that trains one.
    """

    folder: ClassVar[str]
    recipe: ClassVar[str]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load the drafter of an embedded checkpoint (``mmspec/emoji-t2i``), a folder, or a hub id.

        Args:
            pretrained_model_name_or_path: What to load. A folder may be the drafter's own or that of a pipeline.
            kwargs: As for ``ModelMixin.from_pretrained``, and settings to change, such as ``tree="chain"``.
                ``subfolder`` defaults to :attr:`folder` in a pipeline, ``torch_dtype`` to float32.

        Raises:
            ValueError: If the checkpoint is unknown or has no such drafter, or a tensor is missing or superfluous.
        """
        place: str | Path = pretrained_model_name_or_path
        if str(place).startswith("mmspec/"):
            place = local_folder(place) or place
        if (Path(place) / "model_index.json").is_file():
            subfolder = Path(place) / kwargs.setdefault("subfolder", cls.folder)
            if not subfolder.is_dir():
                raise ValueError(
                    f"{pretrained_model_name_or_path} has no {cls.folder.replace('_', ' ')}: there is no {subfolder.name} "
                    f"in it. Train one with `{cls.recipe}`, or name another folder."
                )
        kwargs.setdefault("torch_dtype", torch.float32)
        return super().from_pretrained(place, **kwargs)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        super().to(*args, **kwargs)
        return self

    def with_settings(self, **changes: Any) -> Self:
        """A drafter with other settings on the same weights, e.g. ``with_settings(tree="chain", num_nodes=6)``.

        Raises:
            TypeError, ValueError: As the constructor does.
        """
        settings = {name: value for name, value in dict(self.config).items() if not name.startswith("_")}
        with torch.device("meta"):
            changed = type(self)(**{**settings, **changes})
        changed.load_state_dict(self.state_dict(), strict=True, assign=True)
        return changed.requires_grad_(False).eval()
