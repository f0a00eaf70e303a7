"""Layers of the Cosmos autoregressive decoder: attention with normalised queries and keys, and cross-attention to text.

NVIDIA, 2025, "Cosmos World Foundation Model Platform for Physical AI", section 5.2.

Symbols: R rows of the model batch, N query tokens, S key slots, C context slots, D hidden size, H heads, P head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.image.video_positions import rotate_halves
from mmspec.models.layers import FeedForward, RMSNorm

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a context, each (R, H, C, P)."""


def repeat_heads(x: Tensor, repeats: int) -> Tensor:
    """Repeat every head of ``x`` (R, H, S, P); an explicit mask with grouped heads would leave the fused kernels."""
    return x if repeats == 1 else x.repeat_interleave(repeats, 1)


class VideoAttention(nn.Module):
    """Causal self-attention: grouped queries, RMS-normalised queries and keys, half-split rotary, no biases."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.qkv = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim, bias=False)
        self.query_norm, self.key_norm = RMSNorm(head_dim, eps), RMSNorm(head_dim, eps)
        self.out = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        query, key, value = self.qkv(x).unflatten(-1, (-1, self.head_dim)).split(heads, dim=2)
        query = rotate_halves(self.query_norm(query).float(), rotary).type_as(x).transpose(1, 2)
        key = rotate_halves(self.key_norm(key).float(), rotary).type_as(x).transpose(1, 2)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, layer)
        key, value = (repeat_heads(t, self.num_heads // self.num_kv_heads) for t in (key, value))
        new, total = query.shape[2], key.shape[2]
        if mask is None and new != total:  # `is_causal` would align the first query, not the last, with the keys
            mask = query.new_ones(new, total, dtype=torch.bool).tril(total - new)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.out(attended.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Attention to a text context: normalised queries and keys, no rotation, no mask, no biases.

    Zero rows behind a prompt are attended to: the released models were trained that way.
    """

    def __init__(
        self, hidden_size: int, context_dim: int, num_heads: int, num_kv_heads: int, head_dim: int, eps: float
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.query = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.key_value = nn.Linear(context_dim, 2 * num_kv_heads * head_dim, bias=False)
        self.query_norm, self.key_norm = RMSNorm(head_dim, eps), RMSNorm(head_dim, eps)
        self.out = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def keys_values(self, context: Tensor) -> KeysValues:
        """Keys and values of ``context`` (R, C, context_dim), the same for every step of a clip."""
        key, value = self.key_value(context).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=2)
        repeats = self.num_heads // self.num_kv_heads
        return repeat_heads(self.key_norm(key).transpose(1, 2), repeats), repeat_heads(value.transpose(1, 2), repeats)

    def forward(self, x: Tensor, context: KeysValues) -> Tensor:
        query = self.query_norm(self.query(x).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(query, *context).transpose(1, 2).flatten(2))


class VideoBlock(nn.Module):
    """One pre-norm layer: self-attention, cross-attention if there is a context, SwiGLU."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        intermediate_size: int,
        context_dim: int | None,
        eps: float,
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden_size, eps)
        self.attention = VideoAttention(hidden_size, num_heads, num_kv_heads, head_dim, eps)
        if context_dim is not None:
            self.cross_attention_norm = RMSNorm(hidden_size, eps)
            self.cross_attention = CrossAttention(hidden_size, context_dim, num_heads, num_kv_heads, head_dim, eps)
        self.feed_forward_norm = RMSNorm(hidden_size, eps)
        self.feed_forward = FeedForward(hidden_size, intermediate_size)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Any,
        layer: int,
        context: KeysValues | None,
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask, cache, layer)
        if context is not None:
            x = x + self.cross_attention(self.cross_attention_norm(x), context)
        return x + self.feed_forward(self.feed_forward_norm(x))
