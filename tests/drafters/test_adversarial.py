"""No drafter can change the output: always wrong, always right, garbage, ends early, or another in every row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import RaggedSession, ScriptedSession
from tests.oracles.toy import TableTarget, random_table

VOCAB, ROWS, LENGTH = 5, 60, 16
TABLE = random_table(VOCAB, 5, 2)
SAMPLING = [SamplingParams(0), SamplingParams(0.7), SamplingParams(top_k=3)]


def run(drafter: Any, sampling: SamplingParams, rule: str = "coupled", rows: int = ROWS, **options: Any) -> Any:
    target = TableTarget(TABLE, 5, rows)
    return decode(
        target, seeds(rows), LENGTH, drafter, ACCEPTANCE_RULES.create(rule), sampling, row_length=4, **options
    )


@pytest.mark.parametrize("sampling", SAMPLING, ids=["T0", "T.7", "k3"])
@pytest.mark.parametrize("width", [2, 5, 40])
def test_always_wrong_always_right_and_garbage_equal_plain(width: int, sampling: SamplingParams) -> None:
    plain, _ = run(None, sampling)
    generator = torch.Generator().manual_seed(width)
    scripts = {
        "right": plain,
        "wrong": (plain + 1) % VOCAB,
        "half": torch.where(torch.rand(plain.shape, generator=generator) < 0.5, plain, (plain + 2) % VOCAB),
        "garbage": torch.randint(VOCAB, plain.shape, generator=generator),
        "constant": torch.zeros_like(plain),
    }
    for script in scripts.values():
        assert torch.equal(run(ScriptedSession(script), sampling, width=width)[0], plain)


@pytest.mark.parametrize("block", [1, 3, 4, 7, 14, 15])
def test_oracle_takes_block_plus_one_tokens_a_forward(block: int) -> None:
    plain, _ = run(None, SamplingParams())
    tokens, stats = run(ScriptedSession(plain), SamplingParams(), width=block + 1)
    assert torch.equal(tokens, plain)
    assert stats.forwards == 1 + -(-(LENGTH - 1) // (block + 1))


def test_a_drafter_that_proposes_the_end_early_does_not_end_anything() -> None:
    stop = 0
    plain, stats = run(None, SamplingParams(), stop_tokens=(stop,))
    early, early_stats = run(ScriptedSession(torch.zeros_like(plain)), SamplingParams(), width=6, stop_tokens=(stop,))
    assert torch.equal(early, plain)
    assert [row.tokens for row in early_stats.rows] == [row.tokens for row in stats.rows]
    assert early_stats.finish_reasons == stats.finish_reasons


def test_rows_with_drafts_of_unequal_length() -> None:
    plain, _ = run(None, SamplingParams())
    tokens, stats = run(RaggedSession(plain, torch.arange(ROWS) % 5), SamplingParams(), width=5)
    assert torch.equal(tokens, plain)
    for row, counts in enumerate(stats.rows):  # each row pays for its own drafts
        assert counts.rounds == -(-(LENGTH - 1) // (row % 5 + 1))


@pytest.mark.parametrize("window", [1, 2, 4, 5, 100])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_edge_windows_run_and_equal_plain(coupling: str, window: int) -> None:
    """Fault 11: 1, 2, the row width, one more, and more than there are tokens left."""
    drafter = JacobiDrafter(window=window, coupling=coupling, controller="fixed")
    for sampling in SAMPLING:
        tokens, stats = run(drafter, sampling)
        assert torch.equal(tokens, run(None, sampling)[0])
        assert max(stats.widths) <= min(window, LENGTH)
    if window == 1:
        assert stats.forwards == LENGTH


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_jacobi_never_takes_more_forwards_than_plain(coupling: str) -> None:
    drafter = JacobiDrafter(window=8, coupling=coupling, controller="fixed")
    for rule in ("coupled", "match", "ratio"):
        _, stats = run(drafter, SamplingParams(), rule)
        assert stats.forwards <= LENGTH


def test_shared_noise_accepts_more_than_independent_noise() -> None:
    lengths = {}
    for coupling in ("gumbel", "independent"):
        drafter = JacobiDrafter(window=8, coupling=coupling, controller="fixed")
        _, stats = run(drafter, SamplingParams(), rows=400)
        lengths[coupling] = sum(row.acceptance_length for row in stats.rows)
    assert lengths["gumbel"] > 1.1 * lengths["independent"]
