"""The runner for schedules: tokens come in any order, and each has its slot, so that slot and order are two things.

The token of cell c lies in slot ``length + c`` of its row, whenever it is fed; feeding a cell again overwrites it. What
an input sees is given explicitly, since the cells before it need not exist.

Symbols: B samples, G branches, R = G * B model rows, M cells, n inputs, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.core.target import TargetOutput
from mmspec.runner.runner import DecoderModel, Runner


class ScheduledRunner(Runner):
    """A :class:`mmspec.core.scheduled.ScheduledTarget` over any :class:`DecoderModel` with one position per slot.

    Args:
        model, guidance, buckets: As for :class:`Runner`.
        num_cells: M.
        max_inputs: Most inputs of a forward.
    """

    def __init__(
        self, model: DecoderModel, guidance: Guidance, num_cells: int, max_inputs: int, *, buckets: bool = False
    ) -> None:
        super().__init__(model, guidance, num_cells, max_inputs, buckets=buckets)
        self.num_cells = num_cells

    def step(self, tokens: Tensor, cells: Tensor, allowed: Tensor, last: int) -> TargetOutput:
        """Feed ``tokens`` (B, n) at ``cells`` (n,); input i sees the prompt and the cells of ``allowed`` (n, M)."""
        num_inputs, branches = len(cells), self.guidance.branches
        visible = self.model.prompt.width + last + 1
        padding = self._nodes(num_inputs) - num_inputs
        if self.buckets:
            visible = -(-visible // self.slot_bucket) * self.slot_bucket
        # padding inputs write behind the last cell and see the prompt alone
        behind = torch.arange(self.num_cells, self.num_cells + padding, device=cells.device)
        offsets = torch.cat([cells, behind])
        tokens = torch.nn.functional.pad(tokens, (0, padding)).repeat(branches, 1)
        allowed = torch.nn.functional.pad(allowed, (0, 0, 0, padding)).expand(len(tokens), -1, -1)
        self.cache.plan(len(offsets), visible, offsets)
        mask = self._additive(self._tree_mask(allowed, visible))
        positions = self._positions(self.cache.lengths[:, None] + offsets, self.model.prompt.position_offset)
        output = self.model.decode(tokens, self.cache, positions, mask)
        order = (offsets[:num_inputs] + 1).expand(len(tokens) // branches, -1)
        hidden = None if output.hidden is None else output.hidden[:, :num_inputs]
        return TargetOutput(self.guidance.merge(output.logits[:, :num_inputs], order), hidden)
