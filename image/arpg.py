"""ARPG: tokens in any order feed a content stream, from whose shared keys and values query streams read any cell.

Li et al., 2025, "Autoregressive Image Generation with Randomized Parallel Decoding" (arXiv 2503.10568). The first half of
the layers is causal self-attention over class and tokens in the order of generation. Its normalised output is projected
once to the keys and values of all other layers. There queries, copies of one embedding turned by the angles of the cell
that they ask for, attend to them, and never to one another.

Symbols: R model rows, N slots of a forward, S visible slots, D hidden size, H heads, P = D / H, V codes.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from einops import rearrange
from torch import Tensor, nn

from mmspec.image.any_order import KeysValuesStore, arpg_groups
from mmspec.image.llamagen import GridDecoder, feed_forward_size
from mmspec.models.layers import Block, FeedForward, RMSNorm, apply_rotary


class QueryBlock(nn.Module):
    """One layer of the query stream: attention to given keys and values, and SwiGLU."""

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int, eps: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = RMSNorm(hidden_size, eps)
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.feed_forward_norm = RMSNorm(hidden_size, eps)
        self.feed_forward = FeedForward(hidden_size, intermediate_size)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        query = self.query(self.attention_norm(x)).unflatten(-1, (self.num_heads, -1))
        query = apply_rotary(query.float(), rotary).type_as(x).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(rearrange(attended, "r h n p -> r n (h p)"))
        return x + self.feed_forward(self.feed_forward_norm(x))


class ARPGTransformer(GridDecoder):
    """The class-conditional ARPG decoder.

    Args:
        vocab_size: Number of codes V. The embedding also holds the query, the classes, the null class and a spare row.
        hidden_size, num_layers, num_heads, intermediate_size: Widths; half of the layers belong to each stream.
        grid_height, grid_width: Cells per column and row.
        num_classes: Number of classes.
        rope_theta, norm_eps: As in LlamaGen.

    Raises:
        ValueError: If a number does not divide.
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
        if num_layers % 2:
            raise ValueError(f"`num_layers` is {num_layers}; it must be even, half of them for each stream.")
        self._add_rotary((grid_height, grid_width), hidden_size, num_heads, 1, rope_theta)
        size = intermediate_size or feed_forward_size(hidden_size)
        half = num_layers // 2
        self.embedding = nn.Embedding(vocab_size + num_classes + 3, hidden_size)
        self.content = nn.ModuleList(Block(hidden_size, num_heads, num_heads, size, norm_eps) for _ in range(half))
        self.content_norm = RMSNorm(hidden_size, norm_eps)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.queries = nn.ModuleList(QueryBlock(hidden_size, num_heads, size, norm_eps) for _ in range(half))
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N)."""
        return self.embedding(tokens)

    def embed_classes(self, labels: Tensor) -> Tensor:
        """Embeddings (R, D) of class numbers (R,); ``num_classes`` is the null class."""
        return self.embedding(labels + self.config.vocab_size + 1)

    @staticmethod
    def parallel_groups(num_cells: int, steps: int) -> list[int]:
        """Cells of each step of the native parallel sampler, see :func:`mmspec.image.any_order.arpg_groups`."""
        return arpg_groups(num_cells, steps)

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
        hidden, rotary = embeds, self.rotary_at(places)
        for layer, block in enumerate(self.content):
            hidden = block(hidden, rotary, mask, cache, layer)
        hidden = self.content_norm(hidden)
        heads = self.config.num_heads
        key = apply_rotary(self.key(hidden).unflatten(-1, (heads, -1)).float(), rotary).type_as(hidden)
        value = self.value(hidden).unflatten(-1, (heads, -1))
        key, value = cache.update(key.transpose(1, 2), value.transpose(1, 2), len(self.content))
        asked = self.embedding.weight[self.config.vocab_size].expand_as(embeds)
        rotary = self.rotary_at(query_places)
        for block in self.queries:
            asked = cast(QueryBlock, block)(asked, key, value, rotary, mask)
        return self.head(self.norm(asked)).float()
