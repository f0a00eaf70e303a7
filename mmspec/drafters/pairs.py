"""What drafters of pairs share: they read the state of a token with the token after it, and grow chains and trees.

The network differs: a layer on the target's last state (EAGLE), or one on states of several layers (EAGLE-3). How it is
asked, and the shapes of its drafts, do not; see :mod:`mmspec.drafters.feature` for the tables of modes and trees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from mmspec.core.draft import DraftLaw
from mmspec.core.trees import static_tree
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.compression import Shortened, VisualCompressor
from mmspec.drafters.feature_session import FeatureSession
from mmspec.drafters.network import DrafterNetwork
from mmspec.runner.features import FeatureModel, FeatureRunner

MODES = ("coupled", "sampled", "top-k")
TREES = ("chain", "dynamic", "static")

CHOICES: tuple[tuple[int, ...], ...] = (
    (0,), (0, 0), (0, 0, 0), (1,), (0, 0, 0, 0), (0, 1), (1, 0), (2,), (0, 0, 0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0),
    (3,), (0, 2), (2, 0), (0, 0, 0, 1), (1, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0),
)  # fmt: skip
"""A tree for drafters whose acceptance was not measured: deep along the best ranks, a few siblings near the root."""


class PairDrafter(DrafterNetwork):
    """A network that predicts the state of a token from the state before it and the token itself.

    Its configuration holds ``mode``, ``tree``, ``num_nodes``, ``depth``, ``beam``, ``branching``, ``choices``,
    ``replacement``, ``calibration``, ``controller``, ``prior`` and ``target`` as :class:`FeatureDrafter` describes them.
    """

    mask_padding: bool = True
    compressor: VisualCompressor | None

    @abstractmethod
    def embed(self, tokens: Tensor, model: FeatureModel) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N)."""

    def embed_prompt(self, model: FeatureModel) -> Tensor:
        """Embeddings (R, P - 1, D) of what stands in the prompt's slots but the first."""
        return self.embed(model.prompt_tokens()[:, 1:], model)

    def read_states(self, hidden: Tensor) -> Tensor:
        """What the network reads (R, N, D) of the target's states ``hidden``."""
        return hidden

    def shorten(self, features: Tensor, embeddings: Tensor, visual: Tensor, count: Tensor) -> Shortened | None:
        """Pairs of a text with fewer of them inside pictures; ``None`` where all are kept.

        Args:
            features: What the network reads of the states (R, P, D).
            embeddings: Embeddings of the tokens behind them (R, P, D).
            visual: Which slots of the text belong to pictures (R, P + 1).
            count: Real pairs of each row (R,).
        """
        if self.compressor is None:
            return None
        # the pair at the end of a picture holds the word behind it, which must not be mixed
        return self.compressor([features, embeddings], visual[:, :-1] & visual[:, 1:], count)

    def rotary(self, slots: Tensor, offset: Tensor, model: FeatureModel) -> tuple[Tensor, Tensor]:
        """What heads are rotated by for tokens at ``slots`` (R, N), by default as the target's.

        ``offset`` (R,) is what the target subtracts from a slot to get its position.
        """
        position = (slots - offset[:, None]).clamp(0, model.max_position)
        return model.rotary_at(position.to(model.device))

    def predict(self, states: Tensor, model: FeatureModel) -> Tensor:
        """Raw float32 logits (R, N, V) after ``states`` (R, N, D), by default by the target's head."""
        return model.predict(states.to(model.device))

    @property
    def law(self) -> DraftLaw:  # type: ignore[override] # it depends on the settings
        """Chains fit ratio rules in every sampling mode; chosen trees are known to match rules only."""
        config = self.config
        if config.tree == "chain" and config.mode != "top-k":
            return DraftLaw.SAMPLED
        if config.mode == "sampled":
            return DraftLaw.INDEPENDENT if config.replacement else DraftLaw.WITHOUT_REPLACEMENT
        return DraftLaw.DETERMINISTIC

    @property
    def choices(self) -> Sequence[Sequence[int]]:
        """Paths of the static tree, best first."""
        return CHOICES if self.config.choices is None else self.config.choices

    @property
    def max_siblings(self) -> int:  # type: ignore[override] # it depends on the settings
        """Most children of a node."""
        if self.config.tree == "chain":
            return 1
        if self.config.tree == "dynamic":
            return self.config.branching
        parents = [tuple(path[:-1]) for path in self.choices]
        return max(parents.count(parent) for parent in parents)

    @property
    def max_nodes(self) -> int:
        return self.config.num_nodes

    def nodes_within(self, budget: int) -> int:
        return self.max_nodes

    def open_session(self, setup: DraftSetup) -> FeatureSession:
        """A session on the target of ``setup``, which was checked."""
        config = self.config
        expanded = config.beam * config.depth if config.tree == "dynamic" else 0  # some are not in the final tree
        runner = FeatureRunner(self, setup.runner, setup.max_new_tokens, max(self.max_nodes, expanded))
        return FeatureSession(runner, self, setup)


def check_shape(
    mode: str, tree: str, choices: Sequence[Sequence[int]] | None, calibration: dict[str, list[float]] | None
) -> None:
    """Raise ValueError for an unknown mode or tree, paths that are none, or scales that are not positive."""
    for name, value, legal in (("mode", mode, MODES), ("tree", tree, TREES)):
        if value not in legal:
            raise ValueError(f"Unknown `{name}` {value!r}; choose one of {', '.join(legal)}.")
    if choices is not None:
        static_tree(choices)
    for name, scales in (calibration or {}).items():
        if name not in MODES or not scales or any(not 0 < scale < float("inf") for scale in scales):
            raise ValueError(
                f"`calibration` must give positive numbers for {', '.join(MODES)}, got {name!r}: {scales!r}."
            )
