"""A block drafter: one forward of a small network over the target's own states drafts a whole block, as a chain or a tree
(Chen et al., 2026, "DFlash"; trees from its marginals: Ringel, 2026, "DDTree"; vision-language targets: GLANCE, 2026).

The first slot of a block holds the newest token, the others a mask; slot k predicts the token k places behind it. The
slots do not know one another's tokens, so the laws of the depths are independent, and the best tree under their product
is found best-first. Positions count the slots of the target's stream, pictures included.

    mode       candidates of a depth
    top-k      most likely tokens; best where the target is sure, as when reading
    coupled    most likely winners of the target's own race, whose noise is known; best where both are unsure

Symbols: R rows, Q query slots, S context slots, T tapped layers, D hidden size, H heads, P head size.
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
from mmspec.drafters.block_network import BlockLayer, MarkovCorrection, rotary_at
from mmspec.drafters.block_session import BlockSession
from mmspec.drafters.compression import compressor_of
from mmspec.drafters.network import DrafterNetwork
from mmspec.models.layers import RMSNorm

MODES = ("coupled", "top-k")
TREES = ("chain", "dynamic")
FOLDER = "block_drafter"
"""Where a checkpoint keeps its block drafter, beside the pipeline's components."""


class BlockDrafter(DrafterNetwork):
    """Draft a block of tokens in one forward.

    Args:
        vocab_size, hidden_size: Sizes of the target.
        num_layers, num_heads, num_kv_heads, head_dim, intermediate_size: Widths of the drafter's layers.
        taps: Layers of the target whose states are read, counted from 1; the last layer cannot be one.
        block_size: Slots of a block; one less is drafted.
        mask_token_id: Token that stands in the slots to fill; one that the target never writes.
        norm_eps, rope_theta: Of the layers.
        markov_rank: Rank of a correction of each slot's logits by the token before it; 0 has none. Trees are then built of
            the corrected probabilities.
        compression: How the slots of pictures become fewer in the drafter's context, see
            :mod:`mmspec.drafters.compression`; ``None`` keeps them all.
        compression_ratio: Slots of a picture for which one remains.
        target: Fingerprint of the target, see :mod:`mmspec.drafters.fingerprint`; ``None`` checks sizes only.
        mode, tree: See the module's table; ``chain`` or ``dynamic``.
        num_slots: Slots that are run, the newest token's among them; fewer than ``block_size`` cost less and draft less far.
            ``None`` runs the whole block, as in training.
        num_nodes: Most nodes of a draft, root included.
        branching: Candidates of a depth.
        graft: Nodes of a tree that may go to a copy of what followed the last tokens before, in prompt or answer (prompt
            lookup within a neural tree: "Graft", arXiv 2605.20104); 0 copies nothing.
        temperature: What logits are divided by before they are read as probabilities of acceptance.
        controller: ``fixed``, ``aimd`` or ``cost-aware``.
        prior: Tokens per forward by width, measured when the drafter was made; a start for ``cost-aware``.

    Raises:
        TypeError, ValueError: For an unknown name or a value out of range.
    """

    _no_split_modules = ("BlockLayer",)
    law = DraftLaw.DETERMINISTIC

    folder = FOLDER
    recipe = "mmspec train vlm-drafter"

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 2048,
        num_layers: int = 5,
        num_heads: int = 16,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        intermediate_size: int = 6144,
        taps: Sequence[int] = (2, 10, 18, 26, 34),
        block_size: int = 16,
        mask_token_id: int = 0,
        norm_eps: float = 1e-6,
        rope_theta: float = 1e6,
        markov_rank: int = 0,
        compression: str | None = None,
        compression_ratio: int = 4,
        target: dict[str, Any] | None = None,
        mode: str = "top-k",
        tree: str = "dynamic",
        num_slots: int | None = None,
        num_nodes: int = 32,
        branching: int = 8,
        graft: int = 0,
        temperature: float = 1.0,
        controller: str = "fixed",
        prior: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "num_nodes", "branching"):
            check_positive(name, getattr(self.config, name))
        check_controller(controller)
        for name, value, legal in (("mode", mode, MODES), ("tree", tree, TREES)):
            if value not in legal:
                raise ValueError(f"Unknown `{name}` {value!r}; choose one of {', '.join(legal)}.")
        if isinstance(graft, bool) or not 0 <= graft < num_nodes:
            raise ValueError(f"`graft` must lie in [0, {num_nodes}), below `num_nodes`, got {graft!r}.")
        if block_size < 2:
            raise ValueError(f"`block_size` must be at least 2, the newest token and one to draft, got {block_size}.")
        if num_slots is not None and not 2 <= num_slots <= block_size:
            raise ValueError(f"`num_slots` must lie in [2, {block_size}], up to `block_size`, got {num_slots}.")
        if num_heads % num_kv_heads or head_dim % 2:
            raise ValueError(f"`num_heads` ({num_heads}) must be a multiple of `num_kv_heads`, `head_dim` even.")
        if not taps or sorted(set(taps)) != list(taps) or taps[0] < 1:
            raise ValueError(f"`taps` must be layers in ascending order, the first one 1 or more, got {list(taps)}.")
        if not 0 <= mask_token_id < vocab_size:
            raise ValueError(f"`mask_token_id` must lie in [0, {vocab_size}), got {mask_token_id}.")
        if not temperature > 0:
            raise ValueError(f"`temperature` must be positive, got {temperature}.")
        self.fc = nn.Linear(len(taps) * hidden_size, hidden_size, bias=False)
        self.hidden_norm = RMSNorm(hidden_size, norm_eps)
        sizes = (hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, norm_eps)
        self.layers = nn.ModuleList([BlockLayer(*sizes) for _ in range(num_layers)])
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.compressor = compressor_of(compression, compression_ratio, hidden_size)
        if markov_rank:
            check_positive("markov_rank", markov_rank)
            self.markov = MarkovCorrection(vocab_size, markov_rank)

    @property
    def slots(self) -> int:
        """Slots that are run."""
        return int(self.config.num_slots or self.config.block_size)

    @property
    def max_siblings(self) -> int:  # type: ignore[override] # it depends on the settings
        """Most children of a node."""
        return 1 if self.config.tree == "chain" else self.config.branching

    @property
    def max_nodes(self) -> int:
        return min(self.config.num_nodes, self.slots) if self.config.tree == "chain" else self.config.num_nodes

    def nodes_within(self, budget: int) -> int:
        return self.max_nodes

    def session(self, setup: DraftSetup) -> DraftSession:
        self.check_taps(setup)
        self.check_vocabulary(setup.vocab_size)
        return BlockSession(self, setup)

    def read_context(self, features: Tensor) -> Tensor:
        """Context (R, S, D) of the joined states (R, S, T * D) of the tapped layers."""
        return self.hidden_norm(self.fc(features))

    def correction(self, tokens: Tensor) -> Tensor:
        """What ``tokens`` (...) add to the logits (..., V) of the slots behind them."""
        return self.markov(tokens.to(self.device)).to(tokens.device)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What heads are rotated by at ``positions`` (R, N)."""
        return rotary_at(positions, self.config.head_dim, self.config.rope_theta)

    def forward(
        self,
        embeddings: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Any = None,
        context: tuple[Tensor, tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """States (R, Q, D) of block slots, normalised for the target's head.

        Args:
            embeddings: The target's embeddings (R, Q, D) of the newest tokens and masks.
            rotary: What heads are rotated by at their positions, see :meth:`rotary`.
            mask: Additive or boolean mask (R, 1, Q, S + Q): what each slot sees of the context and of the blocks; ``None``
                is all.
            cache: Object with ``update(key, value, layer)`` that joins the block's to the context's.
            context: Instead of a cache, context (R, S, D) and what heads are rotated by there, for training.
        """
        states = embeddings
        layers: Any = self.layers
        for index, layer in enumerate(layers):
            read = layer.input_layernorm(states)
            key, value = layer.self_attn.keys_values(read, rotary)
            if cache is not None:
                key, value = cache.update(key, value, index)
            elif context is not None:
                first_key, first_value = layer.self_attn.keys_values(*context)
                key, value = torch.cat([first_key, key], dim=2), torch.cat([first_value, value], dim=2)
            states = states + layer.self_attn(read, rotary, key, value, mask)
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        return self.norm(states)
