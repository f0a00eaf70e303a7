"""Where drafts are accepted, by rounds that are known and by a real run."""

from __future__ import annotations

import pytest

from mmspec.bench.positions import accepted_shares
from mmspec.core.stats import RowStats
from mmspec.core.trace import Round
from mmspec.drafters.jacobi import JacobiDrafter
from tests.oracles.tiny import tiny_pipeline


def test_all_but_the_last_token_of_a_round_were_drafted() -> None:
    rows = [
        RowStats(tokens=6, trace=[Round(0, 0, 1), Round(4, 2, 3), Round(1, 1, 2)])
    ]  # positions 1, 2 and 4 are drafts
    assert accepted_shares(rows, lambda position: position // 3) == pytest.approx([2 / 3, 1 / 3])
    assert accepted_shares(rows, lambda position: position % 2) == pytest.approx([2 / 3, 1 / 3])
    assert accepted_shares([], lambda position: position) == []
    assert accepted_shares(rows, lambda position: 2) == [0.0, 0.0, 0.5]


@pytest.mark.parametrize("speculate", [True, False])
def test_rounds_sum_to_the_tokens_of_a_row(speculate: bool) -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=6, controller="fixed"))
    pipe.set_progress_bar_config(disable=True)
    stats = pipe(["a red apple", "a dog"], seed=3, output_type="tokens", speculate=speculate).stats
    for row in stats.rows:
        assert sum(one.emitted for one in row.trace) == row.tokens
        assert sum(one.accepted for one in row.trace) == row.accepted
    shares = accepted_shares(stats.rows, lambda position: 0)
    assert shares == pytest.approx([sum(row.accepted for row in stats.rows) / stats.tokens])
    assert (max(shares) > 0) == speculate
