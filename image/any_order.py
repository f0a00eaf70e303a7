"""What any-order image models share: orders of the cells, group sizes of their parallel steps, and the adapter.

Once an order is fixed, RandAR and ARPG are ordinary autoregressive models over its slots; so the decoding loop, Jacobi
windows and every acceptance rule apply as they are, and are exact for one slot after the other in that order. Their
native parallel sampler draws the cells of a group independently: another law, the model's own.

Symbols: B samples, R = G * B model rows, N nodes, M cells, S key slots, K known cells. Slot 0 is the class, slot s > 0 the
token of cell ``order[s - 1]``.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.target import TargetOutput
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt

ORDERS = ("raster", "random")


def cell_order(kind: str, num_cells: int, seed: int = 0, known: Tensor | None = None) -> Tensor:
    """An order of all cells (M,): ``raster`` or ``random``, the ``known`` cells (K,) first.

    Raises:
        ValueError: For an unknown kind, or known cells that there are not or that repeat.
    """
    if kind not in ORDERS:
        raise ValueError(f"Unknown order {kind!r}; choose one of {', '.join(ORDERS)}.")
    order = torch.arange(num_cells)
    if kind == "random":
        order = torch.randperm(num_cells, generator=torch.Generator().manual_seed(seed))
    if known is None:
        return order
    if known.numel() and (
        len(known.unique()) < len(known) or not 0 <= int(known.min()) <= int(known.max()) < num_cells
    ):
        raise ValueError(f"`known` must hold different cells from 0 to {num_cells - 1}, got {known.tolist()}.")
    return torch.cat([known, order[~torch.isin(order, known)]])


def randar_groups(num_cells: int, steps: int) -> list[int]:
    """Cells of each parallel step of RandAR (Pang et al., 2024): after step i at most (1 - cos(pi/2 (i+1)/S)) M + 1.

    Raises:
        ValueError: If ``steps`` does not lie between 1 and the number of cells.
    """
    _check_steps(num_cells, steps)
    if steps == num_cells:
        return [1] * num_cells
    groups, done = [], 0
    for step in range(steps):
        goal = min(num_cells, math.floor((1 - math.cos(math.pi / 2 * (step + 1) / steps)) * num_cells + 1))
        groups.append(min(1 if step == 0 else max(1, goal - done), num_cells - done))
        done += groups[-1]
    return [size for size in groups if size]


def arpg_groups(num_cells: int, steps: int, kind: str = "arccos") -> list[int]:
    """Cells of each parallel step of ARPG (Li et al., 2025): the share left after step i follows an arccos or a cosine.

    Raises:
        ValueError: For an unknown kind, or if ``steps`` does not lie between 1 and the number of cells.
    """
    _check_steps(num_cells, steps)
    if kind not in ("arccos", "cosine"):
        raise ValueError(f"Unknown schedule {kind!r}; choose 'arccos' or 'cosine'.")
    groups, left = [], num_cells
    for step in range(steps - 1):
        ratio = (step + 1) / steps
        share = math.acos(ratio) / (math.pi / 2) if kind == "arccos" else math.cos(math.pi / 2 * ratio)
        remaining = min(max(math.floor(num_cells * share), 1), left - 1)
        if remaining < 1:
            break
        groups.append(left - remaining)
        left = remaining
    return [*groups, left]


def _check_steps(num_cells: int, steps: int) -> None:
    if not 1 <= steps <= num_cells:
        raise ValueError(f"`steps` is {steps}; it must lie between 1 and the number of cells, {num_cells}.")


class KeysValuesStore(Protocol):
    """Where attention layers keep keys and values, such as ``SpecCache``."""

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store ``key`` and ``value`` (R, H, N, P) of ``layer``; return all that queries may see."""
        ...


class AnyOrderNetwork(Protocol):
    """A network whose input is tokens with their cells, and whose output is the laws of other cells."""

    config: Any
    dtype: torch.dtype
    device: torch.device

    def __call__(
        self,
        embeds: Tensor,
        places: Tensor,
        query_places: Tensor,
        *,
        mask: Tensor,
        own: Tensor,
        cache: KeysValuesStore,
        query_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (R, N, V) of the cells ``query_places`` (R, N), the i-th after the tokens up to the i-th.

        Args:
            embeds: Embeddings of the class or of tokens (R, N, D).
            places, query_places: 0 for the class, 1 + cell for cells (R, N).
            mask: Additive mask (R, 1, N, S): what each token and its query see of the tokens, itself included.
            own: Slot that each token is written to (R, N).
            cache: Keys and values.
            query_mask: What queries see of earlier queries, where models have such and it is not ``mask``.
        """
        ...

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N)."""
        ...

    def embed_classes(self, labels: Tensor) -> Tensor:
        """Embeddings (R, D) of class numbers (R,); ``num_classes`` is the null class."""
        ...

    @staticmethod
    def parallel_groups(num_cells: int, steps: int) -> list[int]:
        """Cells of each step of the native parallel sampler; ValueError unless there are ``steps`` from 1 to M."""
        ...


class AnyOrderModel:
    """A :class:`mmspec.runner.runner.DecoderModel` over an any-order network and one order of the cells.

    Args:
        network: The network.
        labels: Class numbers (B,).
        order: Order of all cells (M,).
        guided: Whether to add the branch of the null class, B more rows.
        known: Tokens (B, K) of the first K cells of the order, which are given: inpainting and outpainting.

    Raises:
        ValueError: If the order is no permutation of the cells.
    """

    def __init__(
        self,
        network: AnyOrderNetwork,
        labels: Tensor,
        order: Tensor,
        guided: bool = False,
        known: Tensor | None = None,
    ) -> None:
        config = network.config
        self.network, self.vocab_size = network, config.vocab_size
        self.device, self.dtype = network.device, network.dtype
        cells = config.grid_height * config.grid_width
        if not torch.equal(order.sort().values.cpu(), torch.arange(cells)):
            raise ValueError(f"`order` must name each of the {cells} cells once.")
        order = order.to(self.device) + 1
        zero = order.new_zeros(1)
        self.places, self.query_places = torch.cat([zero, order]), torch.cat([order, order[-1:]])
        self.labels = torch.cat([labels, torch.full_like(labels, config.num_classes)]) if guided else labels
        self.known = labels.new_zeros(len(labels), 0) if known is None else known
        self.known = self.known.repeat(2, 1) if guided else self.known
        width = 1 + self.known.shape[1]
        zeros = torch.zeros_like(self.labels)
        self.prompt = Prompt(width, start=zeros, length=zeros + width, position_offset=zeros)
        self.max_position = cells

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        output = self._run(self.prompt_embeds(), cache, position_ids, mask)
        return TargetOutput(output[:, -1:], None)

    def prompt_embeds(self) -> Tensor:
        """Embeddings (R, 1 + K, D) of the class and the known cells."""
        return torch.cat(
            [self.network.embed_classes(self.labels)[:, None], self.network.embed_tokens(self.known)], dim=1
        )

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self._run(self.network.embed_tokens(tokens), cache, position_ids, mask), None)

    def _run(self, embeds: Tensor, cache: SpecCache, slots: Tensor, mask: Tensor) -> Tensor:
        own = cache.lengths[:, None] + torch.arange(embeds.shape[1], device=embeds.device)
        slots = slots.expand(len(embeds), -1)
        return self.network(embeds, self.places[slots], self.query_places[slots], mask=mask, own=own, cache=cache)

    def select_rows(self, rows: Tensor) -> None:
        self.prompt = self.prompt.rows(rows)
        self.labels, self.known = self.labels[rows], self.known[rows]


def in_raster(tokens: Tensor, order: Tensor) -> Tensor:
    """Tokens (B, M) of the slots of ``order`` (M,) put in raster order."""
    return torch.empty_like(tokens).scatter_(1, order.to(tokens.device).expand_as(tokens), tokens)


def teacher_forced(network: AnyOrderNetwork, labels: Tensor, tokens: Tensor, orders: Tensor) -> Tensor:
    """Logits (R, M, V) of all slots in one pass without a cache, each given the tokens before it; for training.

    Args:
        network: The network.
        labels: Class numbers (R,).
        tokens: Tokens of the slots (R, M).
        orders: Cells of the slots (R, M), an order for each row.
    """
    rows, cells = tokens.shape
    embeds = torch.cat([network.embed_classes(labels)[:, None], network.embed_tokens(tokens[:, :-1])], dim=1)
    places = torch.nn.functional.pad(orders[:, :-1] + 1, (1, 0))
    slots = torch.arange(cells, device=tokens.device)
    mask = torch.zeros(cells, cells, device=tokens.device).masked_fill_(slots > slots[:, None], -torch.inf)
    return network(
        embeds, places, orders + 1, mask=mask.expand(rows, 1, -1, -1), own=slots.expand(rows, -1), cache=_NoCache()
    )


class _NoCache:
    """Stands for a cache in a pass over whole sequences: what is stored is all that there is."""

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return key, value
