"""Counts are of emitted tokens, and sum to the output, whatever cut the last block (faults 65, 66 and 73)."""

from __future__ import annotations

import json

import pytest
import torch

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.stats import DecodeStats, RowStats, join_stretches, merge_stats
from mmspec.core.trace import Round, from_draft, rejections
from mmspec.core.verify import Guarantee
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import ScriptedSession
from tests.oracles.toy import TableTarget, random_table


def target(rows: int) -> TableTarget:
    return TableTarget(random_table(5, 4), 4, rows)


def wrong(tokens: torch.Tensor) -> torch.Tensor:
    """A draft that is right nowhere."""
    return (tokens + 1) % 5


def test_stop_as_third_of_five_right_drafts_counts_three() -> None:
    """Fault 65: 1 token from the prefill, then a round that emits exactly the three tokens up to the stop."""
    count, length = 200, 9
    plain, _ = decode(target(count), seeds(count), length)
    rows = [r for r in range(count) if plain[r].tolist().index(int(plain[r, 3])) == 3]
    assert rows
    for row in rows[:10]:
        stop = int(plain[row, 3])
        script = plain[row : row + 1]
        _, stats = decode(
            target(1), seeds(count)[row : row + 1], length, ScriptedSession(script), width=6, stop_tokens=(stop,)
        )
        [counts] = stats.rows
        assert (counts.tokens, counts.rounds, counts.acceptance_length) == (4, 1, 3.0)
        assert counts.accepted == 3


def test_budget_in_the_middle_of_a_block_is_counted_like_a_stop() -> None:
    plain, _ = decode(target(3), seeds(3), 4)
    _, stats = decode(target(3), seeds(3), 4, ScriptedSession(plain), width=8)
    assert [row.acceptance_length for row in stats.rows] == [3.0] * 3
    assert stats.forwards == 2


@pytest.mark.parametrize("block", [1, 3, 7])
def test_perfect_drafter_emits_block_plus_one_and_rate_one(block: int) -> None:
    """Fault 66: ``acceptance_length`` counts the bonus token, ``acceptance_rate`` does not."""
    length = 1 + 3 * (block + 1)
    plain, _ = decode(target(4), seeds(4), length)
    _, stats = decode(target(4), seeds(4), length, ScriptedSession(plain), width=block + 1)
    assert [row.acceptance_length for row in stats.rows] == [block + 1] * 4
    assert stats.forwards == 4
    assert stats.acceptance_rate == pytest.approx(3 * block / (3 * block + 0))


@pytest.mark.parametrize("block", [1, 3, 7])
def test_wrong_drafter_emits_one_token_a_round_and_rate_zero(block: int) -> None:
    plain, _ = decode(target(4), seeds(4), 9)
    tokens, stats = decode(target(4), seeds(4), 9, ScriptedSession(wrong(plain)), width=block + 1)
    assert torch.equal(tokens, plain)
    assert [row.acceptance_length for row in stats.rows] == [1.0] * 4
    assert stats.acceptance_rate == 0.0
    assert stats.forwards == 9
    assert not any(stats.acceptance_by_depth)


def test_fast_rows_do_not_wait_for_slow_ones() -> None:
    """Fault 23: a perfect and a useless drafter side by side; each row's own rounds are counted."""
    plain, _ = decode(target(2), seeds(2), 17)
    script = torch.stack([plain[0], wrong(plain[1])])
    tokens, stats = decode(target(2), seeds(2), 17, ScriptedSession(script), width=4)
    assert torch.equal(tokens, plain)
    assert [row.rounds for row in stats.rows] == [4, 16]


@pytest.mark.parametrize("stop", [(), (2,), (0, 3)])
@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        (None, CoupledAcceptance()),
        (JacobiDrafter(window=5, controller="fixed"), CoupledAcceptance()),
        (JacobiDrafter(window=5, coupling="maximal", controller="aimd"), RatioAcceptance()),
        (NGramDrafter(num_draft_tokens=4), CoupledAcceptance()),
    ],
    ids=["plain", "jacobi", "maximal-ratio", "ngram"],
)
def test_emitted_tokens_sum_to_the_output(drafter: object, rule: object, stop: tuple[int, ...]) -> None:
    """Fault 73, for every drafter and cause of the end; ``drafted`` and ``accepted`` stay within the output too."""
    tokens, stats = decode(target(50), seeds(50), 9, drafter, rule, stop_tokens=stop)
    assert len(tokens) == len(stats.rows)
    for row, counts in enumerate(stats.rows):
        line = tokens[row].tolist()
        ends = [line.index(token) + 1 for token in stop if token in line[: counts.tokens]]
        assert counts.tokens == min([9, *ends])
        assert counts.tokens == 1 + round(counts.acceptance_length * counts.rounds)
        assert 0 <= counts.accepted <= counts.drafted
        assert counts.accepted <= counts.tokens - 1
    assert stats.tokens == sum(row.tokens for row in stats.rows)
    assert sum(stats.accepted_at_depth) == sum(row.accepted for row in stats.rows)
    assert sum(stats.drafted_at_depth) == sum(row.drafted for row in stats.rows)
    assert sum(stats.widths.values()) == stats.forwards - 1


def test_plain_decoding_counts_one_forward_a_token() -> None:
    _, stats = decode(target(3), seeds(3), 8)
    assert stats.forwards == 8
    assert stats.tokens_per_forward == 1.0
    assert [row.acceptance_length for row in stats.rows] == [1.0] * 3


def test_seconds_are_of_parts_of_the_total() -> None:
    _, stats = decode(target(3), seeds(3), 8, JacobiDrafter(window=4, controller="fixed"))
    parts = sum(stats.seconds[name] for name in ("model", "draft", "accept", "commit"))
    assert 0 < parts <= stats.seconds["total"]
    assert 0 < stats.model_share <= 1


def test_merged_stats_add_up() -> None:
    parts = []
    for count in (2, 3):
        _, stats = decode(target(count), seeds(count), 8, JacobiDrafter(window=count + 1, controller="fixed"))
        stats.seeds = seeds(count).tolist()
        parts.append(stats)
    merged = merge_stats(parts)
    assert merged.tokens == 40
    assert merged.forwards == parts[0].forwards + parts[1].forwards
    assert len(merged.rows) == len(merged.seeds) == 5
    assert sum(merged.drafted_at_depth) == sum(sum(p.drafted_at_depth) for p in parts)
    assert merged.seconds["total"] == pytest.approx(sum(p.seconds["total"] for p in parts))


def test_summary_is_json_and_names_the_guarantee() -> None:
    _, stats = decode(target(2), seeds(2), 6, JacobiDrafter(window=4, controller="fixed"))
    summary = json.loads(json.dumps(stats.summary()))
    assert summary["guarantee"] == "SAME_TOKENS"
    assert summary["lossless"] is True
    assert summary["tokens"] == 12
    assert "SAME_TOKENS" in str(stats)


def test_deviations_are_counted_per_emitted_token() -> None:
    stats = DecodeStats(rows=[RowStats(tokens=4), RowStats(tokens=6)], step_tv_bound=0.5)
    stats.add_step_tv([0, 1], [[0.1, 0.0], [0.3, 0.2, 0.0]])
    stats.add_step_tv([1], [[0.05]])
    assert [row.step_tv for row in stats.rows] == pytest.approx([0.1, 0.55])
    assert stats.step_tv_max == 0.3
    assert stats.step_tv_mean == pytest.approx(0.065)
    assert stats.sequence_tv == pytest.approx(0.325)
    merged = merge_stats([stats, stats])
    assert (merged.step_tv_bound, merged.step_tv_max) == (0.5, 0.3)
    assert merged.step_tv_mean == pytest.approx(0.065)
    stats.add_step_tv([0], [[1.0, 1.0]])
    assert stats.sequence_tv == 1.0  # a bound on a total variation


def test_empty_stats_do_not_divide_by_zero() -> None:
    stats = DecodeStats(rows=[RowStats()])
    assert stats.tokens_per_forward == stats.acceptance_rate == stats.model_share == 0.0
    assert stats.summary()["step_tv_mean"] == 0.0


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_only_exact_guarantees_are_lossless(guarantee: Guarantee) -> None:
    assert guarantee.lossless == (guarantee.value in ("SAME_TOKENS", "SAME_LAW"))


def half_wrong(tokens: torch.Tensor) -> torch.Tensor:
    """A draft that is right at every place but each third one."""
    spoilt = tokens.clone()
    spoilt[:, 2::3] = (spoilt[:, 2::3] + 1) % 5
    return spoilt


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_the_trace_says_where_each_token_came_from(width: int) -> None:
    length = 20
    plain, _ = decode(target(3), seeds(3), length)
    _, stats = decode(target(3), seeds(3), length, ScriptedSession(half_wrong(plain)), width=width)
    for row in stats.rows:
        assert sum(one.emitted for one in row.trace) == row.tokens == length
        assert sum(one.accepted for one in row.trace) == row.accepted == sum(from_draft(row.trace))
        assert sum(one.drafted for one in row.trace) == row.drafted
        refused = rejections(row.trace, length)
        assert sum(refused) == row.drafted - row.accepted
        if width == 2:  # one draft token a round, so that what is refused is what was wrong
            assert {place for place, count in enumerate(refused) if count} <= set(range(2, length, 3))
            assert any(refused)
        assert not any(drafted for place, drafted in enumerate(from_draft(row.trace)) if place % 3 == 2)


def test_a_trace_that_ends_inside_a_draft_counts_what_was_emitted() -> None:
    trace = [Round(0, 0, 1), Round(4, 2, 3), Round(3, 2, 2)]
    assert from_draft(trace) == [False, True, True, False, True, True]
    assert rejections(trace, 6) == [0, 0, 0, 1, 1, 0]


def test_plain_decoding_drafts_nothing_in_its_trace() -> None:
    _, stats = decode(target(2), seeds(2), 9)
    for row in stats.rows:
        assert row.trace == [Round(0, 0, 1)] * 9
        assert rejections(row.trace, 9) == [0] * 9


def test_stretches_of_a_row_join_their_traces() -> None:
    parts = [decode(target(1), seeds(1), length)[1] for length in (3, 4)]
    assert len(join_stretches(parts).rows[0].trace) == 7
