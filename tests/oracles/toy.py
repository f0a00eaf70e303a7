"""Toy targets whose law is known exactly, and the statistics to compare a sampler with it.

A table target has one random law per prefix, so the law of every string can be enumerated. It implements the same
``Target`` protocol as a real model and keeps one prefix per row.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.grammar import Grammar
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams, process
from mmspec.core.target import TargetOutput
from mmspec.core.verify import Verdict


def random_table(vocab_size: int, length: int, seed: int = 0) -> Tensor:
    """Logits of every prefix shorter than ``length`` (number of prefixes, V); a prefix's number is :func:`prefix_index`."""
    prefixes = sum(vocab_size**n for n in range(length))
    generator = torch.Generator().manual_seed(seed)
    weights = torch._standard_gamma(torch.full((prefixes, vocab_size), 0.7), generator)
    return weights.clamp_min(1e-3).log()


class TableTarget:
    """Target over ``num_rows`` rows with a law per prefix, optionally guided by a second, unconditional table.

    A ``grammar`` masks the guided logits, as the runner does.
    """

    device = torch.device("cpu")

    def __init__(
        self, table: Tensor, length: int, num_rows: int, other: Tensor | None = None, scale: float = 1.0,
        grammar: Grammar | None = None,
    ) -> None:  # fmt: skip
        self.table, self.other, self.length, self.grammar = table, other, length, grammar
        self.guidance = Guidance(scale)
        self.vocab_size = table.shape[1]
        self.prefix = torch.zeros(num_rows, length, dtype=torch.long)
        self.count = torch.zeros(num_rows, dtype=torch.long)  # committed tokens but the newest
        self.widths: list[int] = []

    def logits(self, index: Tensor, depth: Tensor) -> Tensor:
        """Logits after the prefixes number ``index`` of ``depth`` tokens; flat beyond the last token."""
        offset = torch.tensor([sum(self.vocab_size**n for n in range(d)) for d in range(self.length + 1)])
        inside = depth < self.length
        place = torch.where(inside, offset[depth.clamp_max(self.length)] + index, 0)
        merged = self.table[place]
        if self.other is not None:
            merged = self.guidance.merge(torch.cat([merged, self.other[place]]), depth)
        merged = torch.where(inside[..., None], merged, torch.zeros(()))
        return merged if self.grammar is None else self.grammar.mask(merged, depth)

    def prefill(self, draft: Draft | None = None) -> TargetOutput:
        zeros = torch.zeros(len(self.prefix), 1, dtype=torch.long)
        if draft is None:
            return TargetOutput(self.logits(zeros, zeros))
        # the root stands for the prompt: nodes behind it are the first tokens
        self.count = self.count - 1
        self.draft = draft
        number, numbers = zeros[:, 0], []
        for place in range(draft.num_nodes):
            number = number * self.vocab_size + draft.tokens[:, place] if place else number
            numbers.append(number)
        return TargetOutput(self.logits(torch.stack(numbers, 1), draft.depth))

    def verify(self, draft: Draft, longest: int) -> TargetOutput:
        self.widths.append(draft.num_nodes)
        self.draft = draft
        base = self._number(self.prefix, self.count)
        # number of the prefix that ends in each node: its ancestors' tokens as digits, behind the committed ones
        power = (draft.depth[:, :, None] - draft.depth[:, None, :]).clamp_min(0)
        inside = torch.where(draft.ancestors, draft.tokens[:, None, :] * self.vocab_size**power, 0).sum(-1)
        index = base[:, None] * self.vocab_size ** (draft.depth + 1) + inside
        depth = self.count[:, None] + draft.depth + 1
        return TargetOutput(self.logits(index, depth))

    def _number(self, tokens: Tensor, count: Tensor) -> Tensor:
        number = torch.zeros_like(count)
        for place in range(tokens.shape[1]):
            number = torch.where(place < count, number * self.vocab_size + tokens[:, place], number)
        return number

    def commit(self, verdict: Verdict, num_kept: Tensor) -> None:
        path = verdict.path
        if path is None:
            path = torch.arange(self.draft.num_nodes).expand_as(self.draft.tokens)
        for place in range(int(num_kept.max())):
            token = self.draft.tokens.gather(1, path[:, place : place + 1])
            at = self.count + place
            written = self.prefix.scatter(1, at.clamp(0, self.length - 1)[:, None], token)
            self.prefix = torch.where(((place < num_kept) & (at >= 0))[:, None], written, self.prefix)
        self.count = self.count + num_kept

    def select_rows(self, rows: Tensor) -> None:
        self.prefix, self.count = self.prefix[rows], self.count[rows]


def enumerate_law(target: TableTarget, sampling: SamplingParams) -> Tensor:
    """Probability of every string of ``target.length`` tokens (V ** length,), first token most significant."""
    size, length = target.vocab_size, target.length
    strings = torch.tensor(list(itertools.product(range(size), repeat=length)))
    law = torch.ones(len(strings), dtype=torch.float64)
    index = torch.zeros(len(strings), dtype=torch.long)
    for place in range(length):
        depth = torch.full_like(index, place)
        scores = process(target.logits(index[:, None], depth[:, None])[:, 0], sampling).double()
        law *= scores.softmax(-1).gather(1, strings[:, place : place + 1])[:, 0]
        index = index * size + strings[:, place]
    return law


def string_numbers(tokens: Tensor, vocab_size: int) -> Tensor:
    """Number of each string (B,) of ``tokens`` (B, M) in the order of :func:`enumerate_law`."""
    number = torch.zeros(len(tokens), dtype=torch.long)
    for place in range(tokens.shape[1]):
        number = number * vocab_size + tokens[:, place]
    return number


def z_score(observed: Tensor, law: Tensor) -> float:
    """Pearson's chi-square of the string numbers ``observed`` (n,) against ``law``, standardised; |z| < 4 passes.

    Cells with an expectation below 5 are merged into one. A string of probability zero gives infinity.
    """
    counts = torch.bincount(observed, minlength=len(law)).double()
    if bool((counts[law <= 0] > 0).any()):
        return float("inf")
    expected = law * len(observed)
    large = expected >= 5
    counts = torch.cat([counts[large], counts[~large].sum()[None]])
    expected = torch.cat([expected[large], expected[~large].sum()[None]])
    if expected[-1] < 5:
        counts, expected = counts[:-1], expected[:-1]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5
