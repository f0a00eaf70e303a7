"""A multi-token-prediction head that is applied again and again (Cai et al., 2025, "FastMTP: Accelerating LLM Inference with
Enhanced Multi-Token Prediction"; the module is that of DeepSeek-AI, 2024, "DeepSeek-V3 Technical Report").

Row t holds the target's last normalised state of slot t and the embedding of the token behind it, each normalised; one
matrix joins them, one decoder layer follows, and the target's own head says what comes next. In the next step of a draft
the head's own output stands in for the state, so one head drafts any number of tokens. Embedding and output head are the
target's. GLM-OCR ships such a head, see :mod:`mmspec.checkpoints.glm_ocr_mtp`.

Modes and trees are those of :mod:`mmspec.drafters.feature`.

Symbols: R rows, N pairs, A axes of positions, D hidden size, V vocabulary, H heads, P head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.drafting import DraftSession
from mmspec.drafters.base import DraftSetup, check_controller, check_positive
from mmspec.drafters.block_network import BlockAttention, BlockFeedForward, rotary_at, rotary_of
from mmspec.drafters.compression import compressor_of
from mmspec.drafters.pairs import PairDrafter, check_shape
from mmspec.models.layers import RMSNorm
from mmspec.runner.features import FeatureModel

FOLDER = "mtp_drafter"
"""Where a checkpoint keeps its MTP head, beside the pipeline's components."""


class MTPLayer(nn.Module):
    """The decoder layer: norms before attention and feed-forward, and with ``sandwich_norms`` behind each as well."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, intermediate_size: int, eps: float,
        sandwich_norms: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.self_attn = BlockAttention(hidden_size, num_heads, num_kv_heads, head_dim, eps, head_norms=False)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.mlp = BlockFeedForward(hidden_size, intermediate_size)
        self.post_self_attn_layernorm, self.post_mlp_layernorm = (
            RMSNorm(hidden_size, eps) if sandwich_norms else nn.Identity() for _ in range(2)
        )

    def forward(self, states: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        """States (R, N, D) of ``states`` (R, N, D), arguments as for :meth:`MTPDrafter.forward`."""
        read = self.input_layernorm(states)
        key, value = cache.update(*self.self_attn.keys_values(read, rotary), 0)
        states = states + self.post_self_attn_layernorm(self.self_attn(read, rotary, key, value, mask))
        return states + self.post_mlp_layernorm(self.mlp(self.post_attention_layernorm(states)))


class MTPDrafter(PairDrafter):
    """Draft chains or trees by one head that reads its own output.

    Args:
        vocab_size, hidden_size: Sizes of the target.
        num_heads, num_kv_heads, head_dim, intermediate_size: Widths of the layer.
        norm_eps, rope_theta: Of the layer.
        sandwich_norms: Whether attention and feed-forward are normalised behind, too, as in GLM-OCR.
        mrope_section: How many frequencies of a head turn with time, height and width, again and again; then positions
            are the target's own, those of the slot whose state is read. ``None``: positions count the slots of the
            target's stream, pictures included.
        norm_output: Whether what is fed back is normalised, as the target's states are.
        compression: How the slots of pictures become fewer in the drafter's context, see
            :mod:`mmspec.drafters.compression`; ``None`` keeps them all.
        compression_ratio: Slots of a picture for which one remains.
        target: Fingerprint of the target, see :mod:`mmspec.drafters.fingerprint`; ``None`` checks sizes only.
        mode, tree, num_nodes, depth, beam, branching, choices, replacement, calibration, controller, prior: As for
            :class:`~mmspec.drafters.feature.FeatureDrafter`.

    Raises:
        TypeError, ValueError: For an unknown name, a value out of range, or modes and trees that do not go together.
    """

    _no_split_modules = ("MTPLayer",)

    folder = FOLDER
    recipe = "mmspec train vlm-drafter --head mtp"

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 59392,
        hidden_size: int = 1536,
        num_heads: int = 16,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        intermediate_size: int = 4608,
        norm_eps: float = 1e-5,
        rope_theta: float = 1e4,
        sandwich_norms: bool = False,
        mrope_section: Sequence[int] | None = None,
        norm_output: bool = True,
        compression: str | None = None,
        compression_ratio: int = 4,
        target: dict[str, Any] | None = None,
        mode: str = "top-k",
        tree: str = "chain",
        num_nodes: int = 4,
        depth: int = 4,
        beam: int = 4,
        branching: int = 4,
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
        if replacement and tree == "dynamic":
            raise ValueError("`replacement` needs `tree` 'static'; the siblings of a sampled beam are all different.")
        if num_heads % num_kv_heads or head_dim % 2:
            raise ValueError(f"`num_heads` ({num_heads}) must be a multiple of `num_kv_heads`, `head_dim` even.")
        if mrope_section is not None and (not mrope_section or sum(mrope_section) != head_dim // 2):
            raise ValueError(
                f"`mrope_section` must add up to {head_dim // 2}, half of `head_dim`, got {mrope_section}."
            )
        self.enorm, self.hnorm = RMSNorm(hidden_size, norm_eps), RMSNorm(hidden_size, norm_eps)
        self.eh_proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        sizes = (hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, norm_eps)
        self.layer = MTPLayer(*sizes, sandwich_norms)
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.compressor = compressor_of(compression, compression_ratio, hidden_size)

    def session(self, setup: DraftSetup) -> DraftSession:
        self.check_states(setup)
        self.check_vocabulary(setup.vocab_size)
        model = setup.runner.model
        model.taps = (model.num_layers,)  # whose state comes normalised
        return self.open_session(setup)

    def embed(self, tokens: Tensor, model: FeatureModel) -> Tensor:
        return model.embed_tokens(tokens)

    def embed_prompt(self, model: Any) -> Tensor:
        """The target's own embeddings of the prompt (R, P - 1, D), which hold its pictures."""
        embeddings: Tensor = model.embeddings
        return embeddings[:, 1:]

    def rotary(self, slots: Tensor, offset: Tensor, model: Any) -> tuple[Tensor, Tensor]:
        section, size, theta = self.config.mrope_section, self.config.head_dim, self.config.rope_theta
        if section is None:
            return rotary_at(slots, size, theta)
        positions = model.positions_at((slots - 1).to(model.device))  # (A, R, N)
        axes = [index % len(positions) for index, count in enumerate(section) for _ in range(count)]
        return rotary_of(positions[axes].movedim(0, -1), size, theta)

    def predict(self, states: Tensor, model: Any) -> Tensor:
        normed = states if self.config.norm_output else self.norm(states)
        logits: Tensor = model.logits(normed.to(model.device, model.dtype))
        return logits

    def forward(
        self, embeddings: Tensor, features: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any
    ) -> Tensor:
        """States (R, N, D) of tokens, as the next step reads them.

        Args:
            embeddings: Embeddings of the tokens (R, N, D).
            features: The target's last states of the slots before them, or the head's own (R, N, D).
            rotary: Cosines and signed sines at the tokens' positions, each (R, 1, N, P).
            mask: Boolean or additive mask broadcastable to (R, H, N, S).
            cache: Object with ``update(key, value, layer)``.
        """
        joined = self.eh_proj(torch.cat([self.enorm(embeddings), self.hnorm(features)], dim=-1))
        states: Tensor = self.layer(joined, rotary, mask, cache)
        return self.norm(states) if self.config.norm_output else states
