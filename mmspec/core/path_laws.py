"""Laws that depend on the tokens before: penalties of repetition, fixed texts.

Such a law changes the target's logits after every node by the tokens on the node's own path, prompt and output before it
included. Plain and speculative decoding read the same changed logits, so every rule stays as exact as it is without.

Symbols: B rows, N nodes, H tokens of prompt and output of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.target import Target, TargetOutput
from mmspec.core.verify import Verdict


class PathLaw(Protocol):
    """What changes the logits of a row; it remembers the committed tokens of its rows."""

    def open(self, prompts: Sequence[Sequence[int]]) -> PathLawSession:
        """A session over rows with these prompts."""
        ...


class PathLawSession(Protocol):
    """One decoding session of a law."""

    def change(self, logits: Tensor, draft: Draft | None) -> Tensor:
        """The logits (B, N, V) after the nodes of ``draft``; ``None`` stands for the prompt alone, with N = 1."""
        ...

    def commit(self, tokens: Sequence[Sequence[int]]) -> None:
        """Remember the root and the accepted nodes of each row."""
        ...

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep the rows listed in ``rows``."""
        ...


class ConditionedTarget:
    """A target whose logits are changed by laws, in their order. Costs a host synchronisation a round.

    Args:
        target: What decodes.
        laws: Sessions of the laws, over the same rows.
    """

    def __init__(self, target: Target, laws: Sequence[PathLawSession]) -> None:
        self.target, self.laws, self.vocab_size = target, list(laws), target.vocab_size
        self._roots: list[int] = []

    def prefill(self, draft: Draft | None = None) -> TargetOutput:
        if draft is not None:
            raise TypeError("A draft in the prefill does not go with laws of paths.")
        return self._changed(self.target.prefill(), None)

    def verify(self, draft: Draft, longest: int) -> TargetOutput:
        self._roots = draft.tokens[:, 0].tolist()
        return self._changed(self.target.verify(draft, longest), draft)

    def _changed(self, output: TargetOutput, draft: Draft | None) -> TargetOutput:
        logits = output.logits
        for law in self.laws:
            logits = law.change(logits, draft)
        return replace(output, logits=logits)

    def commit(self, verdict: Verdict, num_kept: Tensor) -> None:
        self.target.commit(verdict, num_kept)
        rows = zip(self._roots, verdict.tokens.tolist(), num_kept.tolist(), strict=True)
        kept = [[root, *tokens[: count - 1]] for root, tokens, count in rows]
        for law in self.laws:
            law.commit(kept)

    def select_rows(self, rows: Tensor) -> None:
        self.target.select_rows(rows)
        for law in self.laws:
            law.select_rows(rows.tolist())


def path_tokens(draft: Draft) -> Tensor:
    """Tokens from the root to each node (B, N, N), the root in the place of what is not on the path."""
    tokens = draft.tokens[:, None].expand(-1, draft.num_nodes, -1)
    return torch.where(draft.ancestors, tokens, draft.tokens[:, :1, None])


class History:
    """Prompt and committed output of each row, but for its newest token."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.rows = [list(prompt) for prompt in prompts]

    def commit(self, tokens: Sequence[Sequence[int]]) -> None:
        """Remember the root and the accepted nodes of each row."""
        for row, new in zip(self.rows, tokens, strict=True):
            row.extend(new)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep the rows listed in ``rows``."""
        self.rows = [self.rows[row] for row in rows]

    def padded(self, device: torch.device) -> Tensor:
        """The rows (B, H), short ones filled with their own first token."""
        longest = max(map(len, self.rows))
        return torch.tensor([row + row[:1] * (longest - len(row)) for row in self.rows], device=device)


class RepetitionPenalty:
    """Make tokens less likely that prompt or output hold already (Keskar et al., 2019, "CTRL").

    Args:
        penalty: Positive logits are divided by it, negative ones multiplied; 1 changes nothing.

    Raises:
        ValueError: If it is not positive.
    """

    def __init__(self, penalty: float) -> None:
        if not penalty > 0:
            raise ValueError(f"`repetition_penalty` must be positive, got {penalty}.")
        self.penalty = penalty

    def open(self, prompts: Sequence[Sequence[int]]) -> PathLawSession:
        return _PenaltySession(self.penalty, prompts)


class _PenaltySession(History):
    def __init__(self, penalty: float, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__(prompts)
        self.penalty = penalty

    def change(self, logits: Tensor, draft: Draft | None) -> Tensor:
        seen = self.padded(logits.device)[:, None].expand(-1, logits.shape[1], -1)
        if draft is not None:
            seen = torch.cat([seen, path_tokens(draft)], dim=-1)
        scores = logits.gather(-1, seen)
        scores = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return logits.scatter(-1, seen, scores)


class NoRepeatNGram:
    """Forbid tokens that would complete an n-gram which prompt and output hold already (Paulus et al., 2018).

    Args:
        size: Length of the n-grams, at least 1.

    Raises:
        ValueError: If it is below 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"`no_repeat_ngram_size` must be at least 1, got {size}.")
        self.size = size

    def open(self, prompts: Sequence[Sequence[int]]) -> PathLawSession:
        return _NGramSession(self.size, prompts)


class _NGramSession(History):
    def __init__(self, size: int, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__(prompts)
        self.size = size

    def change(self, logits: Tensor, draft: Draft | None) -> Tensor:
        banned = torch.zeros(logits.shape, dtype=torch.bool)
        for row, known in enumerate(self.rows):
            for node, path in enumerate([[]] if draft is None else _paths(draft, row)):
                banned[row, node, self._completions([*known, *path])] = True
        return logits.masked_fill(banned.to(logits.device), -torch.inf)

    def _completions(self, tokens: list[int]) -> list[int]:
        """Tokens that followed earlier occurrences of the last ``size - 1`` ones."""
        size = self.size
        if len(tokens) < size:
            return []
        last = tokens[len(tokens) - size + 1 :]
        return [
            tokens[start + size - 1]
            for start in range(len(tokens) - size + 1)
            if tokens[start : start + size - 1] == last
        ]


def _paths(draft: Draft, row: int) -> list[list[int]]:
    """Tokens from the root to each node of a row."""
    paths: list[list[int]] = []
    for node, (token, above) in enumerate(zip(draft.tokens[row].tolist(), draft.parents[row].tolist(), strict=True)):
        paths.append([*paths[above], token] if node else [token])
    return paths
