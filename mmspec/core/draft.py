"""The one structure that every drafter returns: a padded batch of rooted token trees.

Node 0 is the root, the last committed token, whose keys and values are not cached yet. Siblings are in the order in
which they were drawn, and in which rules try them. A Jacobi window, an n-gram copy
or the proposals of a small model are chains; a chain is the tree in which node ``n`` follows node ``n - 1``.

Symbols: B rows, N nodes with the root, V vocabulary, D depth of the deepest node, R most children of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor


class DraftLaw(Enum):
    """How draft tokens were obtained; this decides which acceptance rules are legal."""

    DETERMINISTIC = "deterministic"
    """Chosen (most likely, copied, looked up): no law needs to be known."""
    SAMPLED = "sampled"
    """Chain, each token drawn from ``log_q`` of its parent with noise of this round only."""
    COUPLED = "coupled"
    """As SAMPLED, but the noise (or an earlier token) is shared between rounds, so a token is fresh only by itself."""
    INDEPENDENT = "independent"
    """Tree, the children of a node drawn independently from its ``log_q``; twins are possible."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Tree, the children of a node drawn from its ``log_q`` one after the other, each without those before it."""


@dataclass
class Draft:
    """A batch of draft trees.

    Args:
        tokens: Token ids (B, N); column 0 is the root.
        law: How the tokens were obtained.
        parent: Parent of each node (B, N), ``parent[:, 0] == 0`` and ``parent < node``; ``None`` for a chain.
        valid: Nodes that exist (B, N); ``None`` if all do. A valid node has a valid parent.
        log_q: Normalised log-law of the children of each node (B, N, V); ``None`` where no rule may need it.
        relations: ``ancestors`` and ``depth`` of ``parent``, where many drafts of one shape share them.
    """

    tokens: Tensor
    law: DraftLaw
    parent: Tensor | None = None
    valid: Tensor | None = None
    log_q: Tensor | None = None
    relations: tuple[Tensor, Tensor] | None = None

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    @property
    def is_chain(self) -> bool:
        return self.parent is None

    @cached_property
    def ancestors(self) -> Tensor:
        """Ancestor-or-self relation (B, N, N): entry (b, n, m) says that m lies on the path from the root to n."""
        if self.relations is not None:
            return self.relations[0]
        if self.parent is None:
            return (
                torch.ones(self.num_nodes, self.num_nodes, dtype=torch.bool, device=self.tokens.device)
                .tril()
                .expand(len(self.tokens), -1, -1)
            )
        return ancestors(self.parent)

    @cached_property
    def depth(self) -> Tensor:
        """Distance of each node from the root (B, N)."""
        if self.relations is not None:
            return self.relations[1]
        if self.parent is None:
            return torch.arange(self.num_nodes, device=self.tokens.device).expand_as(self.tokens)
        return self.ancestors.sum(-1) - 1

    @cached_property
    def parents(self) -> Tensor:
        """Parent of each node (B, N), of a chain too; the root is its own."""
        if self.parent is not None:
            return self.parent
        return (torch.arange(self.num_nodes, device=self.tokens.device) - 1).clamp_min(0).expand_as(self.tokens)

    @cached_property
    def children(self) -> Tensor:
        """Valid children of each node in the order of the siblings (B, N, R), -1 where there is none."""
        nodes = torch.arange(self.num_nodes, device=self.tokens.device)
        exists = (nodes > 0).expand_as(self.tokens)
        if self.valid is not None:
            exists = exists & self.valid
        older = (self.parents[:, :, None] == self.parents[:, None, :]) & exists[:, None, :] & (nodes < nodes[:, None])
        rank = older.sum(-1)  # (B, N) number of earlier siblings
        most = int(torch.where(exists, rank + 1, 0).max())
        table = torch.full((*self.tokens.shape, most + 1), -1, device=self.tokens.device)
        # nodes that do not exist write to a column that is cut off
        place = self.parents * (most + 1) + torch.where(exists, rank, most)
        return table.flatten(1).scatter(1, place, nodes.expand_as(place)).view_as(table)[..., :most]


def ancestors(parent: Tensor) -> Tensor:
    """Ancestor-or-self relation (B, N, N) of ``parent`` (B, N), by repeated squaring of the one-step relation."""
    size = parent.shape[1]
    relation = torch.nn.functional.one_hot(parent, size).float() + torch.eye(size, device=parent.device)
    reach = 1
    while reach < size:
        relation = (relation @ relation > 0).float()
        reach *= 2
    return relation > 0
