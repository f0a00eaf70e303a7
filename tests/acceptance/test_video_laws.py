"""Jacobi decoding of clips keeps the target's law: enumerated on a 2 x 1 x 2 grid, every coupling, start and window."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.noise import Stream
from mmspec.core.sampling import SamplingParams, draw, draw_by_inversion, process
from mmspec.core.verify import RoundContext, Verdict, chain_verdict, residual
from mmspec.drafters.initializers import FRAME_INITIALIZERS
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score
from tests.oracles.video import COLUMNS, FRAME, LENGTH, VOCAB, grid_table

COUNT = 6000
TABLE = grid_table()
PROMPT = torch.tensor([2, 0])
STARTS = (*FRAME_INITIALIZERS, "uniform", "copy-left", "mix")
EVERY = pytest.mark.parametrize("initializer", STARTS)
COUPLED = pytest.mark.parametrize("coupling", COUPLINGS)


def run(row_seeds: Tensor, rule: str, **settings: object) -> Tensor:
    drafter = JacobiDrafter(**{"window": LENGTH, "controller": "fixed", **settings})
    target = TableTarget(TABLE, LENGTH, len(row_seeds))
    return decode(
        target, row_seeds, LENGTH, drafter, ACCEPTANCE_RULES.create(rule), row_length=COLUMNS, frame_length=FRAME,
        prompt_ids=PROMPT.expand(len(row_seeds), -1),
    )[0]  # fmt: skip


def deviation(tokens: Tensor) -> float:
    law = enumerate_law(TableTarget(TABLE, LENGTH, 1), SamplingParams())
    return abs(z_score(string_numbers(tokens, VOCAB), law))


@EVERY
@COUPLED
def test_ratio_rule_keeps_the_law_of_the_grid(coupling: str, initializer: str) -> None:
    for within_frame in (False, True):
        tokens = run(seeds(COUNT), "ratio", coupling=coupling, initializer=initializer, within_frame=within_frame)
        assert deviation(tokens) < 4.5


@EVERY
def test_coupled_rule_gives_the_tokens_of_plain_decoding(initializer: str) -> None:
    plain = decode(TableTarget(TABLE, LENGTH, 200), seeds(200), LENGTH)[0]
    for window in (1, 2, 3, LENGTH):
        for within_frame in (False, True):
            tokens = run(seeds(200), "coupled", window=window, initializer=initializer, within_frame=within_frame)
            assert torch.equal(tokens, plain)


@EVERY
@COUPLED
def test_rows_equal_solo(coupling: str, initializer: str) -> None:
    for within_frame in (False, True):
        settings = {"coupling": coupling, "initializer": initializer, "within_frame": within_frame}
        together = run(seeds(24), "ratio", **settings)
        assert torch.equal(torch.cat([run(seeds(1, row), "ratio", **settings) for row in range(5)]), together[:5])


@pytest.mark.parametrize("initializer", FRAME_INITIALIZERS)
def test_drawing_from_the_target_on_rejection_is_found(initializer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the correction must come from the residual."""
    monkeypatch.setattr("mmspec.acceptance.ratio.residual", lambda p, q: p)
    assert deviation(run(seeds(COUNT), "ratio", coupling="independent", initializer=initializer)) > 8


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_fixed_number_of_rounds_is_exact_only_if_no_fewer_than_the_window_is_deep(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: accept every slot alone for some rounds and then commit all, as published 2-D drafting does.

    The window holds two open slots, each of which depends on all before it.
    """
    table = random_table(VOCAB, LENGTH, 1)
    monkeypatch.setattr("tests.acceptance.test_video_laws.TABLE", table)

    def commit_all_after(rule: object, draft: object, logits: Tensor, context: RoundContext) -> Verdict:
        tokens, log_q = draft.tokens.clone(), draft.log_q[:, :-1].exp()
        target = TableTarget(TABLE, LENGTH, len(tokens))
        for number in range(rounds):
            p = process(_chain_logits(target, tokens), SamplingParams()).softmax(-1)
            nodes = torch.arange(1, draft.num_nodes)
            key = context.rounds[:, None] * 64 + number
            uniform = context.noise.uniform(Stream.ACCEPT, key, nodes[None])
            ratio = (p[:, :-1] / log_q).gather(-1, tokens[:, 1:, None])[..., 0]
            fresh = draw_by_inversion(
                residual(p[:, :-1], log_q), context.noise.uniform(Stream.DRAFT, key, nodes[None])
            )
            tokens = torch.cat([tokens[:, :1], torch.where(uniform < ratio, tokens[:, 1:], fresh)], dim=1)
            log_q = p[:, :-1]
        last = process(_chain_logits(target, tokens)[:, -1], SamplingParams()).softmax(-1)
        draft.tokens = tokens
        everything = torch.full_like(draft.tokens[:, 0], draft.num_nodes - 1)
        bonus = context.noise.gumbel(Stream.RESIDUAL, context.rounds[:, None])[:, 0]
        return chain_verdict(draft, everything, draw(last.log(), bonus))

    monkeypatch.setattr("mmspec.acceptance.ratio.RatioAcceptance.__call__", commit_all_after)
    tokens = run(seeds(COUNT), "ratio", coupling="independent", initializer="uniform")
    assert deviation(tokens) < 4.5 if rounds == 2 else deviation(tokens) > 8


def _chain_logits(target: TableTarget, tokens: Tensor) -> Tensor:
    """Logits (B, N, V) after each node of chains (B, N) that start at the first token."""
    number, logits = torch.zeros(len(tokens), 1, dtype=torch.long), []
    for place in range(tokens.shape[1]):
        number = number * VOCAB + tokens[:, place : place + 1]
        logits.append(target.logits(number, torch.full_like(number, place + 1))[:, 0])
    return torch.stack(logits, dim=1)
