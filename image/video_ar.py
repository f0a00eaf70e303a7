"""The Cosmos-class autoregressive video decoder: a Llama over the codes of a latent clip, time slowest.

NVIDIA, 2025, "Cosmos World Foundation Model Platform for Physical AI", section 5.2: the base models, their YaRN-stretched
larger sizes, and Video2World with cross-attention to text and absolute embeddings before every layer. This file holds
the network only; it knows nothing of sampling or speculation.

Symbols of the shapes: R rows of the model batch, N query tokens, S key slots, D hidden size, P head size, C context
slots, V codes; a clip has (T, H, W) latent frames, rows and columns. Position ``s`` is code ``s`` in raster order, or, in a
model with a begin token, that token at 0 and code ``s - 1`` after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from diffusers.configuration_utils import register_to_config
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from mmspec.image.video_layers import KeysValues, VideoBlock
from mmspec.image.video_positions import Yarn, absolute_table, rotary_table
from mmspec.models.layers import RMSNorm
from mmspec.models.rotary import RotaryModel


@dataclass
class VideoAROutput(BaseOutput):
    """What a forward returns.

    Attributes:
        logits: Raw float32 logits (R, N, V).
        hidden: Last normalised hidden states of all positions (R, N, D).
        context: Keys and values of the context for every layer, to be given to the next forward instead of the context.
    """

    logits: Tensor
    hidden: Tensor
    context: list[KeysValues] | None = None


class VideoARTransformer(RotaryModel):
    """The decoder. The defaults are those of the 4B base model.

    Args:
        vocab_size: Number of codes V.
        num_embeddings: Input rows; more than V in models with a begin token. ``None`` means V.
        begin_token: Input row of the begin token before a clip, ``None`` for models without.
        hidden_size, num_layers, num_heads, num_kv_heads, head_dim, intermediate_size: Widths.
        latent_shape: Latent frames, rows and columns of a clip.
        context_dim: Width of the text features, ``None`` for a model without cross-attention.
        absolute_positions: Whether absolute embeddings are added before every layer.
        rope_theta: Base of the rotary frequencies.
        yarn_scale, yarn_beta_fast, yarn_beta_slow, yarn_original_shape: See :class:`Yarn`; scale 1 is none.
        norm_eps: Epsilon of all norms.

    Raises:
        ValueError: If a number does not fit the others.
    """

    absolute: Tensor | None

    _supports_gradient_checkpointing = False
    _no_split_modules = ("VideoBlock",)
    _repeated_blocks = ("VideoBlock",)

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 64000,
        num_embeddings: int | None = None,
        begin_token: int | None = None,
        hidden_size: int = 4096,
        num_layers: int = 16,
        num_heads: int = 32,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        intermediate_size: int = 14336,
        latent_shape: tuple[int, int, int] = (5, 40, 64),
        context_dim: int | None = None,
        absolute_positions: bool = False,
        rope_theta: float = 500000.0,
        yarn_scale: float = 1.0,
        yarn_beta_fast: float = 4.0,
        yarn_beta_slow: float = 1.0,
        yarn_original_shape: tuple[int, int, int] = (3, 40, 64),
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        rows = vocab_size if num_embeddings is None else num_embeddings
        if num_heads % num_kv_heads:
            raise ValueError(f"`num_heads` ({num_heads}) must be a multiple of `num_kv_heads` ({num_kv_heads}).")
        if rows < vocab_size or (begin_token is not None and not vocab_size <= begin_token < rows):
            raise ValueError(
                f"`num_embeddings` ({rows}) must be at least `vocab_size` ({vocab_size}), and `begin_token` "
                f"({begin_token}) a row between the two."
            )
        if len(latent_shape) != 3 or min(latent_shape) < 1:
            raise ValueError(f"`latent_shape` is {latent_shape}; give latent frames, rows and columns.")
        self.token_embedding = nn.Embedding(rows, hidden_size)
        self.layers = nn.ModuleList(
            VideoBlock(hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, context_dim, norm_eps)
            for _ in range(num_layers)
        )
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        frames, grid_rows, columns = latent_shape  # a list, where it was read from a file
        shape, prefix = (frames, grid_rows, columns), int(begin_token is not None)
        first_frames, first_rows, first_columns = yarn_original_shape
        original = (first_frames, first_rows, first_columns)
        yarn = Yarn(yarn_scale, yarn_beta_fast, yarn_beta_slow, original) if yarn_scale > 1 else None
        table = rotary_table(shape, head_dim, rope_theta, yarn, prefix)
        self.register_buffer("rotary", table, persistent=False)
        absolute = absolute_table(shape, hidden_size, prefix) if absolute_positions else None
        self.register_buffer("absolute", absolute, persistent=False)

    @property
    def num_positions(self) -> int:
        """Positions of a clip, the begin token included."""
        return len(self.rotary)

    @property
    def prefix_length(self) -> int:
        """Positions before the first code."""
        return int(self.config.begin_token is not None)

    def read_context(self, context: Tensor) -> list[KeysValues]:
        """Keys and values of ``context`` (R, C, context_dim) for every layer, to be used for all steps of a clip.

        Raises:
            ValueError: If the model takes none.
        """
        if self.config.context_dim is None:
            raise ValueError("This model has no cross-attention; it takes no context.")
        return [cast(VideoBlock, block).cross_attention.keys_values(context) for block in self.layers]

    def forward(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor,
        context: Tensor | Sequence[KeysValues] | None = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        num_logits: int = 0,
    ) -> VideoAROutput:
        """Run the decoder.

        Args:
            input_ids: Codes, or the begin token (R, N).
            position_ids: Positions (R, N) or (1, N).
            context: Text features (R, C, context_dim), or what an earlier forward made of them; models with
                cross-attention need it.
            attention_mask: Boolean or additive mask broadcastable to (R, H, N, S); ``None`` is plain causal over
                the key slots that the cache returns, the last query seeing all of them.
            cache: Object with ``update(key, value, layer)``, such as ``SpecCache``.
            num_logits: Keep the logits of this many last positions only; 0 keeps all. Hidden states are kept all.

        Raises:
            ValueError: If a context is missing or superfluous.
        """
        if (context is None) != (self.config.context_dim is None):
            raise ValueError("A `context` must be given to models with cross-attention, and only to them.")
        read = self.read_context(context) if isinstance(context, Tensor) else context
        hidden = self.token_embedding(input_ids)
        rotary = self.rotary_at(position_ids)  # shared by all layers
        absolute = None if self.absolute is None else self.absolute[position_ids].to(hidden.dtype)
        for layer, block in enumerate(self.layers):
            if absolute is not None:
                hidden = hidden + absolute
            crossed = None if read is None else read[layer]
            hidden = block(hidden, rotary, attention_mask, cache, layer, crossed)
        hidden = self.norm(hidden)
        logits = self.head(hidden[:, -num_logits:]).float()
        return VideoAROutput(logits, hidden, None if read is None else list(read))
