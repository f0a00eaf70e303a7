"""LlamaGen's decoder: a Llama over image codes with 2-D rotary positions and a condition prefix.

Sun et al., 2024, "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation".
This file holds the network only; it knows nothing of sampling, guidance or speculation.

Symbols of the shapes: R rows of the model batch, N query tokens, S key slots, D hidden size, H heads, P = D / H,
T condition slots, V codes. Sequence position ``s`` is a condition slot for ``s < T`` and image token ``s - T`` after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from mmspec.models.layers import Block, RMSNorm
from mmspec.models.rotary import RotaryModel


def feed_forward_size(hidden_size: int, multiple_of: int = 256) -> int:
    """Two thirds of four times the width, rounded up to ``multiple_of`` (LLaMA's SwiGLU sizing)."""
    size = int(2 * 4 * hidden_size / 3)
    return multiple_of * ((size + multiple_of - 1) // multiple_of)


def rotary_table(grid_height: int, grid_width: int, head_dim: int, condition_length: int, theta: float) -> Tensor:
    """Cosines and signed sines for every sequence position, (T + grid_height * grid_width, 2, P).

    The first half of a head turns with the row, the second with the column, in adjacent pairs. Condition slots hold
    zeros for cosine *and* sine: their queries and keys vanish, so an image query gives each caption slot the logit 0.
    """
    half = head_dim // 2
    frequencies = theta ** (-torch.arange(0, half, 2, dtype=torch.float32) / half)  # (P/4,)
    rows = torch.outer(torch.arange(grid_height, dtype=torch.float32), frequencies)
    columns = torch.outer(torch.arange(grid_width, dtype=torch.float32), frequencies)
    angles = torch.cat(
        [rows[:, None].expand(-1, grid_width, -1), columns[None].expand(grid_height, -1, -1)], dim=-1
    ).flatten(0, 1)  # (grid, P/2)
    cosine = angles.cos().repeat_interleave(2, dim=-1)
    sine = angles.sin().repeat_interleave(2, dim=-1)
    sine[:, 0::2] *= -1  # (a, b) -> (a cos - b sin, b cos + a sin) becomes x * cos + swap(x) * signed_sin
    table = torch.stack([cosine, sine], dim=1)
    return torch.cat([table.new_zeros(condition_length, 2, head_dim), table])


class CaptionProjection(nn.Module):
    """Two-layer perceptron (tanh-GELU, no bias) from text features to the decoder's width."""

    def __init__(self, caption_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.input = nn.Linear(caption_dim, hidden_size, bias=False)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(F.gelu(self.input(features), approximate="tanh"))


class GridDecoder(RotaryModel):
    """What LlamaGen and its any-order kin share: layers, norm, output, and rotary angles of grid cells."""

    def _add_layers(
        self,
        vocab_size: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        intermediate_size: int | None,
        norm_eps: float,
    ) -> None:
        size = intermediate_size or feed_forward_size(hidden_size)
        self.layers = nn.ModuleList(
            [Block(hidden_size, num_heads, num_kv_heads, size, norm_eps) for _ in range(num_layers)]
        )
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)

    def _add_rotary(
        self, grid: tuple[int, int], hidden_size: int, num_heads: int, condition_length: int, theta: float
    ) -> None:
        """Raises ValueError if the width does not divide."""
        if hidden_size % num_heads or (hidden_size // num_heads) % 4:
            raise ValueError(f"`hidden_size` ({hidden_size}) must be `num_heads` ({num_heads}) times a multiple of 4.")
        table = rotary_table(*grid, hidden_size // num_heads, condition_length, theta)
        self.register_buffer("rotary", table, persistent=False)


@dataclass
class LlamaGenOutput(BaseOutput):
    """Raw float32 ``logits`` (R, N, V), and the last normalised hidden states ``hidden`` (R, N, D) of all positions."""

    logits: Tensor
    hidden: Tensor


class LlamaGenTransformer(GridDecoder):
    """The class- and caption-conditional LlamaGen decoder.

    Args:
        vocab_size: Number of image codes V.
        hidden_size, num_layers, num_heads, num_kv_heads: Widths; ``num_kv_heads=None`` means one per head.
        intermediate_size: Feed-forward width; ``None`` follows :func:`feed_forward_size`.
        grid_height, grid_width: Image tokens per column and row; the sequence has their product.
        condition_length: Condition slots T before the image (1 for classes, 120 for captions in the release).
        caption_dim: Width of the text features, or ``None`` for a model without captions.
        num_classes: Number of classes, or ``None``. One more row is stored for the null class.

    Raises:
        ValueError: If there is no condition at all, or a width does not divide.
    """

    null_caption: Tensor

    _supports_gradient_checkpointing = False
    _no_split_modules = ("Block",)
    _repeated_blocks = ("Block",)

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        hidden_size: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        num_kv_heads: int | None = None,
        intermediate_size: int | None = None,
        grid_height: int = 16,
        grid_width: int = 16,
        condition_length: int = 1,
        caption_dim: int | None = None,
        num_classes: int | None = 1000,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        if caption_dim is None and num_classes is None:
            raise ValueError("`caption_dim` and `num_classes` are both None; a LlamaGen model needs a condition.")
        if num_heads % num_kv_heads:
            raise ValueError(f"`num_heads` ({num_heads}) must be a multiple of `num_kv_heads` ({num_kv_heads}).")
        self._add_rotary((grid_height, grid_width), hidden_size, num_heads, condition_length, rope_theta)
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        if caption_dim is not None:
            self.caption_projection = CaptionProjection(caption_dim, hidden_size)
            # its own generator: building or loading a model must not advance the global one
            null = torch.empty(condition_length, caption_dim)
            null.normal_(std=caption_dim**-0.5, generator=torch.Generator().manual_seed(0))
            self.register_buffer("null_caption", null)
        if num_classes is not None:
            self.class_embedding = nn.Embedding(num_classes + 1, hidden_size)
        self._add_layers(vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, intermediate_size, norm_eps)

    def embed(self, input_ids: Tensor | None, caption_embeds: Tensor | None, class_labels: Tensor | None) -> Tensor:
        """Join the condition prefix and the image tokens, whichever are given, to (R, N, D)."""
        parts = []
        if caption_embeds is not None:
            parts.append(self.caption_projection(caption_embeds))
        if class_labels is not None:
            parts.append(self.class_embedding(class_labels)[:, None])
        if input_ids is not None:
            parts.append(self.token_embedding(input_ids))
        if not parts:
            raise ValueError("Give `input_ids`, `caption_embeds` or `class_labels`; all three are None.")
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        caption_embeds: Tensor | None = None,
        class_labels: Tensor | None = None,
        position_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        num_logits: int = 0,
    ) -> LlamaGenOutput:
        """Run the decoder over the condition prefix, image tokens, or both.

        Args:
            input_ids: Image codes (R, N).
            caption_embeds: Text features (R, T, caption_dim), left-padded.
            class_labels: Class numbers (R,); ``num_classes`` is the null class.
            position_ids: Sequence positions (R, N) or (1, N) of everything given, condition slots included.
            attention_mask: Boolean or additive mask broadcastable to (R, H, N, S); ``None`` is plain causal over
                the key slots that the cache returns, the last query seeing all of them.
            cache: Object with ``update(key, value, layer)``, such as ``SpecCache``.
            num_logits: Keep the logits of this many last positions only; 0 keeps all. Hidden states are kept all.
        """
        hidden = self.embed(input_ids, caption_embeds, class_labels)
        rotary = self.rotary_at(position_ids)  # shared by all layers
        for layer, block in enumerate(self.layers):
            hidden = block(hidden, rotary, attention_mask, cache, layer)
        hidden = self.norm(hidden)
        return LlamaGenOutput(logits=self.head(hidden[:, -num_logits:]).float(), hidden=hidden)
