"""What the decoding loop needs of a model. The adapter behind it owns caches, positions, masks and guidance branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.verify import Verdict


@dataclass
class TargetOutput:
    """Raw float32 ``logits`` (B, N, V), guidance merged, and ``hidden`` states (G * B, N, D) or ``None``.

    Hidden states are those of every guidance branch, branch after branch; after a prefill they are those of all prompt
    slots that it ran, while the logits are of the last one.
    """

    logits: Tensor
    hidden: Tensor | None = None


class Target(Protocol):
    """One decoding session of a target model over B rows."""

    vocab_size: int

    def prefill(self, draft: Draft | None = None) -> TargetOutput:
        """Run the prompts; the logits (B, 1, V) are of the first new token.

        With a ``draft``, a chain whose root is each prompt's last token, its nodes follow the prompts in the same
        forward and the logits are (B, N, V), as of :meth:`verify`; :meth:`commit` comes next.
        """
        ...

    def verify(self, draft: Draft, longest: int) -> TargetOutput:
        """Run the N nodes of ``draft`` in one forward; row n of the logits follows the path to node n.

        ``longest`` is the number of new tokens of the longest row, known on the host.
        """
        ...

    def commit(self, verdict: Verdict, num_kept: Tensor) -> None:
        """Keep the cached root and accepted nodes, ``num_kept`` (B,) of them, and drop the rest of the draft."""
        ...

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows``, in that order."""
        ...


class DraftTarget(Target, Protocol):
    """A session of a draft model, which also takes back what it committed to itself."""

    device: torch.device

    def rollback(self, count: Tensor) -> None:
        """Forget the last ``count`` (B,) committed tokens of each row."""
        ...
