"""Certificates: golden values, agreement with brute force, and no rejection inside a certified radius."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.certificates import (
    certified_share,
    coverage_radius,
    rejection_radius,
    reverse_radius,
    sequence_bound,
    strict_radius,
)
from tests.oracles.laws import random_laws

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def all_but_largest(p: Tensor) -> Tensor:
    return torch.arange(p.shape[-1]) != p.argmax(-1, keepdim=True)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)


def test_golden_values() -> None:
    assert float(strict_radius(P)) == pytest.approx(0.025267, abs=1e-6)
    assert float(rejection_radius(P, all_but_largest(P))) == pytest.approx(0.025267, abs=1e-6)
    assert float(reverse_radius(P)) == pytest.approx(0.025732, abs=1e-6)
    assert float((P[0] - P[1]) ** 2 / (2 * (P[0] + P[1]))) == pytest.approx(0.025)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 1 << 20))
def test_the_strict_radius_is_the_general_one(size: int, seed: int) -> None:
    [p] = random_laws(1, size, seed)
    strict = float(strict_radius(p))
    assert float(rejection_radius(p, all_but_largest(p))) == pytest.approx(strict, abs=1e-9)
    top = p.topk(2).values
    assert strict >= float((top[0] - top[1]) ** 2 / (2 * top.sum())) - 1e-12
    assert float(coverage_radius(p, 1)) == pytest.approx(strict, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_brute_force_finds_nothing_closer(seed: int) -> None:
    """Among many laws on the simplex, those whose arg-max is rejected are no closer than the radius, and nearly reach it."""
    [p] = random_laws(1, 3, seed, flat=2.0)
    rejected = p < 0.6 * p.max()
    if not bool(rejected.any()):
        rejected = p <= p.min()
    radius = float(rejection_radius(p, rejected))
    steps = torch.arange(1, 300, dtype=torch.float64) / 300
    grid = torch.cartesian_prod(steps, steps)
    grid = grid[grid.sum(-1) < 1]
    q = torch.cat([grid, 1 - grid.sum(-1, keepdim=True)], dim=-1)
    # ties count: at the border the rejected token is as likely as the best
    wins = (q >= q.amax(-1, keepdim=True) - 1e-9) & rejected
    closest = float(kl(p, q)[wins.any(-1)].min())
    assert radius - 1e-9 <= closest <= radius + 0.02


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 6), st.integers(0, 1 << 20), st.floats(0.2, 1.0))
def test_inside_the_radius_nothing_is_rejected(size: int, seed: int, factor: float) -> None:
    p = random_laws(1, size, seed)[0]
    near = 0.7 * p + 0.3 * random_laws(200, size, seed + 1)
    rejected = p < factor * p.max()
    certified = kl(p, near) < rejection_radius(p, rejected)
    assert not rejected[near.argmax(-1)][certified].any()
    share = certified_share(p.expand(200, -1), near, rejected.expand(200, -1))
    assert float(share) == pytest.approx(float(certified.double().mean()))


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 6), st.integers(0, 1 << 20), st.integers(1, 3))
def test_inside_the_coverage_radius_the_arg_max_stays_in_the_top(size: int, seed: int, count: int) -> None:
    p = random_laws(1, size, seed)[0]
    near = 0.6 * p + 0.4 * random_laws(300, size, seed + 1)
    covered = (near.topk(count, dim=-1).indices == p.argmax()).any(-1)
    assert bool(covered[kl(p, near) < coverage_radius(p, count)].all())


def test_without_a_rejected_token_there_is_no_limit() -> None:
    assert float(rejection_radius(P, torch.zeros(3, dtype=torch.bool))) == float("inf")
    assert float(coverage_radius(P, 3)) == float("inf")


def test_steps_add_up_to_the_bound_of_a_sequence() -> None:
    assert sequence_bound(0.0, 100) == 0.0
    assert sequence_bound(0.1, 2) == pytest.approx(0.19)
    assert sequence_bound(1.0, 1) == 1.0
    with pytest.raises(ValueError, match="`step_tv`"):
        sequence_bound(1.5, 2)
    with pytest.raises(ValueError, match="`length`"):
        sequence_bound(0.5, -1)
