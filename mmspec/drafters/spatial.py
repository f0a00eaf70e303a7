"""Light heads that guess cells further along the row and in the rows below, as first guesses of a Jacobi window.

After "SSD" (Spatially Speculative Decoding, arXiv 2606.20543). Let h be the target's last normalised state before a
token, e the token's embedding and z = [h; e]. The head of offset o predicts the state o places further,

    f(z) = W z + SwiGLU(rms(W z)),

and the target's own output matrix makes a law of it. Horizontal heads have the offsets 1, 2, ...; vertical heads whole
rows of the grid. The published method commits such guesses after a fixed number of rounds, whatever the target says, so
its output has another law. Here they only open the window: it is iterated to convergence and judged as any draft is, so
the output is that of plain decoding.

Symbols: R model rows, N places, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.controllers import Controller, CostCurve
from mmspec.core.draft import DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.drafters.base import (
    DraftSetup,
    check_controller,
    check_positive,
    make_controller,
)
from mmspec.drafters.initializers import INITIALIZERS, Initializer
from mmspec.drafters.network import DrafterNetwork, compare_sizes
from mmspec.drafters.spatial_session import SpatialSession
from mmspec.models.layers import FeedForward, RMSNorm

FOLDER = "spatial_drafter"
"""Where a checkpoint keeps its spatial drafter, beside the pipeline's components."""


class SpatialHead(nn.Module):
    """Predict the state a fixed number of places further (see the module's docstring)."""

    def __init__(self, hidden_size: int, intermediate_size: int, eps: float) -> None:
        super().__init__()
        self.joint = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.norm = RMSNorm(hidden_size, eps)
        self.feed_forward = FeedForward(hidden_size, intermediate_size)

    def forward(self, pairs: Tensor) -> Tensor:
        """States (R, N, D) further along, given ``pairs`` (R, N, 2 D) of a state and the next token's embedding."""
        joint = self.joint(pairs)
        return joint + self.feed_forward(self.norm(joint))


class SpatialDrafter(DrafterNetwork):
    """A Jacobi window whose new slots are guessed by heads on the target's states. Gumbel coupling.

    Args:
        vocab_size, hidden_size: Sizes of the target.
        row_length: Tokens of a grid row of the target, for vertical heads.
        horizontal: Heads along the row, for the offsets 1 to this; at least 0.
        vertical: Heads down the column, for 1 to this many rows; at least 0.
        intermediate_size: Width of a head's SwiGLU.
        norm_eps: Of the heads' norms.
        target: Fingerprint of the target, see :mod:`mmspec.drafters.fingerprint`; ``None`` checks sizes only.
        window: Most nodes of a forward, the last committed token included.
        initializer: Guess for slots that no head reaches, see :mod:`mmspec.drafters.initializers`.
        mix: Share of uniform guesses of the ``mix`` initialiser, in [0, 1].
        controller: ``fixed``, ``aimd`` or ``cost-aware``.
        prior: Tokens per forward by window, measured when the drafter was made; a start for ``cost-aware``.

    Raises:
        TypeError, ValueError: For an unknown name or a value out of range.
    """

    law = DraftLaw.COUPLED
    max_siblings = 1
    folder = FOLDER
    recipe = "mmspec train spatial-heads"

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        hidden_size: int = 1280,
        row_length: int = 32,
        horizontal: int = 5,
        vertical: int = 2,
        intermediate_size: int = 1280,
        norm_eps: float = 1e-5,
        target: dict[str, Any] | None = None,
        window: int = 64,
        initializer: str = "uniform",
        mix: float = 0.3,
        controller: str = "cost-aware",
        prior: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        for name in ("vocab_size", "hidden_size", "row_length", "intermediate_size", "window"):
            check_positive(name, getattr(self.config, name))
        check_controller(controller)
        for name, value in (("horizontal", horizontal), ("vertical", vertical)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"`{name}` must be an integer, got {value!r}.")
            if value < 0:
                raise ValueError(f"`{name}` must be at least 0, got {value}.")
        if horizontal + vertical == 0:
            raise ValueError("`horizontal` and `vertical` are both 0; give at least one head, or use JacobiDrafter.")
        if initializer not in INITIALIZERS:
            raise ValueError(f"Unknown `initializer` {initializer!r}; choose one of {', '.join(INITIALIZERS)}.")
        if not 0 <= mix <= 1:
            raise ValueError(f"`mix` must lie in [0, 1], got {mix}.")
        sizes = (hidden_size, intermediate_size, norm_eps)
        self.horizontal_heads = nn.ModuleList([SpatialHead(*sizes) for _ in range(horizontal)])
        self.vertical_heads = nn.ModuleList([SpatialHead(*sizes) for _ in range(vertical)])

    @property
    def offsets(self) -> list[int]:
        """How many places further each head looks: horizontal heads, then vertical ones."""
        config = self.config
        along = [place + 1 for place in range(config.horizontal)]
        return along + [config.row_length * (row + 1) for row in range(config.vertical)]

    @property
    def heads(self) -> list[nn.Module]:
        """All heads in the order of :attr:`offsets`."""
        return [*self.horizontal_heads, *self.vertical_heads]

    @property
    def max_nodes(self) -> int:
        return self.config.window

    def controller(self, costs: CostCurve) -> Controller:
        return make_controller(self.config.controller, self.config.window, costs, self.config.prior)

    def session(self, setup: DraftSetup) -> DraftSession:
        model = getattr(setup.runner, "model", None)
        if model is None or not hasattr(model, "predict"):
            raise ValueError(
                f"SpatialDrafter reads its target's states, which {type(model).__name__} does not hand out; "
                "choose another drafter for this model, such as NGramDrafter()."
            )
        config = self.config
        self.check_vocabulary(setup.vocab_size)
        if config.vertical:
            if setup.row_length is None:
                raise ValueError("SpatialDrafter has vertical heads, but this target has no grid.")
            compare_sizes("row length", config.row_length, setup.row_length)
        initializer = Initializer(
            config.initializer, setup.vocab_size, setup.row_length, config.mix, setup.row_start, setup.grammar
        )
        return SpatialSession(self, initializer, setup)
