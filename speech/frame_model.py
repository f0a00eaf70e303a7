"""What speech synthesis needs of a model that draws frames of codes, whatever its family.

A talker reads whole frames and draws code 0; a code predictor draws the others one after the other. Input position 0 of the
predictor holds the talker's state, position p >= 1 code p - 1, and the output at position p >= 1 predicts code p.

Symbols: B rows, b of them that take part in a call, G codes a frame, V tokens, D width of talker states, E of the predictor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

MOST_BRANCHES = 64
"""Draft codes that a call of the predictor must have room for beside the codes of a step."""


class InnerSession(Protocol):
    """The predictor's memory of the frame of one row, for drafts that are verified behind cached codes."""

    def extend(self, inputs: Tensor) -> Tensor:
        """Run ``inputs`` (1, n, *) behind what is cached: hidden states (1, n, E)."""
        ...

    def keep(self, length: int) -> None:
        """Forget what lies beyond the first ``length`` positions."""
        ...


class BranchingSession(InnerSession, Protocol):
    """A memory that takes drafts that branch."""

    def branch(self, inputs: Tensor, depth: Tensor, ancestors: Tensor) -> Tensor:
        """Run ``inputs`` (1, n, *) that hang together as ``ancestors`` (n, n) says, ``depth`` (n,) places behind what is cached."""
        ...

    def keep_path(self, path: Tensor, length: int) -> None:
        """Forget all inputs of the last call but those along ``path`` (m,), and what lies beyond the first ``length`` positions."""
        ...


class FrameModel(Protocol):
    """A model with the prompts of B rows."""

    num_codebooks: int
    vocab_size: int
    device: torch.device

    def allowed(self) -> Tensor:
        """Tokens that code 0 and the residual codes may be (2, V), boolean."""
        ...

    def prefill(self) -> tuple[Tensor, Tensor]:
        """Run the prompts: raw logits (B, V) of the first code 0 and talker states (B, D)."""
        ...

    def advance(self, rows: Tensor | None, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Run the talker on finished frames ``codes`` (b, G) of ``rows``, ``None`` for all: logits (b, V), states (b, D)."""
        ...

    def inner_inputs(self, states: Tensor | None, codes: Tensor, first: int) -> Tensor:
        """Inputs of the predictor (b, n, *): ``states`` (b, D) if given, then ``codes`` (b, m) of books ``first``, ..."""
        ...

    def inner(self, states: Tensor, codes: Tensor) -> Tensor:
        """Hidden states (b, n + 1, E) of the predictor for ``states`` (b, D) and ``codes`` (b, n), without a cache."""
        ...

    def head(self, hidden: Tensor, books: Tensor) -> Tensor:
        """Raw float32 logits (b, n, V) of the codes of ``books`` (n,) or (b, n) for ``hidden`` (b, n, E)."""
        ...

    def start_state(self, states: Tensor) -> Tensor:
        """Talker states (b, D) as the predictor reads them, on the scale of its outputs (b, E)."""
        ...

    def code_table(self) -> Tensor:
        """Embeddings (G, K, E) of the codes as the predictor reads them."""
        ...

    def open_inner(self) -> InnerSession:
        """A fresh memory of one frame of one row."""
        ...

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows``."""
        ...

    @property
    def network(self) -> Any:
        """The network whose weights drafters read."""
        ...


@runtime_checkable
class BranchingModel(Protocol):
    """What a :class:`FrameModel` has besides if the memories that it opens are :class:`BranchingSession`."""

    def level_inputs(self, states: Tensor | None, codes: Tensor, first: int, sizes: Sequence[int]) -> Tensor:
        """As ``inner_inputs``, but ``codes`` (1, n) are ``sizes[0]`` codes of book ``first``, ``sizes[1]`` of the next, ..."""
        ...

    def level_logits(self, hidden: Tensor, first: int, sizes: Sequence[int]) -> Tensor:
        """As ``head`` for ``hidden`` (1, n, E), the first ``sizes[0]`` of which draw codes of book ``first``, and so on."""
        ...
