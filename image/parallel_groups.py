"""The native parallel sampler of any-order models: the cells of a group are drawn independently, given all earlier groups.

This is the model's own law (Pang et al., 2024, RandAR; Li et al., 2025, ARPG), not that of one cell after the other; groups
of 1 are. Every group costs one forward, in which the tokens of the group before are fed in order, each seeing those before
it, as in training.

Symbols: B samples, R = G * B model rows, M cells, K known cells, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.core.loop import Progress
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import SamplingParams, draw_token
from mmspec.core.stats import DecodeStats, RowStats
from mmspec.core.stopping import FinishReason
from mmspec.core.timing import DeviceTimer
from mmspec.image.any_order import AnyOrderModel
from mmspec.runner.cache import SpecCache


class ParallelDecoder:
    """A :class:`mmspec.core.loop.Decoder` that draws a group of cells with every forward; all rows advance together.

    Args:
        model: The model with its classes and known cells.
        groups: Cells of each step; they sum to the number of cells that are not known.
        noise: Noise of the rows; that of a cell is keyed by its place among the cells to draw, as in plain decoding.
        sampling, guidance: How cells are drawn; the model holds ``guidance.branches`` rows a sample.
        stats: Filled while decoding.

    Raises:
        ValueError: If the groups do not sum to the cells to draw.
    """

    def __init__(
        self,
        model: AnyOrderModel,
        groups: Sequence[int],
        noise: RowNoise,
        sampling: SamplingParams,
        guidance: Guidance,
        stats: DecodeStats,
    ) -> None:
        self.model, self.groups, self.noise = model, groups, noise
        self.sampling, self.guidance, self.stats = sampling, guidance, stats
        self.num_cells = model.max_position - model.known.shape[1]
        if sum(groups) != self.num_cells:
            raise ValueError(f"`groups` sum to {sum(groups)}; there are {self.num_cells} cells to draw.")
        self.rows = len(model.labels) // guidance.branches
        self.interrupted = False

    def steps(self) -> Iterator[Progress]:
        """Yield after every group; set :attr:`interrupted` to end early."""
        model, stats = self.model, self.stats
        tokens = torch.zeros(self.rows, self.num_cells, dtype=torch.long, device=model.device)
        stats.rows = [RowStats(rounds=-1) for _ in range(self.rows)]  # the first group comes with the prefill
        cache = SpecCache(len(model.labels), 2 * model.max_position + 1, model.device)
        embeds, fed, done = model.prompt_embeds(), 0, 0
        for size in self.groups:
            if self.interrupted:
                break
            with stats.timed("total"):
                drawn = self._draw(embeds, cache, fed, done, size)
                tokens[:, done : done + size] = drawn
                fed, done = fed + embeds.shape[1], done + size
                embeds = model.network.embed_tokens(drawn.repeat(self.guidance.branches, 1))
                reason = FinishReason.COMPLETE if done == self.num_cells else FinishReason.RUNNING
                for row in range(self.rows):
                    stats.add_round(row, 0, 0, size, int(reason))
            yield Progress(tokens, [done] * self.rows, finished=done == self.num_cells)
        if done < self.num_cells:
            for counts in stats.rows:
                counts.finish_reason = FinishReason.INTERRUPTED.name.lower()

    def _draw(self, embeds: Tensor, cache: SpecCache, fed: int, done: int, size: int) -> Tensor:
        """Tokens (B, size) of the next group, after ``fed`` slots and ``embeds``; ``done`` cells are drawn already."""
        timer = DeviceTimer(self.model.device)
        timer.start()
        logits = group_logits(self.model, embeds, cache, fed, size)
        timer.stop()
        self.stats.forwards += 1
        if done:  # the first forward is the prefill, which has no width
            width = embeds.shape[1] + size - 1
            self.stats.widths[width] = self.stats.widths.get(width, 0) + 1
        with self.stats.timed("accept"):
            place = torch.arange(done, done + size, device=logits.device).expand(self.rows, -1)
            logits = self.guidance.merge(logits, place)
            if self.sampling.greedy:
                tokens = logits.argmax(-1)
            else:
                tokens = draw_token(logits, self.sampling, self.noise.gumbel(Stream.TARGET, place))
        if tokens.device.type == "cuda":
            torch.cuda.synchronize(tokens.device)
        self.stats.seconds["model"] = self.stats.seconds.get("model", 0.0) + timer.seconds()
        return tokens


def group_logits(model: AnyOrderModel, embeds: Tensor, cache: SpecCache, fed: int, size: int) -> Tensor:
    """Laws (R, size, V) of the next slots, each given the ``fed`` slots and ``embeds`` alone.

    The last fed token is repeated for every further cell of the group, behind the others and thrown away: what it asks
    for is the law of one more cell after the same tokens. In RandAR the queries of a group see one another in order, as
    in its authors' code.
    """
    new = embeds.shape[1]
    count = new + size - 1
    embeds = torch.cat([embeds, embeds[:, -1:].expand(-1, size - 1, -1)], dim=1)
    cache.lengths = torch.full_like(cache.lengths, fed)
    cache.plan(count, fed + count)
    node = torch.arange(count, device=model.device)
    key = torch.arange(fed + count, device=model.device)
    before = torch.minimum(node, torch.full_like(node, new - 1)) + fed
    # a repeated token sees what its original saw, and itself in place of it
    seen = (key <= before[:, None]) & ((node[:, None] < new) | (key != fed + new - 1)) | (key == fed + node[:, None])
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=model.device).masked_fill_(~seen, -torch.inf)
    among = torch.zeros_like(mask).masked_fill_(key > fed + node[:, None], -torch.inf)
    slots = torch.minimum(fed + node, torch.full_like(node, fed + new - 1))
    places = model.places[slots].expand(len(embeds), -1)
    query_places = model.query_places[fed + node].expand(len(embeds), -1)  # the slot after each, be it read or cached
    own = (fed + node).expand(len(embeds), -1)
    mask, among = (part.expand(len(embeds), 1, -1, -1) for part in (mask, among))
    logits = model.network(embeds, places, query_places, mask=mask, own=own, cache=cache, query_mask=among)
    return logits[:, new - 1 :]
