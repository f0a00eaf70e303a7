"""RandAR: LlamaGen's decoder with a query token before every image token that says which cell comes next.

Pang et al., 2024, "RandAR: Decoder-only Autoregressive Visual Generation in Random Orders". The sequence is class,
query(g_1), x_1, query(g_2), x_2, ...; a query is one learned vector turned by the rotary angles of its cell, query and
token carry the angles of their cell, and the logits of a cell are read at its query. One token and the query after it
make one slot here; their keys lie in two layers of the cache.

Symbols: R model rows, N slots of a forward, S visible slots, D hidden size, H heads, P = D / H, V codes.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from einops import rearrange
from torch import Tensor, nn

from mmspec.image.any_order import KeysValuesStore, randar_groups
from mmspec.image.llamagen import GridDecoder
from mmspec.models.layers import apply_rotary


class _PairCache:
    """Stores the first half of the new entries, tokens, and the second, queries, apart; returns tokens, then queries."""

    def __init__(self, cache: KeysValuesStore) -> None:
        self.cache = cache

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        half = key.shape[2] // 2
        tokens = self.cache.update(key[:, :, :half], value[:, :, :half], 2 * layer)
        queries = self.cache.update(key[:, :, half:], value[:, :, half:], 2 * layer + 1)
        return torch.cat([tokens[0], queries[0]], dim=2), torch.cat([tokens[1], queries[1]], dim=2)


class RandARTransformer(GridDecoder):
    """The class-conditional RandAR decoder, see :class:`mmspec.image.llamagen.LlamaGenTransformer` for the arguments.

    Raises:
        ValueError: If a width does not divide.
    """

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        hidden_size: int = 1024,
        num_layers: int = 24,
        num_heads: int = 16,
        intermediate_size: int | None = None,
        grid_height: int = 16,
        grid_width: int = 16,
        num_classes: int = 1000,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self._add_rotary((grid_height, grid_width), hidden_size, num_heads, 1, rope_theta)
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.class_embedding = nn.Embedding(num_classes + 1, hidden_size)
        self.query_embedding = nn.Parameter(torch.zeros(hidden_size))
        self._add_layers(vocab_size, hidden_size, num_layers, num_heads, num_heads, intermediate_size, norm_eps)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N)."""
        return self.token_embedding(tokens)

    def embed_classes(self, labels: Tensor) -> Tensor:
        """Embeddings (R, D) of class numbers (R,); ``num_classes`` is the null class."""
        return self.class_embedding(labels)

    @staticmethod
    def parallel_groups(num_cells: int, steps: int) -> list[int]:
        """Cells of each step of the native parallel sampler, see :func:`mmspec.image.any_order.randar_groups`."""
        return randar_groups(num_cells, steps)

    def forward(
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
        """Logits (R, N, V) of the cells of ``query_places``; see :class:`mmspec.image.any_order.AnyOrderNetwork`."""
        rotary = self.rotary_at(torch.cat([places, query_places], dim=1))  # of 2 N entries
        queries = self.query_embedding.unflatten(0, (self.config.num_heads, -1)).expand(*query_places.shape, -1, -1)
        asked = rotary[0][:, places.shape[1] :], rotary[1][:, places.shape[1] :]
        turned = apply_rotary(queries.float(), asked).type_as(embeds)
        hidden = torch.cat([embeds, rearrange(turned, "r n h p -> r n (h p)")], dim=1)
        pairs = _PairCache(cache)
        both = self.pair_mask(mask, own, query_mask)
        for layer, block in enumerate(self.layers):
            hidden = block(hidden, rotary, both, pairs, layer)
        return self.head(self.norm(hidden[:, places.shape[1] :])).float()

    @staticmethod
    def pair_mask(mask: Tensor, own: Tensor, query_mask: Tensor | None = None) -> Tensor:
        """Mask (R, 1, 2 N, 2 S) of tokens and queries from that of slots (R, 1, N, S).

        A token comes before the query of its own slot and must not see it; all else is causal by slots, or, for
        queries among themselves, as ``query_mask`` says.
        """
        itself = torch.zeros_like(mask).scatter_(3, own[:, None, :, None], 1.0) > 0
        before = mask.masked_fill(itself, -torch.inf)
        return torch.cat(
            [torch.cat([mask, before], dim=3), torch.cat([mask, mask if query_mask is None else query_mask], dim=3)],
            dim=2,
        )
