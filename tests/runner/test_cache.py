"""SpecCache equals a list of tensors per row under any sequence of forwards, commits and rollbacks (fault 33)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.runner.cache import SpecCache

ROWS, CAPACITY, HEADS, SIZE, LAYERS = 3, 40, 2, 4, 2


def forward(cache: SpecCache, num_nodes: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Write random nodes in every layer: the keys (R, N, H, P) of each; values are their negatives."""
    cache.plan(num_nodes, int(cache.lengths.max()) + num_nodes)
    written = []
    for layer in range(LAYERS):
        key = torch.randn(cache.num_rows, HEADS, num_nodes, SIZE, generator=generator)
        keys, values = cache.update(key, -key, layer)
        assert keys.shape == (cache.num_rows, HEADS, cache.visible, SIZE)
        assert torch.equal(values, -keys)
        written.append(key.transpose(1, 2))
    return written


def check(cache: SpecCache, reference: list[list[list[torch.Tensor]]]) -> None:
    for row, layers in enumerate(reference):
        for layer, entries in enumerate(layers):
            assert int(cache.lengths[row]) == len(entries)
            for slot, entry in enumerate(entries):
                assert torch.equal(cache.keys[layer][row, slot], entry.flatten().view(HEADS, SIZE))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 1 << 30))
def test_equals_a_list_of_tensors(data: st.DataObject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    cache = SpecCache(ROWS, CAPACITY, torch.device("cpu"))
    reference: list[list[list[torch.Tensor]]] = [[[] for _ in range(LAYERS)] for _ in range(ROWS)]
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["chain", "tree", "rollback", "select"]))
        if action == "rollback":
            counts = [data.draw(st.integers(0, 6)) for _ in reference]
            cache.rollback(torch.tensor(counts))
            for layers, count in zip(reference, counts, strict=True):
                for entries in layers:
                    del entries[max(0, len(entries) - count) :]
        elif action == "select":
            rows = data.draw(st.permutations(range(len(reference))).map(lambda p: p[: max(1, len(p) - 1)]))
            if not cache.keys:
                continue
            cache.select_rows(torch.tensor(rows))
            reference = [[list(entries) for entries in reference[row]] for row in rows]
        else:
            num_nodes = data.draw(st.integers(1, 5))
            if int(cache.lengths.max()) + num_nodes > CAPACITY:
                continue
            written = forward(cache, num_nodes, generator)
            path = None
            kept = [data.draw(st.integers(0, num_nodes)) for _ in reference]
            walks = [list(range(num_nodes)) for _ in reference]
            if action == "tree":
                for row in range(len(reference)):
                    picks = sorted(data.draw(st.sets(st.integers(0, num_nodes - 1), min_size=1)) | {0})
                    walks[row] = picks + [picks[-1]] * (num_nodes - len(picks))
                    kept[row] = min(kept[row], len(picks))
                path = torch.tensor(walks)
            cache.commit(torch.tensor(kept), path)
            for row, layers in enumerate(reference):
                for layer, entries in enumerate(layers):
                    entries.extend(written[layer][row, node] for node in walks[row][: kept[row]])
        check(cache, reference)


def filled(length: int = 6) -> SpecCache:
    cache = SpecCache(2, CAPACITY, torch.device("cpu"))
    forward(cache, length, torch.Generator().manual_seed(0))
    cache.commit(torch.full((2,), length))
    return cache


@pytest.mark.parametrize(("count", "left"), [(0, 6), (1, 5), (6, 0), (11, 0)])
def test_rollback_at_its_edges(count: int, left: int) -> None:
    cache = filled()
    before = cache.keys[0][:, :left].clone()
    cache.rollback(count)
    assert cache.lengths.tolist() == [left, left]
    assert torch.equal(cache.keys[0][:, :left], before)


def test_negative_rollback_is_refused() -> None:
    cache = filled()
    with pytest.raises(ValueError, match="-1"):
        cache.rollback(-1)
    with pytest.raises(ValueError, match="negative"):
        cache.rollback(torch.tensor([1, -2]))
    assert cache.lengths.tolist() == [6, 6]


def test_rows_roll_back_by_their_own_counts() -> None:
    cache = filled()
    cache.rollback(torch.tensor([2, 5]))
    assert cache.lengths.tolist() == [4, 1]


def test_more_slots_than_there_are_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"40.*41"):
        filled().plan(3, 41)


def test_unwritten_slots_hold_zeros() -> None:
    assert not filled().keys[0][:, 6:].any()
