"""Layers of Llama-style decoders, shared by targets and the drafters that imitate them.

Touvron et al., 2023, "LLaMA: Open and Efficient Foundation Language Models"; rotary positions in adjacent pairs as in
GPT-J and LlamaGen. Which angles belong to a token is the caller's business.

Symbols: R rows of the model batch, N query tokens, S key slots, D hidden size, H heads, P = D / H.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


def apply_rotary(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate adjacent pairs of ``x`` (R, N, ..., P) by the angles of ``rotary``, two tensors (R, N, ..., P)."""
    cosine, signed_sine = rotary
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cosine, swapped, signed_sine)


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, cast back before the weight is applied, as the released weights expect."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], None, self.eps).type_as(x) * self.weight


class Attention(nn.Module):
    """Causal self-attention with fused query, key and value rows, fewer key-value heads if wanted, no biases."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.qkv = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # (R, N, H + 2 Hkv, P)
        queries_keys, value = qkv.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=2)
        queries_keys = apply_rotary(queries_keys.float(), rotary).type_as(x)
        query, key = queries_keys.split([self.num_heads, self.num_kv_heads], dim=2)
        query, key, value = (rearrange(t, "r n h p -> r h n p") for t in (query, key, value))
        if cache is not None:
            key, value = cache.update(key, value, layer)
        if self.num_kv_heads != self.num_heads:  # an explicit mask with grouped heads would leave the fused kernels
            repeats = self.num_heads // self.num_kv_heads
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        new, total = query.shape[2], key.shape[2]
        if mask is None and new != total:  # `is_causal` would align the first query, not the last, with the keys
            mask = query.new_ones(new, total, dtype=torch.bool).tril(total - new)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.out(rearrange(attended, "r h n p -> r n (h p)"))


class FeedForward(nn.Module):
    """SwiGLU with fused gate and up rows."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One pre-norm decoder layer; without ``input_norm`` attention reads its input as it is."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        intermediate_size: int,
        eps: float,
        input_norm: bool = True,
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden_size, eps) if input_norm else nn.Identity()
        self.attention = Attention(hidden_size, num_heads, num_kv_heads)
        self.feed_forward_norm = RMSNorm(hidden_size, eps)
        self.feed_forward = FeedForward(hidden_size, intermediate_size)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask, cache, layer)
        return x + self.feed_forward(self.feed_forward_norm(x))
