"""The checked arguments of a call of an any-order model, and what its micro-batches have produced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.base import check_positive
from mmspec.image.any_order import ORDERS, in_raster
from mmspec.image.any_order_inputs import AnyOrderCondition
from mmspec.pipelines.base import DecodeRequest
from mmspec.pipelines.image_call import ImageCall, ImageRun


@dataclass(frozen=True)
class AnyOrderCall(ImageCall):
    """The arguments of one call, see ``__call__`` of the pipeline.

    Raises:
        TypeError, ValueError: For values that are wrong for every model.
    """

    image: Any = None
    mask_image: Any = None
    order: str | None = None
    order_seed: int = 0
    parallel_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.image is None) != (self.mask_image is None):
            raise ValueError("Give `image` and `mask_image` together: white pixels of the mask are painted anew.")
        if self.order is not None and self.order not in ORDERS:
            raise ValueError(f"Unknown `order` {self.order!r}; choose one of {', '.join(ORDERS)}.")
        if isinstance(self.order_seed, bool) or not isinstance(self.order_seed, int):
            raise TypeError(f"`order_seed` must be an integer, got {self.order_seed!r}.")
        if self.parallel_steps is not None:
            check_positive("parallel_steps", self.parallel_steps)
            if not self.speculate:
                raise ValueError("`parallel_steps` is another law than plain decoding; leave out one of the two.")


@dataclass
class AnyOrderRequest(DecodeRequest):
    """A request with its ``conditions``; ``groups`` are those of the native parallel sampler, in place of a drafter."""

    conditions: AnyOrderCondition | None = None
    groups: list[int] | None = None


@dataclass
class AnyOrderRun(ImageRun):
    """The run of a call with an ``order`` (M,) of the cells, ``known`` (B, K) of which are given."""

    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    known: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))

    def tokens(self) -> Tensor:
        return in_raster(torch.cat([self.known, super().tokens()], dim=1), self.order)

    def own_ids(self) -> Tensor:
        return self.tokens()

    def filled(self) -> Tensor:
        """Which cells (B, M) of each sample are known or committed."""
        place = torch.arange(len(self.order))
        count = self.known.shape[1] + torch.tensor(self.lengths())
        return in_raster(place < count[:, None], self.order)

    def rows(self) -> list[int]:
        whole = self.filled().unflatten(1, (self.grid.rows, self.grid.columns)).all(-1)
        return whole.long().cumprod(-1).sum(-1).tolist()

    def shown(self) -> int:
        return int(self.filled().sum())
