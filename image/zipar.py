"""ZipAR: neighbouring rows of a picture are decoded at the same time, shifted by a window.

He et al., 2024, "ZipAR: Parallel Auto-regressive Image Generation through Spatial Locality" (arXiv 2412.04062). Row 0 is
decoded alone, row 1 after it, and every further row begins as soon as the row above it has ``window`` cells; from then
on all open rows advance by one cell per forward. With R rows of W cells that is

    2 W + (R - 2) window   forwards for window < W,   R W otherwise (plain decoding).

The first cell of a row is predicted from the last cell of the row above, which does not exist yet when the row begins
early; an earlier token stands in for it. The method assumes that a cell hardly depends on those far to its right in the
row above. Where that is false the output is not distributed as the target's: it is a heuristic, and its deviation is
measured.
"""

from __future__ import annotations

from diffusers.configuration_utils import register_to_config

from mmspec.core.scheduled import ScheduleStep
from mmspec.drafters.base import check_positive
from mmspec.schedules.base import Schedule

MODES = ("compat", "masked")


class ZipARSchedule(Schedule):
    """Decode rows of a picture in parallel, each ``window`` cells behind the row above.

    Args:
        window: Cells that the row above must have before a row begins; at least 1. From the length of a row on this is
            plain decoding.
        mode: ``masked``: a cell sees the cells that exist, as the paper describes. ``compat``: as the authors' code
            for LlamaGen, where cells that do not exist yet take part in the attention with zero keys and values, and
            placeholders stay visible until they are overwritten.
        measure: Whether to measure the deviation from the target on every output, which costs one more pass over it.

    Raises:
        TypeError, ValueError: For a window below 1 or an unknown mode.
    """

    @register_to_config
    def __init__(self, window: int = 8, mode: str = "masked", measure: bool = True) -> None:
        check_positive("window", window)
        if mode not in MODES:
            raise ValueError(f"Unknown `mode` {mode!r}; choose one of {', '.join(MODES)}.")
        if not isinstance(measure, bool):
            raise TypeError(f"`measure` must be True or False, got {measure!r}.")
        self.masked, self.measure = mode == "masked", measure

    def steps(self, rows: int, columns: int) -> list[ScheduleStep]:
        window = self.config.window
        drawn = [1] + [0] * (rows - 1)  # cells that each row has; the prefill drew the first one
        open_rows, steps = [0], []
        while sum(drawn) < rows * columns:
            finished = [row for row in open_rows if drawn[row] == columns]  # their last token is not fed yet
            newest = open_rows[-1]
            if newest + 1 < rows and drawn[newest] >= (columns if newest == 0 else min(window, columns)):
                open_rows.append(newest + 1)
            open_rows = [row for row in open_rows if drawn[row] < columns]
            inputs = {(row + 1) * columns - 1: ((row + 1) * columns - 1, False) for row in finished}
            for row in open_rows:
                cell = row * columns + drawn[row] - 1
                exists = drawn[row] > 0 or drawn[row - 1] == columns
                inputs[cell] = (cell if exists else self._stand_in(row, drawn, columns), True)
            steps.append(_step(inputs))
            for row in open_rows:
                drawn[row] += 1
        return steps

    def _stand_in(self, row: int, drawn: list[int], columns: int) -> int:
        """The cell whose token is fed in place of the last one of the row above ``row``."""
        return (row - 2) * columns + drawn[row - 2] - 1


def _step(inputs: dict[int, tuple[int, bool]]) -> ScheduleStep:
    cells = tuple(sorted(inputs))
    return ScheduleStep(cells, tuple(inputs[c][0] for c in cells), tuple(inputs[c][1] for c in cells))
