"""How the codes of a frame are drawn: code 0 in one way, the residual codes in another, or each in its own.

Symbols: B rows, N nodes, V tokens, G codes a frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.sampling import SamplingParams, process


@dataclass(frozen=True)
class CodeSampling:
    """Sampling by codebook.

    Args:
        first: Of code 0 and the end of speech.
        rest: Of the residual codes: one for all of them, or a sequence with one for each.
        repetition_penalty: Above 1, makes code 0 less likely to be one that the row has had as code 0; 1 changes nothing.

    Raises:
        ValueError: If the penalty is not positive and finite.
    """

    first: SamplingParams = field(default_factory=SamplingParams)
    rest: SamplingParams | Sequence[SamplingParams] = field(default_factory=SamplingParams)
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"`repetition_penalty` must be positive and finite, got {self.repetition_penalty}.")

    @classmethod
    def of_settings(cls, first: Mapping[str, Any], rest: Mapping[str, Any]) -> CodeSampling:
        """From the settings of code 0, with its ``repetition_penalty`` if any, and of the residual codes.

        Raises:
            TypeError, ValueError: For a value out of range, or an unknown name.
        """
        settings = dict(first)
        penalty = settings.pop("repetition_penalty", 1.0)
        return cls(SamplingParams(**settings), SamplingParams(**rest), penalty)

    def of_books(self, num_codebooks: int) -> tuple[SamplingParams, ...]:
        """The G settings.

        Raises:
            ValueError: If there are settings for another number of books.
        """
        if isinstance(self.rest, SamplingParams):
            return (self.first, *[self.rest] * (num_codebooks - 1))
        if len(self.rest) != num_codebooks - 1:
            raise ValueError(
                f"`rest` has {len(self.rest)} entries; this model draws {num_codebooks - 1} residual codes a frame."
            )
        return (self.first, *self.rest)


class CodeLaw:
    """The law that codes are drawn from, as log-weights that later draws take as they are.

    Args:
        books: Sampling of each of the G codes.
        allowed: Tokens that code 0 and the residual codes may be, (2, V), boolean.
        repetition_penalty: See :class:`CodeSampling`.
    """

    def __init__(self, books: Sequence[SamplingParams], allowed: Tensor, repetition_penalty: float = 1.0) -> None:
        self.books, self.repetition_penalty = tuple(books), repetition_penalty
        self.forbidden = ~allowed
        self._uniform = len(set(self.books[1:])) == 1

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.forbidden.shape[-1]

    def history(self, rows: int) -> Tensor | None:
        """Which tokens each of ``rows`` rows has had as code 0, none so far (rows, V); ``None`` where the law forgets them."""
        if self.repetition_penalty == 1:
            return None
        return torch.zeros(rows, self.vocab_size, dtype=torch.bool, device=self.forbidden.device)

    def first(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Log-weights (..., V) of code 0 from raw ``logits`` (..., V) in rows that have ``seen`` (..., V) tokens before.

        Logits of seen tokens are divided by the penalty if positive, else multiplied (Keskar et al., 2019, "CTRL", as
        transformers has it).
        """
        if seen is not None:
            lowered = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, lowered, logits)
        return process(logits.masked_fill(self.forbidden[0], -torch.inf), self.books[0])

    def rest(self, logits: Tensor, books: Tensor) -> Tensor:
        """Log-weights (..., V) of the residual codes of ``books`` (...), at least 1, from raw ``logits`` (..., V)."""
        scores = logits.masked_fill(self.forbidden[1], -torch.inf)
        if self._uniform:
            return process(scores, self.books[1])
        drawn = torch.empty_like(scores)
        for params in set(self.books[1:]):
            mine = torch.tensor([other == params for other in self.books], device=books.device)[books]
            drawn = torch.where(mine[..., None], process(scores, params), drawn)
        return drawn

    def guesses(self, logits: Tensor, books: Tensor, gumbel: Tensor, count: int = 1) -> Tensor:
        """The ``count`` best draws (..., count) of residual codes from raw ``logits`` (..., V) with the noise ``gumbel`` (..., V), their laws not cut.

        Nearly always the first is the law's own draw, and cheaper; right for drafts, which a rule judges under the law itself.
        """
        if self._uniform:
            scores = torch.add(logits, gumbel, alpha=self.books[1].temperature)
        else:
            scores = self.rest(logits, books) + gumbel
        return scores.max(-1, keepdim=True).indices if count == 1 else scores.topk(count, dim=-1).indices
