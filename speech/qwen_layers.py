"""Decoder layers as in Qwen3: grouped heads, normalised queries and keys, rotary halves, SwiGLU.

Yang et al., 2025, "Qwen3 Technical Report". Query, key and value rows are fused, gate and up rows too; converters
join the released tensors.

Symbols: R rows, N query tokens, S key slots, D width, H heads, P head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.models.layers import FeedForward, RMSNorm


@dataclass(frozen=True, kw_only=True)
class StackSizes:
    """Sizes of a stack of layers; ``head_dim`` times ``num_heads`` need not be the width."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be at least 1.")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ValueError(
                f"`num_heads` ({self.num_heads}) must be a multiple of `num_kv_heads` ({self.num_kv_heads}) and "
                f"`head_dim` ({self.head_dim}) even."
            )


class QwenAttention(nn.Module):
    """Causal attention whose queries and keys are normalised before they turn."""

    def __init__(self, sizes: StackSizes) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
        self.eps = sizes.norm_eps
        rows = (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim
        self.qkv = nn.Linear(sizes.hidden_size, rows, bias=False)
        self.out = nn.Linear(sizes.num_heads * sizes.head_dim, sizes.hidden_size, bias=False)
        self.q_norm = nn.Parameter(torch.ones(sizes.head_dim))
        self.k_norm = nn.Parameter(torch.ones(sizes.head_dim))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (R, H + 2 Hkv, N, P)
        turned, value = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        scale = torch.cat([self.q_norm.expand(self.heads, -1), self.k_norm.expand(self.kv_heads, -1)])
        turned = F.rms_norm(turned.float(), (self.head_dim,), None, self.eps) * scale[:, None]
        first, second = turned.chunk(2, dim=-1)
        turned = (turned * rotary[0] + torch.cat([-second, first], dim=-1) * rotary[1]).type_as(x)
        query, key = turned.split([self.heads, self.kv_heads], dim=1)
        if cache is not None:
            key, value = cache.update(key, value, layer)
        if self.heads != self.kv_heads:
            key, value = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (key, value))
        causal = mask is None and query.shape[2] == key.shape[2]  # a single query behind a cache sees all of it
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(attended.transpose(1, 2).flatten(2))


class QwenBlock(nn.Module):
    """One pre-norm layer."""

    def __init__(self, sizes: StackSizes) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(sizes.hidden_size, sizes.norm_eps)
        self.attention = QwenAttention(sizes)
        self.feed_forward_norm = RMSNorm(sizes.hidden_size, sizes.norm_eps)
        self.feed_forward = FeedForward(sizes.hidden_size, sizes.intermediate_size)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask, cache, layer)
        return x + self.feed_forward(self.feed_forward_norm(x))


class QwenStack(nn.Module):
    """Layers with their rotary angles and the last norm."""

    def __init__(self, sizes: StackSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList(QwenBlock(sizes) for _ in range(sizes.num_layers))
        self.norm = RMSNorm(sizes.hidden_size, sizes.norm_eps)

    def rotary_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``positions`` (R or 1, N), each (R or 1, 1, N, P), float32."""
        half = torch.arange(0, self.sizes.head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.sizes.rope_theta ** (-half / self.sizes.head_dim)
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        return angles.cos(), angles.sin()

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Run ``x`` (R, N, D) at ``positions`` (R or 1, N); normalised hidden states (R, N, D).

        Args:
            mask: Additive or boolean, broadcastable to (R, H, N, S); ``None`` is causal over N tokens without a cache,
                and everything for a single token behind one.
            cache: Object with ``update(key, value, layer)``, such as ``SpecCache``.
        """
        rotary = self.rotary_at(positions)
        for layer, block in enumerate(self.layers):
            x = block(x, rotary, mask, cache, layer)
        return self.norm(x)
