"""The production formulas, enumerated over all drafts in float64, give the closed forms and the target's exact law."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.block import block_acceptance, block_survival
from mmspec.acceptance.ratio import log_ratio
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import draw
from mmspec.core.verify import residual

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


class Enumerated:
    """All drafts of ``length`` tokens, with the laws of target and draft model along each (one law per prefix)."""

    def __init__(self, p: list[Tensor], q: list[Tensor], length: int) -> None:
        """``p[d]`` and ``q[d]`` are (V ** d, V): the laws after each prefix of d tokens; ``p`` goes one deeper."""
        size = p[0].shape[-1]
        self.p_tables, self.size, self.length = p, size, length
        strings = torch.tensor(list(itertools.product(range(size), repeat=length)))
        number = torch.zeros(len(strings), dtype=torch.long)
        p_rows, q_rows, self.weight = [], [], torch.ones(len(strings), dtype=torch.float64)
        for place in range(length):
            p_rows.append(p[place][number])
            q_rows.append(q[place][number])
            self.weight = self.weight * q_rows[-1].gather(1, strings[:, place : place + 1])[:, 0]
            number = number * size + strings[:, place]
        p_rows.append(p[length][number])
        q_rows.append(torch.zeros_like(p_rows[-1]))
        self.strings, self.p, self.q = strings, torch.stack(p_rows, 1), torch.stack(q_rows, 1)
        root = torch.zeros(len(strings), 1, dtype=torch.long)
        draft = Draft(torch.cat([root, strings], 1), DraftLaw.SAMPLED, log_q=self.q.log())
        self.log_ratios = log_ratio(draft, self.p.log())

    def ratio_outcomes(self) -> tuple[Tensor, Tensor]:
        """Probability of accepting exactly k tokens (n, K + 1), and the law of the token that follows (n, K + 1, V)."""
        accept = self.log_ratios.exp().clamp_max(1)
        reach = torch.cat([torch.ones_like(accept[:, :1]), accept.cumprod(-1)], 1)
        stop = torch.cat([1 - accept, torch.ones_like(accept[:, :1])], 1)
        return reach * stop, residual(self.p, self.q)

    def block_outcomes(self) -> tuple[Tensor, Tensor]:
        lengths = torch.full((len(self.strings),), self.length)
        h, weights = block_acceptance(block_survival(self.log_ratios), self.p, self.q, lengths)
        h[:, 0] = 1
        later_fail = torch.cat([(1 - h[:, 1:]).flip(1).cumprod(1).flip(1), torch.ones_like(h[:, :1])], 1)
        return h * later_fail, weights

    def expected_accepted(self, outcomes: tuple[Tensor, Tensor]) -> float:
        return float((self.weight[:, None] * outcomes[0] * torch.arange(self.length + 1)).sum())

    def law(self, outcomes: tuple[Tensor, Tensor]) -> Tensor:
        """Law of the first ``length + 1`` tokens when the committed run is continued by plain decoding."""
        probability, weights = outcomes
        next_law = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros(self.size ** (self.length + 1), dtype=torch.float64)
        for row, string in enumerate(self.strings.tolist()):
            for accepted in range(self.length + 1):
                mass = self.weight[row] * probability[row, accepted] * next_law[row, accepted]
                number = 0
                for token in string[:accepted]:
                    number = number * self.size + token
                law = mass  # over the next token, then over everything after it
                for depth in range(accepted + 1, self.length + 1):
                    width = self.size ** (depth - accepted)
                    first = number * width
                    law = (law[:, None] * self.p_tables[depth][first : first + width]).flatten()
                start = number * len(law)
                total[start : start + len(law)] += law
        return total

    def plain_law(self) -> Tensor:
        law = self.p_tables[0][0]
        for depth in range(1, self.length + 1):
            law = (law[:, None] * self.p_tables[depth]).flatten()
        return law


def independent(p: Tensor, q: Tensor, length: int) -> Enumerated:
    """The same pair of laws at every step."""
    size = len(p)
    return Enumerated(
        [p.expand(size**d, -1) for d in range(length + 1)], [q.expand(size**d, -1) for d in range(length)], length
    )


def test_gumbel_coupling_matches_as_often_as_its_closed_form() -> None:
    closed = sum(1 / sum(max(P[y] / P[x], Q[y] / Q[x]) for y in range(3)) for x in range(3))
    assert float(closed) == pytest.approx(0.6935, abs=5e-5)
    count = 200_000
    gumbel = RowNoise(torch.arange(count), 3).gumbel(Stream.TARGET, torch.zeros(count, 1, dtype=torch.long))[:, 0]
    measured = (draw(P.log().float(), gumbel) == draw(Q.log().float(), gumbel)).float().mean()
    assert abs(float(measured) - float(closed)) < 5 * (0.25 / count) ** 0.5


@pytest.mark.parametrize(("length", "golden"), [(1, 0.7), (2, 1.19), (3, 1.533), (4, 1.7731)])
def test_ratio_accepts_as_much_as_its_closed_form(length: int, golden: float) -> None:
    space = independent(P, Q, length)
    assert space.expected_accepted(space.ratio_outcomes()) == pytest.approx(golden, abs=1e-6)


@pytest.mark.parametrize(("length", "golden"), [(2, 1.25), (3, 1.72), (4, 2.1141)])
def test_block_accepts_as_much_as_its_golden_values(length: int, golden: float) -> None:
    space = independent(P, Q, length)
    assert space.expected_accepted(space.block_outcomes()) == pytest.approx(golden, abs=5e-5)


def test_block_accepts_eleven_ninths_where_ratio_accepts_ten_ninths() -> None:
    space = independent(torch.tensor([1 / 3, 2 / 3]).double(), torch.tensor([2 / 3, 1 / 3]).double(), 2)
    assert space.expected_accepted(space.block_outcomes()) == pytest.approx(11 / 9, abs=1e-6)
    assert space.expected_accepted(space.ratio_outcomes()) == pytest.approx(10 / 9, abs=1e-6)


def random_laws(count: int, size: int, seed: int, zeros: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch._standard_gamma(torch.full((count, size), 0.7, dtype=torch.float64), generator)
    if zeros:
        weights *= torch.rand(count, size, generator=generator) > 0.3
        weights[:, seed % size] += 0.1
    return weights / weights.sum(-1, keepdim=True)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(2, 3), st.integers(1, 3), st.integers(0, 1 << 20), st.booleans(), st.sampled_from(["ratio", "block"])
)
def test_the_law_is_the_targets_to_rounding(size: int, length: int, seed: int, zeros: bool, rule: str) -> None:
    """Law of committed run plus plain continuation, total variation below 1e-12; zeros and disjoint supports included."""
    p = [random_laws(size**d, size, seed + d, zeros) for d in range(length + 1)]
    q = [random_laws(size**d, size, seed + 97 + d, zeros) for d in range(length)]
    space = Enumerated(p, q, length)
    space.log_ratios = space.log_ratios.nan_to_num(nan=-1e9)  # strings of probability 0
    outcomes = space.ratio_outcomes() if rule == "ratio" else space.block_outcomes()
    assert bool(((outcomes[0] > -1e-12) & (outcomes[0] < 1 + 1e-12)).all())
    deviation = (space.law(outcomes) - space.plain_law()).abs().sum() / 2
    assert float(deviation) < 1e-12


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 1 << 20))
def test_block_never_accepts_fewer_than_ratio(size: int, length: int, seed: int) -> None:
    p, q = random_laws(2, size, seed, zeros=False)
    space = independent(p, q, length)
    ratio = space.expected_accepted(space.ratio_outcomes())
    assert space.expected_accepted(space.block_outcomes()) >= ratio - 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(0, 1 << 20))
def test_a_draft_from_the_targets_own_law_is_always_accepted(size: int, seed: int) -> None:
    [p] = random_laws(1, size, seed, zeros=False)
    space = independent(p, p, 2)
    for outcomes in (space.ratio_outcomes(), space.block_outcomes()):
        torch.testing.assert_close(outcomes[0][:, -1], torch.ones(size**2, dtype=torch.float64))


def test_block_of_ragged_rows_equals_each_length_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    ratios = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    p, q = (torch.rand(6, 5, 3, generator=generator, dtype=torch.float64).softmax(-1) for _ in range(2))
    lengths = torch.tensor([0, 1, 2, 3, 4, 2])
    h, weights = block_acceptance(block_survival(ratios), p, q, lengths)
    for row, length in enumerate(lengths.tolist()):
        cut = slice(row, row + 1), slice(0, length + 1)
        pi = block_survival(ratios[row : row + 1, :length])
        alone_h, alone_weights = block_acceptance(pi, p[cut], q[cut], lengths[row : row + 1])
        torch.testing.assert_close(h[cut], alone_h)
        torch.testing.assert_close(weights[cut], alone_weights)
        assert not h[row, length + 1 :].any()
