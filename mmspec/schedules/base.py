"""Base of the schedules: saved and swapped like a diffusers scheduler, a function of the grid alone, without state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from diffusers import ConfigMixin, SchedulerMixin

from mmspec.core.scheduled import ScheduleStep, is_raster
from mmspec.core.verify import Guarantee


class Schedule(SchedulerMixin, ConfigMixin, ABC):
    """Configuration of an order of decoding other than one cell after the other.

    Class attributes:
        worth: What the output is worth wherever the order differs from plain decoding's.

    Attributes:
        masked: Whether inputs see only the cells that exist.
        measure: Whether the deviation from the target is measured on every output.
    """

    config_name = "schedule_config.json"
    has_compatibles = False

    worth: ClassVar[Guarantee] = Guarantee.HEURISTIC
    masked: bool = True
    measure: bool = True

    @abstractmethod
    def steps(self, rows: int, columns: int) -> list[ScheduleStep]:
        """The forwards after the prefill, which draws cell 0, for a grid of ``rows`` x ``columns`` cells."""

    def guarantee(self, rows: int, columns: int) -> Guarantee:
        """What the output is worth on this grid."""
        return Guarantee.SAME_TOKENS if is_raster(self.steps(rows, columns)) else self.worth
