"""Which token has which code of the codebook; structural tokens have none that may be relaxed.

Symbols: K codes, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.acceptance.base import TokenVectors


class CodeLookup:
    """Tokens to codes and back.

    Args:
        vectors: Vectors behind the tokens, and what is structural.
        device: Where to look up.

    Attributes:
        tokens: Token of each code (K,).
        relaxable: Whether each code may be relaxed (K,).
        plain: Whether code i is token i and all codes may be relaxed.
    """

    def __init__(self, vectors: TokenVectors, device: torch.device) -> None:
        size = len(vectors.vectors)
        tokens = torch.arange(size) if vectors.tokens is None else vectors.tokens.cpu()
        relaxable = ~torch.isin(tokens, torch.tensor(sorted(vectors.structural), dtype=tokens.dtype))
        code_of = torch.full((int(tokens.max()) + 2,), -1)  # the last entry is for all higher tokens
        code_of[tokens[relaxable]] = torch.arange(size)[relaxable]
        self.tokens, self.relaxable, self._code_of = (part.to(device) for part in (tokens, relaxable, code_of))
        self.plain = vectors.tokens is None and not vectors.structural

    def code(self, tokens: Tensor) -> Tensor:
        """Code of each of ``tokens``, -1 for one that must not be relaxed."""
        return self._code_of[tokens.clamp_max(len(self._code_of) - 1)]

    def by_code(self, law: Tensor) -> Tensor:
        """Probabilities of the codes (..., K) under ``law`` (..., V), 0 for those that must not be relaxed."""
        if self.plain and law.shape[-1] == len(self.tokens):
            return law
        return law[..., self.tokens] * self.relaxable
