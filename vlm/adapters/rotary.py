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

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        count = len(ids)
        if inputs.get("image_grid_thw") is None and inputs.get("video_grid_thw") is None:
            return torch.arange(count).expand(3, -1), 0
        find = self.network.model.get_rope_index
        known = inspect.signature(find).parameters
        grids = {name: inputs[name] for name in _GRIDS if inputs.get(name) is not None and name in known}
        kinds = self._kinds(ids, inputs)
        self._check_runs(kinds, grids)
        positions, moved = find(ids[None], mm_token_type_ids=kinds[None], **grids)
        return positions[:, 0], -int(moved.reshape(-1)[0])

    @staticmethod
    def _check_runs(kinds: Tensor, grids: Mapping[str, Tensor]) -> None:
        """Raise ValueError if pictures or videos touch, so that their grids could not be told apart."""
        before = torch.nn.functional.pad(kinds[:-1], (1, 0))
        for kind, name in ((1, "image_grid_thw"), (2, "video_grid_thw")):
            runs = int(((kinds == kind) & (before != kind)).sum())
            # some families part the frames of a video by their times
            legal = {0} if name not in grids else {len(grids[name]), int(grids[name][:, 0].sum())}
            if runs not in legal:
                raise ValueError(
                    f"The prompt shows {max(legal)} pictures, videos or frames in {runs} places; a token must stand between "
                    "two that follow one another, as the model's chat template puts one."
                )

    def _kinds(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """:meth:`kinds`, compared with those that are given; a model without them falls back to the positions of text."""
        kinds = self.kinds(ids)
        given = inputs.get("mm_token_type_ids")
        if given is not None and not torch.equal(given[0].to(kinds), kinds):
            raise ValueError(
                "`mm_token_type_ids` does not mark the slots of pictures (1) and videos (2) in `input_ids`."
            )
        return kinds


class FramedGridAdapter(RotaryGridAdapter):
    """GLM-OCR: a video is a list of frames between two marks, and each frame has the placeholders of a picture."""

    def kinds(self, ids: Tensor) -> Tensor:
        config = self.network.config
        begun, ended = ((ids == mark).cumsum(0) for mark in (config.video_start_token_id, config.video_end_token_id))
        kinds = (ids == self.image_token).int()
        return kinds + (kinds * (begun > ended))
