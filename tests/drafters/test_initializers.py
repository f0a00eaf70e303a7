"""First guesses are the left or upper neighbours on the grid, at every place of it (fault 12), and their laws are true."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import RoundContext
from mmspec.drafters.initializers import INITIALIZERS, Initializer
from mmspec.drafters.jacobi import JacobiDrafter

VOCAB, TOTAL = 50, 30


def context(lengths: list[int], seed: int = 0) -> RoundContext:
    """Rows with ``lengths`` committed tokens, token t of row b being ``(10 b + t) % V``."""
    generated = torch.tensor(lengths)
    place = torch.arange(TOTAL)
    tokens = torch.where(place < generated[:, None], (10 * torch.arange(len(lengths))[:, None] + place) % VOCAB, 0)
    return RoundContext(
        tokens=tokens, generated=generated, rounds=generated, root=tokens.gather(1, generated[:, None] - 1)[:, 0],
        noise=RowNoise(torch.arange(len(lengths)) + seed, VOCAB), sampling=SamplingParams(),
        lowest=min(lengths), highest=max(lengths),
    )  # fmt: skip


def expected_source(kind: str, place: int, known: int, row_length: int | None) -> int:
    """Order index of the token that slot ``place`` copies when the first ``known`` tokens exist, by plain search."""
    if row_length is None:
        return known - 1
    if kind == "copy-left":
        start = place - place % row_length
        if start < known:
            return known - 1  # its row has begun: the last known token of it is the nearest on the left
        place = start  # else: above the start of the row
    while place >= known:
        place -= row_length
    return place if place >= 0 else known - 1


def guess(kind: str, ctx: RoundContext, slots: Tensor, filled: Tensor, count: int, row_length: int | None) -> Tensor:
    return Initializer(kind, VOCAB, row_length, mix=0.0)(ctx, slots, filled, count, None, False)[0]


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(["copy-left", "copy-up"]),
    row_length=st.integers(1, 8),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    count=st.integers(1, 10),
    data=st.data(),
)
def test_copies_are_the_grid_neighbours(
    kind: str, row_length: int, lengths: list[int], count: int, data: st.DataObject
) -> None:
    filled = [data.draw(st.integers(0, count)) for _ in lengths]
    ctx = context(lengths)
    slots = 30 + torch.arange(count).expand(len(lengths), -1)  # open guesses of the window
    copied = guess(kind, ctx, slots, torch.tensor(filled), count, row_length)
    for row, length in enumerate(lengths):
        for slot in range(filled[row], count):
            source = expected_source(kind, length + slot, length + filled[row], row_length)
            wanted = ctx.tokens[row, source] if source < length else slots[row, source - length]
            assert int(copied[row, slot]) == int(wanted), (row, slot, source)


def test_copy_left_repeats_the_last_token_to_the_end_of_the_row_and_then_looks_up() -> None:
    """Grid of 5 columns, 7 tokens known: slots 7, 8, 9 repeat token 6; the rows that begin at 10 and 15 copy token 5."""
    empty = torch.zeros(1, 10, dtype=torch.long)
    copied = guess("copy-left", context([7]), empty, torch.zeros(1, dtype=torch.long), 10, 5)
    assert copied[0].tolist() == [6, 6, 6, 5, 5, 5, 5, 5, 5, 5]


def test_copy_up_repeats_the_last_known_rows() -> None:
    empty = torch.zeros(1, 8, dtype=torch.long)
    copied = guess("copy-up", context([7]), empty, torch.zeros(1, dtype=torch.long), 8, 5)
    assert copied[0].tolist() == [2, 3, 4, 5, 6, 2, 3, 4]


def test_nothing_above_the_first_row_means_the_last_known_token() -> None:
    empty = torch.zeros(1, 3, dtype=torch.long)
    copied = guess("copy-up", context([2]), empty, torch.zeros(1, dtype=torch.long), 3, 6)
    assert copied[0].tolist() == [1, 1, 1]


def test_without_a_grid_copies_repeat_the_last_token() -> None:
    empty = torch.zeros(1, 4, dtype=torch.long)
    copied = guess("copy-left", context([9]), empty, torch.zeros(1, dtype=torch.long), 4, None)
    assert copied[0].tolist() == [8] * 4


def test_copy_up_without_a_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="grid"):
        Initializer("copy-up", VOCAB, None, 0.3)


@pytest.mark.parametrize("name", ["repeat", "Copy-Left", "", "random"])
def test_unknown_names_raise_with_the_legal_ones(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        JacobiDrafter(initializer=name)
    assert all(legal in str(caught.value) for legal in INITIALIZERS)


@pytest.mark.parametrize("kind", INITIALIZERS)
def test_stated_law_is_normalised_and_gives_the_guess_some_weight(kind: str) -> None:
    ctx = context([4, 9, 1])
    scores = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)) if kind == "law" else None
    slots, filled = torch.zeros(3, 6, dtype=torch.long), torch.tensor([0, 2, 5])
    guesses, log_q = Initializer(kind, VOCAB, 5, 0.3)(ctx, slots, filled, 6, scores, True)
    assert log_q is not None
    torch.testing.assert_close(log_q.exp().sum(-1), torch.ones(3, 6))
    assert bool((log_q.gather(-1, guesses[..., None]) > -20).all())


@pytest.mark.parametrize("kind", ["mix", "uniform", "law"])
def test_guesses_follow_their_stated_law(kind: str) -> None:
    """40 000 rows of different seeds: the frequencies of one slot's guess against its law."""
    rows, size = 40_000, 5
    ctx = context([3], 0)
    ctx = RoundContext(
        tokens=ctx.tokens.remainder(size).expand(rows, -1), generated=torch.full((rows,), 3), rounds=torch.zeros(rows).long(),
        root=torch.full((rows,), 2), noise=RowNoise(torch.arange(rows), size), sampling=SamplingParams(), lowest=3, highest=3,
    )  # fmt: skip
    scores = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]).log().expand(rows, -1) if kind == "law" else None
    slots, filled = torch.zeros(rows, 2, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    guesses, log_q = Initializer(kind, size, None, 0.3)(ctx, slots, filled, 2, scores, True)
    assert log_q is not None
    for slot in range(2):
        expected = log_q[0, slot].exp() * rows
        counts = torch.bincount(guesses[:, slot], minlength=size)
        assert float(((counts - expected) ** 2 / expected).sum()) < 24  # 4 degrees of freedom, p = 1e-4


def test_a_mix_guess_does_not_change_when_it_is_made_again() -> None:
    """It is keyed by its slot: the same slot seen one commit later gets the same answer to "copy or uniform"."""
    init = Initializer("mix", VOCAB, None, mix=0.5)
    early, late = context([3] * 64), context([5] * 64)
    early.tokens[:], late.tokens[:] = 7, 7
    slots, filled = torch.zeros(64, 8, dtype=torch.long), torch.zeros(64, dtype=torch.long)
    first, _ = init(early, slots, filled, 8, None, False)
    second, _ = init(late, slots, filled, 6, None, False)
    early_copies, late_copies = (first[:, 2:] == 7), (second == 7)
    assert torch.equal(early_copies, late_copies)
