"""Tiny learned parts that turn a state of the code predictor into guesses of the codes after the next one.

Let x_p be the predictor's output that drew code p, W_g the head of code g, and e the embedding of code p as the predictor reads it. The guess of code
p + j is

    offset      W_{p+j} (x_p + u_p + v_j)
    gated       W_{p+j} (x_p + u_p + v_j + g_j * e)
    medusa      W_{p+j} (x_p + u_p + B silu(A [x_p; e] + a_{p,j})), as Medusa's heads (Cai et al., 2024) but for shared matrices,
    chained     W_{p+j} s_j,  s_j = norm(s_{j-1} + B silu(A [s_{j-1}; e_{j-1}] + a_{p+j})),  s_0 = x_p, e_0 = e,

All but chained guesses of a draft are made at once. e_j is the embedding of the j-th draft code: a chained guess knows the codes drafted before it (as Hydra heads do: Ankner et al., 2024).
For code 0, which the talker drew, x_0 is the talker's state as the predictor reads it, so that drafting starts before the
predictor has run. ``lookahead`` instead holds an input vector for every position: they stand behind the draft in the
predictor's own call, and their outputs are the next guesses if the whole draft was accepted.

Symbols: b rows, E predictor width, D width of the predictor's inputs, G codes a frame, H hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.models.strict import StrictModelMixin

KINDS = ("offset", "gated", "medusa", "chained", "lookahead")


class ResidualHeads(StrictModelMixin, ConfigMixin):
    """Weights of a residual drafter.

    Args:
        kind: See the module's equations.
        num_codebooks: G.
        width: E.
        input_width: D, for ``lookahead``.
        hidden_size: H, for ``medusa`` and ``chained``.
        target: Fingerprint of the model that they were made for, see :mod:`mmspec.drafters.fingerprint`; ``None``
            checks sizes only.

    Raises:
        ValueError: For an unknown kind, or sizes below 1.
    """

    @register_to_config
    def __init__(
        self,
        kind: str = "chained",
        num_codebooks: int = 8,
        width: int = 128,
        input_width: int = 192,
        hidden_size: int = 64,
        target: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"Unknown `kind` {kind!r}; choose one of {', '.join(KINDS)}.")
        if num_codebooks < 2 or min(width, input_width, hidden_size) < 1:
            raise ValueError("`num_codebooks` must be at least 2 and all widths at least 1.")
        if kind == "lookahead":
            self.inputs = nn.Parameter(torch.zeros(num_codebooks, input_width))
            return
        self.origin = nn.Parameter(torch.zeros(num_codebooks, width))
        if kind in ("medusa", "chained"):
            self.read = nn.Linear(2 * width, hidden_size, bias=False)
            self.write = nn.Linear(hidden_size, width, bias=False)
        if kind == "chained":
            self.scale = nn.Parameter(torch.ones(num_codebooks, width))
            self.place = nn.Parameter(torch.zeros(num_codebooks, hidden_size))
        elif kind == "medusa":
            self.place = nn.Parameter(torch.zeros(num_codebooks, num_codebooks, hidden_size))
        else:
            self.distance = nn.Parameter(torch.zeros(num_codebooks, width))
        if kind == "gated":
            self.gate = nn.Parameter(torch.zeros(num_codebooks, width))

    def begin(self, hidden: Tensor, books: Tensor) -> Tensor:
        """State (b, E) from outputs ``hidden`` (b, E) that drew the codes of ``books`` (b,)."""
        return hidden + self.origin[books]

    def spread(self, state: Tensor, code: Tensor, books: Tensor, count: int) -> Tensor:
        """What the heads of the next ``count`` books read (b, count, E), guessed at once.

        Args:
            state: State (b, E).
            code: Embeddings (b, E) of the last code committed.
            books: Its book (b,).
            count: Codes to guess.
        """
        if self.config.kind == "medusa":
            inner = self.read(torch.cat([state, code], dim=-1))[:, None] + self.place[books, 1 : count + 1]
            return state[:, None] + self.write(F.silu(inner))
        read = state[:, None] + self.distance[1 : count + 1]
        if self.config.kind == "gated":
            read = read + self.gate[1 : count + 1] * code[:, None]
        return read

    def step(self, state: Tensor, code: Tensor, books: Tensor) -> Tensor:
        """The states (..., E) that guess the codes of ``books`` (...), which broadcast, of ``chained`` heads.

        Args:
            state: States before (..., E).
            code: Embeddings (..., E) of the codes before: of the last one committed, then of those drafted.
            books: Books that are guessed.
        """
        inner = F.silu(self.read(torch.cat([state, code], dim=-1)) + self.place[books])
        return F.rms_norm(state + self.write(inner), state.shape[-1:]) * self.scale[books]
