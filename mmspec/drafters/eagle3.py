"""The EAGLE-3 head (Li et al., 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test"): one decoder layer on the target's states of a low, a middle and a high layer, joined and projected.

Row t holds the joined states of slot t and the embedding of the token behind it, side by side in queries, keys and
values; it predicts what follows that token. In the next step of a draft its own output stands in for the joined states.
It has an output head of its own, over the whole vocabulary or a part of it. Parameters bear the names of the published
checkpoints (SpecForge, SGLang); positions count the slots of the target's stream, pictures included.

Modes and trees are those of :mod:`mmspec.drafters.feature`, but without ``sampled``.

Symbols: R rows, N pairs, T tapped layers, D hidden size, V vocabulary, V' drafted part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.draft import DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.drafters.base import DraftSetup, check_controller, check_positive
from mmspec.drafters.block_network import BlockAttention, BlockFeedForward, rotary_at
from mmspec.drafters.compression import compressor_of
from mmspec.drafters.pairs import PairDrafter, check_shape
from mmspec.models.layers import RMSNorm
from mmspec.runner.features import FeatureModel

FOLDER = "eagle3_drafter"
"""Where a checkpoint keeps its EAGLE-3 head, beside the pipeline's components."""


class PairLayer(nn.Module):
    """The decoder layer: attention reads the normalised embedding and the normalised state side by side."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, intermediate_size: int, eps: float
    ) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm = RMSNorm(hidden_size, eps), RMSNorm(hidden_size, eps)
        self.self_attn = BlockAttention(
            hidden_size, num_heads, num_kv_heads, head_dim, eps, input_size=2 * hidden_size, head_norms=False
        )
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.mlp = BlockFeedForward(hidden_size, intermediate_size)


class Eagle3Drafter(PairDrafter):
    """Draft chains or trees with one decoder layer on states of several layers.

    Args:
        vocab_size, hidden_size: Sizes of the target.
        draft_vocab_size: Tokens that can be drafted, ``d2t`` says which; ``None`` drafts all.
        num_heads, num_kv_heads, head_dim, intermediate_size: Widths of the layer.
        taps: Layers of the target whose states are read, counted from 1; the last layer cannot be one.
        norm_eps, rope_theta: Of the layer.
        norm_before_residual: Whether the residual stream begins with the normalised state.
        tap_norms: Whether the state of each layer is normalised before they are joined (EAGLE-3.1).
        norm_output: Whether what is fed back is normalised (EAGLE-3.1).
        compression: How the slots of pictures become fewer in the drafter's context, see
            :mod:`mmspec.drafters.compression`; ``None`` keeps them all.
        compression_ratio: Slots of a picture for which one remains.
        target: Fingerprint of the target, see :mod:`mmspec.drafters.fingerprint`; ``None`` checks sizes only.
        mode, tree, num_nodes, depth, beam, branching, choices, calibration, controller, prior: As for
            :class:`~mmspec.drafters.feature.FeatureDrafter`.

    Raises:
        TypeError, ValueError: For an unknown name, a value out of range, or modes and trees that do not go together.
    """

    _no_split_modules = ("PairLayer",)

    folder = FOLDER
    recipe = "mmspec train vlm-drafter --head eagle3"

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 4096,
        draft_vocab_size: int | None = None,
        num_heads: int = 32,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        intermediate_size: int = 14336,
        taps: Sequence[int] = (2, 16, 29),
        norm_eps: float = 1e-6,
        rope_theta: float = 1e6,
        norm_before_residual: bool = False,
        tap_norms: bool = False,
        norm_output: bool = False,
        compression: str | None = None,
        compression_ratio: int = 4,
        target: dict[str, Any] | None = None,
        mode: str = "top-k",
        tree: str = "dynamic",
        num_nodes: int = 32,
        depth: int = 7,
        beam: int = 8,
        branching: int = 8,
        choices: Sequence[Sequence[int]] | None = None,
        replacement: bool = False,
        calibration: dict[str, list[float]] | None = None,
        controller: str = "fixed",
        prior: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        for name in ("num_nodes", "depth", "beam", "branching", "num_heads", "num_kv_heads", "head_dim"):
            check_positive(name, getattr(self.config, name))
        check_controller(controller)
        check_shape(mode, tree, choices, calibration)
        if mode == "sampled" or replacement:
            raise ValueError("Eagle3Drafter drafts likely tokens: `mode` must be 'coupled' or 'top-k', not 'sampled'.")
        if not taps or sorted(set(taps)) != list(taps) or taps[0] < 1:
            raise ValueError(f"`taps` must be layers in ascending order, the first one 1 or more, got {list(taps)}.")
        if num_heads % num_kv_heads or head_dim % 2:
            raise ValueError(f"`num_heads` ({num_heads}) must be a multiple of `num_kv_heads`, `head_dim` even.")
        drafted = vocab_size if draft_vocab_size is None else draft_vocab_size
        if not 1 <= drafted <= vocab_size:
            raise ValueError(f"`draft_vocab_size` must lie in [1, {vocab_size}], got {draft_vocab_size}.")
        self.fc = nn.Linear(len(taps) * hidden_size, hidden_size, bias=False)
        if tap_norms:
            self.fc_norm = nn.ModuleList([RMSNorm(hidden_size, norm_eps) for _ in taps])
        self.midlayer = PairLayer(hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, norm_eps)
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.lm_head = nn.Linear(hidden_size, drafted, bias=False)
        self.compressor = compressor_of(compression, compression_ratio, hidden_size)
        if draft_vocab_size is not None:
            # how much larger the token is in the target's vocabulary
            self.register_buffer("d2t", torch.zeros(drafted, dtype=torch.long))

    @property
    def law(self) -> DraftLaw:  # type: ignore[override] # of a base whose law depends on its settings
        """Chosen tokens, whose law nobody needs to know."""
        return DraftLaw.DETERMINISTIC

    @property
    def drafted_tokens(self) -> Tensor:
        """Tokens of the target (V',) that the head writes."""
        place = torch.arange(self.lm_head.out_features, device=self.lm_head.weight.device)
        return place if self.config.draft_vocab_size is None else place + self.d2t

    def session(self, setup: DraftSetup) -> DraftSession:
        self.check_taps(setup)
        self.check_vocabulary(setup.vocab_size)
        setup.runner.model.taps = tuple(self.config.taps)
        return self.open_session(setup)

    def embed(self, tokens: Tensor, model: FeatureModel) -> Tensor:
        return model.embed_tokens(tokens)

    def embed_prompt(self, model: Any) -> Tensor:
        """The target's own embeddings of the prompt (R, P - 1, D), which hold its pictures."""
        embeddings: Tensor = model.embeddings
        return embeddings[:, 1:]

    def read_states(self, hidden: Tensor) -> Tensor:
        if self.config.tap_norms:
            parts = hidden.unflatten(-1, (len(self.config.taps), -1)).unbind(-2)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(hidden)

    def rotary(self, slots: Tensor, offset: Tensor, model: FeatureModel) -> tuple[Tensor, Tensor]:
        return rotary_at(slots, self.config.head_dim, self.config.rope_theta)

    def predict(self, states: Tensor, model: FeatureModel) -> Tensor:
        logits = self.draft_logits(states)
        if self.config.draft_vocab_size is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.drafted_tokens, logits)

    def draft_logits(self, states: Tensor) -> Tensor:
        """Float32 logits (R, N, V') after ``states`` (R, N, D)."""
        return self.lm_head(states if self.config.norm_output else self.norm(states)).float()

    def forward(
        self, embeddings: Tensor, features: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: Any
    ) -> Tensor:
        """States (R, N, D) of tokens, as the next step reads them.

        Args:
            embeddings: Embeddings of the tokens (R, N, D).
            features: Projected states of the slots before them, or the drafter's own (R, N, D).
            rotary: Cosines and signed sines at the tokens' positions, each (R, 1, N, P).
            mask: Boolean or additive mask broadcastable to (R, H, N, S).
            cache: Object with ``update(key, value, layer)``.
        """
        layer = self.midlayer
        normed = layer.hidden_norm(features)
        read = torch.cat([layer.input_layernorm(embeddings), normed], dim=-1)
        key, value = cache.update(*layer.self_attn.keys_values(read, rotary), 0)
        states = normed if self.config.norm_before_residual else features
        states = states + layer.self_attn(read, rotary, key, value, mask)
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        return self.norm(states) if self.config.norm_output else states
