"""Noise is a pure function of (row seed, stream, keys), uniform, and independent of batch, order and table."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.core.noise import RowNoise, Stream, hash_keys, to_gumbel, to_uniform


def test_uniforms_fill_the_open_interval_evenly() -> None:
    uniform = to_uniform(hash_keys(torch.arange(1 << 18), 3))
    assert uniform.min() > 0
    assert uniform.max() < 1
    counts = torch.histc(uniform, bins=64, min=0, max=1)
    expected = len(uniform) / 64
    z = (float(((counts - expected) ** 2 / expected).sum()) - 63) / (2 * 63) ** 0.5
    assert abs(z) < 5


def test_extreme_words_stay_inside_the_open_interval() -> None:
    words = torch.tensor([0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1])
    uniform = to_uniform(words)
    assert bool(((uniform > 0) & (uniform < 1)).all())
    assert bool(to_gumbel(words).isfinite().all())


@pytest.mark.parametrize("step", ["seed", "stream", "key", "token"])
def test_neighbouring_keys_are_uncorrelated(step: str) -> None:
    base = torch.arange(1 << 16)
    words = {
        "seed": (hash_keys(base, 1, 5, 7), hash_keys(base + 1, 1, 5, 7)),
        "stream": (hash_keys(base, 1, 5, 7), hash_keys(base, 2, 5, 7)),
        "key": (hash_keys(base, 1, 5, 7), hash_keys(base, 1, 6, 7)),
        "token": (hash_keys(base, 1, 5, 7), hash_keys(base, 1, 5, 8)),
    }[step]
    first, second = (to_uniform(w) - 0.5 for w in words)
    correlation = float((first * second).mean() * 12)
    assert abs(correlation) < 5 / len(base) ** 0.5


def test_key_words_do_not_commute() -> None:
    seeds = torch.arange(100)
    assert not torch.equal(hash_keys(seeds, 3, 8), hash_keys(seeds, 8, 3))


def test_negative_and_large_seeds_are_as_good_as_small_ones() -> None:
    seeds = torch.tensor([-1, -(1 << 63), (1 << 63) - 1, 0, 1])
    noise = RowNoise(seeds, 64).gumbel(Stream.TARGET, torch.zeros(5, 1, dtype=torch.long))
    assert bool(noise.isfinite().all())
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 5


def test_gumbel_noise_draws_from_the_law() -> None:
    law = torch.tensor([0.5, 0.3, 0.15, 0.05])
    noise = RowNoise(torch.arange(100_000), 4).gumbel(Stream.TARGET, torch.zeros(100_000, 1, dtype=torch.long))
    counts = torch.bincount((law.log() + noise[:, 0]).argmax(-1), minlength=4)
    expected = law * 100_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 21  # 3 degrees of freedom, p = 1e-4


def test_streams_give_unrelated_noise() -> None:
    noise, keys = RowNoise(torch.arange(4), 8), torch.zeros(4, 1, dtype=torch.long)
    rows = {tuple(noise.gumbel(stream, keys).flatten().tolist()) for stream in Stream}
    assert len(rows) == len(Stream)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(-(1 << 63), (1 << 63) - 1), others=st.lists(st.integers(0, 1 << 62), max_size=4), data=st.data()
)
def test_a_rows_noise_depends_on_its_own_seed_only(seed: int, others: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(others)))
    batch = torch.tensor([*others[:place], seed, *others[place:]])
    keys = torch.arange(3).expand(len(batch), -1)
    alone = RowNoise(torch.tensor([seed]), 5).gumbel(Stream.DRAFT, keys[:1])
    assert torch.equal(RowNoise(batch, 5).gumbel(Stream.DRAFT, keys)[place], alone[0])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 200), min_size=3, max_size=3), st.integers(1, 9)), min_size=1, max_size=6
    )
)
def test_rolling_table_equals_direct_hashing_for_ragged_starts(reads: list[tuple[list[int], int]]) -> None:
    seeds = torch.tensor([11, -5, 7])
    noise = RowNoise(seeds, 6)
    for starts, count in reads:
        first = torch.tensor(starts)
        table = noise.target(first, count, min(starts), max(starts))
        direct = RowNoise(seeds, 6).gumbel(Stream.TARGET, first[:, None] + torch.arange(count))
        assert torch.equal(table, direct)


def test_rolling_table_forgets_the_past() -> None:
    noise = RowNoise(torch.arange(2), 4)
    for start in range(0, 2000, 10):
        noise.target(torch.tensor([start, start + 3]), 8, start, start + 3)
    assert noise._table.shape[1] < 4 * RowNoise.chunk


def test_select_rows_keeps_each_rows_noise() -> None:
    seeds = torch.tensor([3, 1, 4, 1, 5])
    noise, rows = RowNoise(seeds, 6), torch.tensor([4, 0, 2])
    noise.target(torch.full((5,), 2), 3, 2, 2)
    noise.select_rows(rows)
    first = torch.tensor([2, 9, 4])
    expected = RowNoise(seeds[rows], 6).gumbel(Stream.TARGET, first[:, None] + torch.arange(5))
    assert torch.equal(noise.target(first, 5, 2, 9), expected)


@pytest.mark.gpu
def test_noise_is_the_same_on_the_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    seeds, keys = torch.arange(7), torch.arange(5).expand(7, -1)
    assert torch.equal(hash_keys(seeds.cuda()[:, None], 1, keys.cuda()).cpu(), hash_keys(seeds[:, None], 1, keys))
    there = RowNoise(seeds.cuda(), 9).gumbel(Stream.TARGET, keys.cuda()).cpu()
    torch.testing.assert_close(there, RowNoise(seeds, 9).gumbel(Stream.TARGET, keys), atol=1e-6, rtol=1e-6)
