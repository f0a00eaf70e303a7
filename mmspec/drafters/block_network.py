"""The network of block drafters: a few layers that fill all masked slots of a block at once (Chen et al., 2026, "DFlash:
Block Diffusion for Flash Speculative Decoding"; for vision-language targets GLANCE, 2026).

Its context is not tokens but states of some of the target's layers, joined and projected; they enter each layer as keys
and values only, so those of a slot are computed once. Embedding and output head are the target's. Parameters bear the
names of the published checkpoints.

Symbols: R rows, Q query slots, S context slots, T tapped layers, D hidden size, H heads, P head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.models.layers import RMSNorm


class BlockAttention(nn.Module):
    """Attention of a block to the context and to itself, with norms on the heads of queries and keys (as in Qwen3).

    Args:
        input_size: Width of what is read, where it is not ``hidden_size``.
        head_norms: Whether there are those norms.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, eps: float,
        input_size: int | None = None, head_norms: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head_dim, self.groups = head_dim, num_heads // num_kv_heads
        width = input_size or hidden_size
        self.q_proj = nn.Linear(width, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm, self.k_norm = (RMSNorm(head_dim, eps) if head_norms else nn.Identity() for _ in range(2))

    def keys_values(self, states: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values (R, H, N, P) of context or block ``states`` (R, N, D); both take the same weights."""
        key = rotate(self.k_norm(self._heads(self.k_proj(states))), rotary)
        return key, self._heads(self.v_proj(states))

    def forward(
        self, states: Tensor, rotary: tuple[Tensor, Tensor], key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attend from ``states`` (R, Q, D) to ``key`` and ``value`` (R, H, S + Q, P) where ``mask`` (R, 1, Q, S + Q) is."""
        query = rotate(self.q_norm(self._heads(self.q_proj(states))), rotary)
        if self.groups > 1:  # an explicit mask with grouped heads would leave the fused kernels
            key, value = key.repeat_interleave(self.groups, 1), value.repeat_interleave(self.groups, 1)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class BlockFeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class BlockLayer(nn.Module):
    """One pre-norm layer."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, intermediate_size: int, eps: float
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.self_attn = BlockAttention(hidden_size, num_heads, num_kv_heads, head_dim, eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.mlp = BlockFeedForward(hidden_size, intermediate_size)


class MarkovCorrection(nn.Module):
    """What the token before a slot adds to the slot's logits, of low rank (the vanilla head of DSpark, arXiv 2607.05147).

    The slots of a block do not know one another's tokens; this gives each the one before it, for the price of two small
    matrices, and can be asked for every candidate of a tree.
    """

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.before = nn.Embedding(vocab_size, rank)
        self.after = nn.Linear(rank, vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Float32 additions (..., V) to the logits behind ``tokens`` (...)."""
        return self.after(self.before(tokens)).float()


def rotary_at(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (R, 1, N, P) at ``positions`` (R, N), halves of a head rotated against one another."""
    return rotary_of(positions[..., None], head_dim, theta)


def rotary_of(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """As :func:`rotary_at` for a position of each frequency (R, N, P / 2), or of all (R, N, 1)."""
    place = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float() * theta ** (-place / head_dim)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate ``x`` (R, H, N, P)."""
    cosine, signed_sine = rotary
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), signed_sine).to(x.dtype)


def default_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """Layers of the target to read, counted from 1, as ``count`` of ``num_layers``.

    Deep targets: spread from the second layer to the fourth last, as published drafters do. Shallow ones, where that
    would repeat layers: spread over all but the last, whose state only comes normalised.

    Raises:
        ValueError: If there are fewer layers.
    """
    if not 1 <= count < num_layers:
        raise ValueError(f"A target of {num_layers} layers has 1 to {num_layers - 1} to read, not {count}.")
    if count == 1:
        return (num_layers // 2 + 1 if num_layers > 2 else 1,)
    if num_layers - 4 >= count - 1:
        return tuple(round(1 + i * (num_layers - 4) / (count - 1)) + 1 for i in range(count))
    return tuple(round(1 + i * (num_layers - 2) / (count - 1)) for i in range(count))
