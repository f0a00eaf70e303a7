"""Decoding by a schedule: what is fed, seen, drawn, counted and measured, on targets whose laws are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams, process
from mmspec.core.scheduled import ScheduledDecoder, ScheduleStep, is_raster
from mmspec.core.stats import DecodeStats, merge_stats
from mmspec.core.target import TargetOutput
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

V, M = 3, 4
RASTER = [ScheduleStep((i,), (i,), (True,)) for i in range(M - 1)]
#: cell 2 before cell 1: the token of cell 0 stands in for cell 1; then cell 1, then cell 3 from cell 2
EARLY = [
    ScheduleStep((0, 1), (0, 0), (True, True)),
    ScheduleStep((1, 2), (1, 2), (False, True)),
]


class SeenTarget:
    """A law per cell and per tuple of the tokens that it sees, hashed; it keeps what it was fed."""

    def __init__(self, rows: int) -> None:
        self.fed = torch.full((rows, M), -1)
        self.calls: list[tuple[Tensor, list[int], Tensor]] = []

    def law(self, tokens: Tensor, cell: int) -> Tensor:
        """Logits (B, V) of ``cell`` given ``tokens`` (B, M), -1 where nothing is seen."""
        weights = torch.tensor([1.0, 1.7, 2.9, 4.3])
        phase = (tokens.float() + 1) @ weights + 5 * cell
        return 2 * torch.sin(phase[:, None] * torch.tensor([1.0, 2.3, 3.1]))

    def prefill(self) -> TargetOutput:
        return TargetOutput(self.law(torch.full_like(self.fed, -1), 0)[:, None])

    def step(self, tokens: Tensor, cells: Tensor, allowed: Tensor, last: int) -> TargetOutput:
        assert last == max(cells.tolist())
        self.calls.append((tokens.clone(), cells.tolist(), allowed.clone()))
        self.fed[:, cells] = tokens
        seen = [torch.where(allowed[i], self.fed, -1) for i in range(len(cells))]
        laws = [self.law(known, cell + 1) for known, cell in zip(seen, cells.tolist(), strict=True)]
        return TargetOutput(torch.stack(laws, dim=1))


def run(
    target: SeenTarget, schedule: list[ScheduleStep], rows: int, sampling: SamplingParams | None = None, **more: bool
) -> tuple[Tensor, DecodeStats]:
    stats = DecodeStats()
    noise = RowNoise(seeds(rows), V)
    decoder = ScheduledDecoder(target, schedule, M, noise, sampling or SamplingParams(), stats, **more)
    for progress in decoder.steps():
        assert progress.lengths == [progress.lengths[0]] * rows
    assert progress.finished
    return progress.tokens, stats


class AsScheduled:
    """A toy target of the main loop behind the protocol of schedules, for raster steps only."""

    def __init__(self, target: TableTarget) -> None:
        self.target, self.prefill = target, target.prefill

    def step(self, tokens: Tensor, cells: Tensor, allowed: Tensor, last: int) -> TargetOutput:
        target = self.target
        [cell] = cells.tolist()
        target.prefix[:, cell] = tokens[:, 0]
        number = target._number(target.prefix, torch.full((len(tokens),), cell + 1))
        return TargetOutput(target.logits(number[:, None], torch.full((len(tokens), 1), cell + 1)))


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.7, 2), SamplingParams(0)])
def test_one_cell_at_a_time_is_plain_decoding(sampling: SamplingParams) -> None:
    table, rows = random_table(V, M, seed=1), 300
    plain, _ = decode(TableTarget(table, M, rows), seeds(rows), M, sampling=sampling)
    target = AsScheduled(TableTarget(table, M, rows))
    stats = DecodeStats()
    decoder = ScheduledDecoder(target, RASTER, M, RowNoise(seeds(rows), V), sampling, stats, measure=False)
    *_, last = decoder.steps()
    assert torch.equal(last.tokens, plain)
    assert (stats.forwards, stats.widths, stats.finish_reasons) == (M, {1: M - 1}, ["complete"] * rows)


def test_one_cell_at_a_time_has_the_targets_law() -> None:
    table, rows = random_table(V, M, seed=2), 20_000
    target = TableTarget(table, M, rows)
    decoder = ScheduledDecoder(
        AsScheduled(target), RASTER, M, RowNoise(seeds(rows), V), SamplingParams(), DecodeStats(), measure=False
    )
    *_, last = decoder.steps()
    law = enumerate_law(target, SamplingParams())
    assert abs(z_score(string_numbers(last.tokens, V), law)) < 4
    wrong = enumerate_law(TableTarget(random_table(V, M, seed=3), M, rows), SamplingParams())
    assert z_score(string_numbers(last.tokens, V), wrong) > 20


def test_inputs_see_what_exists_and_placeholders_are_seen_by_themselves_alone() -> None:
    target = SeenTarget(5)
    tokens, _ = run(target, EARLY, 5, measure=False)
    (first, cells, seen), (second, later, seen_later) = target.calls
    assert cells == [0, 1]
    assert torch.equal(first, tokens[:, [0, 0]])
    assert seen.tolist() == [[True, False, False, False], [True, True, False, False]]
    assert later == [1, 2]
    assert torch.equal(second, tokens[:, [1, 2]])
    assert seen_later.tolist() == [[True, True, False, False], [True, True, True, False]]


def test_compatible_inputs_see_every_cell_before_theirs() -> None:
    schedule = [ScheduleStep((0, 2), (0, 0), (True, True)), ScheduleStep((1, 3), (1, 3), (True, False))]
    target = SeenTarget(2)
    run(target, schedule, 2, masked=False, measure=False)
    assert target.calls[0][2].tolist() == [[True, False, False, False], [True, True, True, False]]
    target = SeenTarget(2)
    run(target, schedule, 2, masked=True, measure=False)
    assert target.calls[0][2].tolist() == [[True, False, False, False], [True, False, True, False]]
    assert target.calls[1][2].tolist() == [[True, True, False, False], [True, True, False, True]]


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=2)])
def test_measured_deviation_is_the_total_variation(sampling: SamplingParams) -> None:
    """The estimate against the exact TV of the two laws of the cell that is drawn early, averaged over the rows."""
    rows = 40_000
    target = SeenTarget(rows)
    tokens, stats = run(target, EARLY, rows, sampling)
    assert stats.deviation is not None
    stood_in = torch.stack([tokens[:, 0], tokens[:, 0], -torch.ones(rows), -torch.ones(rows)], dim=1).long()
    known = tokens.clone()
    known[:, 2:] = -1
    q, p = (process(target.law(seen, 2), sampling).softmax(-1) for seen in (stood_in, known))
    exact = float((p - q).abs().sum(-1).mean()) / 2 / M  # the other three cells have the target's own law
    assert exact > 0.05
    assert stats.deviation["token_tv"] == pytest.approx(exact, abs=0.003)
    outside = float((p.gather(1, tokens[:, 2:3]) == 0).float().mean()) / M
    assert stats.deviation["outside_support"] == pytest.approx(outside, abs=1e-6)
    assert (outside > 0) == (sampling.top_k > 0)


def test_an_exact_order_deviates_by_nothing() -> None:
    _, stats = run(SeenTarget(500), RASTER, 500)
    assert stats.deviation == pytest.approx({"token_tv": 0.0, "outside_support": 0.0}, abs=1e-6)


def test_measuring_changes_no_token_and_is_not_counted() -> None:
    with_it, measured = run(SeenTarget(50), EARLY, 50)
    without, unmeasured = run(SeenTarget(50), EARLY, 50, measure=False)
    assert torch.equal(with_it, without)
    assert measured.forwards == unmeasured.forwards == 3
    assert unmeasured.deviation is None
    assert set(measured.seconds) - set(unmeasured.seconds) == {"measure"}


def test_the_measuring_pass_in_chunks_gives_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(SeenTarget(50), EARLY, 50)[1].deviation
    monkeypatch.setattr(ScheduledDecoder, "chunk", 2)
    assert run(SeenTarget(50), EARLY, 50)[1].deviation == pytest.approx(whole)


def test_deviation_of_micro_batches_is_the_mean_over_tokens() -> None:
    parts = [run(SeenTarget(rows), EARLY, rows)[1] for rows in (10, 30)]
    merged = merge_stats(parts).deviation
    assert merged is not None
    tv = [part.deviation["token_tv"] for part in parts if part.deviation]
    assert merged["token_tv"] == pytest.approx((tv[0] + 3 * tv[1]) / 4)
    assert merge_stats([DecodeStats(), DecodeStats()]).deviation is None


def test_lengths_count_up_to_the_first_gap_and_drawn_cells_never_change() -> None:
    decoder = ScheduledDecoder(
        SeenTarget(3), EARLY, M, RowNoise(seeds(3), V), SamplingParams(), stats := DecodeStats(), measure=False
    )
    seen = [(progress.lengths[0], progress.tokens.clone(), progress.finished) for progress in decoder.steps()]
    assert [(length, done) for length, _, done in seen] == [(1, False), (3, False), (4, True)]
    for length, tokens, _ in seen:
        assert torch.equal(tokens[:, :length], seen[-1][1][:, :length])
    assert [row.tokens for row in stats.rows] == [M] * 3
    assert [sum(one.emitted for one in row.trace) for row in stats.rows] == [M] * 3
    assert [row.rounds for row in stats.rows] == [2] * 3


def test_an_interrupted_run_says_so() -> None:
    decoder = ScheduledDecoder(
        SeenTarget(2), RASTER, M, RowNoise(seeds(2), V), SamplingParams(), stats := DecodeStats()
    )
    seen = []
    for number, progress in enumerate(decoder.steps()):
        seen.append(progress.lengths)
        assert not progress.finished
        decoder.interrupted = number == 1
    assert seen == [[1, 1], [2, 2]]
    assert stats.finish_reasons == ["interrupted"] * 2
    assert stats.deviation is None


def test_is_raster() -> None:
    assert is_raster(RASTER)
    assert is_raster([])
    assert not is_raster(EARLY)
    assert not is_raster([ScheduleStep((0,), (0,), (False,))])


def test_the_loops_agree_on_the_noise_of_a_cell() -> None:
    """Negative control of the equality above: with the noise of other seeds nothing fits."""
    table, rows = random_table(V, M, seed=1), 300
    plain, _ = decode(TableTarget(table, M, rows), seeds(rows, first=1), M, rule=CoupledAcceptance())
    target = AsScheduled(TableTarget(table, M, rows))
    decoder = ScheduledDecoder(
        target, RASTER, M, RowNoise(seeds(rows), V), SamplingParams(), DecodeStats(), measure=False
    )
    *_, last = decoder.steps()
    assert not torch.equal(last.tokens, plain)
