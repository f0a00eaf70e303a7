"""A one-layer drafter on the target's own states (Li et al., 2024, "EAGLE"; for images Jang et al., 2025, "LANTERN").

It reads the embedding of a token and the target's last normalised state of the token before it, predicts the state of
the token itself, and asks the target's own head what comes next; its prediction stands in for the state at the next
step. Where the target is guided, so is the drafter: both branches run, and their logits merge as the target's do.

    mode       children of a node                                       rules
    coupled    most likely winners of the target's own race             match rules; a chain also ratio rules, with
               (its noise is known, so the draw can be guessed)         noise of its own
    top-k      most likely tokens, as in EAGLE-2                        match rules
    sampled    draws from the drafter's law, reported as ``log_q``      ratio rules for chains, recursive rejection
                                                                        for trees

    tree       shape
    chain      one child a node
    static     fixed paths of ranks, best measured beforehand (Medusa, EAGLE, LANTERN++)
    dynamic    grown best-first by the drafter's own probabilities (EAGLE-2); where it is sampled, by stochastic beam
               search, which does not look at the tokens (Kool et al., 2019)

Symbols: R model rows, N pairs, D hidden size, V vocabulary, P head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.drafting import DraftSession
from mmspec.drafters.base import DraftSetup, check_controller, check_positive
from mmspec.drafters.pairs import PairDrafter, check_shape
from mmspec.models.layers import Block
from mmspec.runner.features import FeatureModel

FOLDER = "feature_drafter"
"""Where a checkpoint keeps its feature drafter, beside the pipeline's components."""


class FeatureDrafter(PairDrafter):
    """Draft chains or trees with one decoder layer on the target's states.

    Args:
        vocab_size, hidden_size: Sizes of the target.
        num_heads, num_kv_heads, intermediate_size: Widths of the layer; heads must be as wide as the target's.
        num_layers: Layers, usually 1.
        norm_eps: Of the layer's norms.
        input_norm: Whether attention reads its input through a norm.
        joint_bias: Whether the joint projection of embedding and state has a bias.
        own_embedding: Whether the drafter has an embedding of its own, as published ones do; else the target's serves.
        mask_padding: Whether padded prompt slots are hidden; published LlamaGen drafters see them.
        target: Fingerprint of the target, see :mod:`mmspec.drafters.fingerprint`; ``None`` checks sizes only.
        mode, tree: See the module's tables.
        num_nodes: Most nodes of a draft, root included.
        depth: Most draft tokens in a row, for dynamic trees; chains are as long as ``num_nodes`` says.
        beam: Nodes of a level that are expanded, for dynamic trees.
        branching: Children of an expanded node, for dynamic trees.
        choices: Paths of a static tree, best first; ``None`` is :data:`mmspec.drafters.pairs.CHOICES`.
        replacement: Whether siblings of a sampled static tree are drawn independently, twins included.
        calibration: For each mode and depth, what to divide scores by before they are read as probabilities; the last
            depth goes on, a mode that is missing divides by 1.
        controller: ``fixed``, ``aimd`` or ``cost-aware``.
        prior: Tokens per forward by width, measured when the drafter was made; a start for ``cost-aware``.

    Raises:
        TypeError, ValueError: For an unknown name, a value out of range, or modes and trees that do not go together.
    """

    _no_split_modules = ("Block",)

    folder = FOLDER
    recipe = "mmspec train image-drafter"

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        hidden_size: int = 1280,
        num_heads: int = 20,
        num_kv_heads: int | None = None,
        intermediate_size: int = 3584,
        num_layers: int = 1,
        norm_eps: float = 1e-5,
        input_norm: bool = False,
        joint_bias: bool = True,
        own_embedding: bool = False,
        mask_padding: bool = True,
        target: dict[str, Any] | None = None,
        mode: str = "coupled",
        tree: str = "dynamic",
        num_nodes: int = 16,
        depth: int = 6,
        beam: int = 4,
        branching: int = 4,
        choices: Sequence[Sequence[int]] | None = None,
        replacement: bool = False,
        calibration: dict[str, list[float]] | None = None,
        controller: str = "fixed",
        prior: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        for name in ("num_nodes", "depth", "beam", "branching", "num_layers", "num_heads"):
            check_positive(name, getattr(self.config, name))
        check_controller(controller)
        check_shape(mode, tree, choices, calibration)
        if replacement and tree == "dynamic":
            raise ValueError("`replacement` needs `tree` 'static'; the siblings of a sampled beam are all different.")
        if hidden_size % num_heads:
            raise ValueError(f"`hidden_size` ({hidden_size}) must be a multiple of `num_heads` ({num_heads}).")
        self.mask_padding, self.compressor = mask_padding, None
        self.joint = nn.Linear(2 * hidden_size, hidden_size, bias=joint_bias)
        sizes = (hidden_size, num_heads, num_kv_heads or num_heads, intermediate_size, norm_eps)
        self.layers = nn.ModuleList([Block(*sizes, input_norm=input_norm or index > 0) for index in range(num_layers)])
        if own_embedding:
            self.token_embedding = nn.Embedding(vocab_size, hidden_size)

    def session(self, setup: DraftSetup) -> DraftSession:
        model: FeatureModel | None = getattr(setup.runner, "model", None)
        if model is None or not hasattr(model, "predict"):
            raise ValueError(
                f"FeatureDrafter reads its target's states, which {type(model).__name__} does not hand out; "
                "choose another drafter for this model, such as NGramDrafter()."
            )
        self.check_vocabulary(setup.vocab_size)
        return self.open_session(setup)

    def embed(self, tokens: Tensor, model: FeatureModel) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N)."""
        if self.config.own_embedding:
            return self.token_embedding(tokens.to(self.device))
        return model.embed_tokens(tokens)

    def forward(
        self, embeddings: Tensor, features: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any
    ) -> Tensor:
        """Predict the states (R, N, D) of tokens.

        Args:
            embeddings: Embeddings of the tokens (R, N, D).
            features: States of the tokens before them (R, N, D).
            rotary: Cosines and signed sines at the tokens' positions, each (R, N, 1, P).
            mask: Boolean or additive mask broadcastable to (R, H, N, S); ``None`` is plain causal.
            cache: Object with ``update(key, value, layer)``, or ``None``.
        """
        states = self.joint(torch.cat([embeddings, features], dim=-1))
        for index, layer in enumerate(self.layers):
            states = layer(states, rotary, mask, cache, index)
        return states
