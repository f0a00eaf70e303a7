"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-OCR: positions with three axes, time, height and width of a picture's grid
(Wang et al., 2024, "Qwen2-VL"; Bai et al., 2025, "Qwen2.5-VL").

A picture takes fewer positions than slots, so everything behind it is moved. That offset is a property of the prompt
and is kept with it; transformers keeps it on the model, where the next prompt without a picture would find it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch
from torch import Tensor

from mmspec.vlm.adapters.base import VisionLanguageAdapter

_GRIDS = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")


class RotaryGridAdapter(VisionLanguageAdapter):
    """A model whose positions follow the grids of its pictures and videos."""

    def look(self, pictures: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        if "pixel_values_videos" in pictures:
            raise ValueError("Videos are not read yet; give frames as pictures.")
        return super().look(pictures)

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        count = len(ids)
        if inputs.get("image_grid_thw") is None:
            return torch.arange(count).expand(3, -1), 0
        find = self.network.model.get_rope_index
        known = inspect.signature(find).parameters
        grids = {name: inputs[name] for name in _GRIDS if inputs.get(name) is not None and name in known}
        kinds = self._kinds(ids, inputs)
        positions, moved = find(ids[None], mm_token_type_ids=kinds[None], **grids)
        return positions[:, 0], -int(moved.reshape(-1)[0])

    def _kinds(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """1 at the slots of pictures, else 0 (P,); a model without them falls back to the positions of text."""
        kinds = (ids == self.image_token).int()
        given = inputs.get("mm_token_type_ids")
        if given is not None and not torch.equal(given[0].to(kinds), kinds):
            raise ValueError("`mm_token_type_ids` does not mark the slots of pictures in `input_ids`.")
        return kinds
