"""A draft that goes with the prompt: prefill and first verification in one forward change no token and no law."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import RoundContext, Verdict, chain_verdict
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import PromptSession
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

VOCAB, LENGTH = 4, 6
TABLE, OTHER = random_table(VOCAB, LENGTH, 5), random_table(VOCAB, LENGTH, 6)
SAMPLING = {"greedy": SamplingParams(temperature=0), "T=1": SamplingParams(), "top-k": SamplingParams(1.3, top_k=2)}


def target(rows: int) -> TableTarget:
    return TableTarget(TABLE, LENGTH, rows, OTHER, 1.7)


def spoiled(tokens: Tensor) -> Tensor:
    """``tokens`` with row b wrong from place b % 7 on."""
    wrong = torch.arange(tokens.shape[1]) >= (torch.arange(len(tokens)) % 7)[:, None]
    return torch.where(wrong, (tokens + 1) % VOCAB, tokens)


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("name", SAMPLING)
def test_equals_plain_whatever_the_draft(name: str, later: bool) -> None:
    sampling, row_seeds = SAMPLING[name], seeds(140)
    plain, _ = decode(target(140), row_seeds, LENGTH, None, None, sampling)
    for script in (plain, spoiled(plain), torch.zeros_like(plain)):
        session = PromptSession(script, torch.arange(140) % 9, later)
        tokens, stats = decode(target(140), row_seeds, LENGTH, session, None, sampling, width=5)
        assert torch.equal(tokens, plain)
        assert all(row.tokens == LENGTH for row in stats.rows)


def test_rows_equal_solo() -> None:
    plain, _ = decode(target(30), seeds(30), LENGTH)
    for rule in ("coupled", "match"):
        made = ACCEPTANCE_RULES.create(rule)
        session = PromptSession(spoiled(plain), torch.arange(30) % 7)
        together, _ = decode(target(30), seeds(30), LENGTH, session, made, width=4)
        for row in range(30):
            alone = PromptSession(spoiled(plain)[row : row + 1], torch.arange(30)[row : row + 1] % 7)
            assert torch.equal(decode(target(1), seeds(1, row), LENGTH, alone, made, width=4)[0][0], together[row])


def test_a_right_draft_takes_one_forward() -> None:
    greedy = SAMPLING["greedy"]
    plain, _ = decode(target(1), seeds(1), LENGTH, None, None, greedy)
    tokens, stats = decode(target(1), seeds(1), LENGTH, PromptSession(plain, torch.tensor([9])), None, greedy)
    assert torch.equal(tokens, plain)
    assert (stats.forwards, stats.rows[0].accepted, stats.rows[0].finish_reason) == (1, LENGTH - 1, "length")


@pytest.mark.parametrize("place", range(LENGTH))
def test_ends_at_a_stop_token_inside_the_draft(place: int) -> None:
    """Faults 01 and 65: nothing behind the stop token is kept or counted."""
    plain, _ = decode(target(1), seeds(1, 3), LENGTH)
    stop = int(plain[0, place])
    first = plain[0].tolist().index(stop)
    session = PromptSession(plain, torch.tensor([LENGTH]))
    tokens, stats = decode(target(1), seeds(1, 3), LENGTH, session, stop_tokens=(stop,))
    assert torch.equal(tokens[0, : first + 1], plain[0, : first + 1])
    assert not tokens[0, first + 1 :].any()
    assert (stats.rows[0].tokens, stats.forwards, stats.rows[0].finish_reason) == (first + 1, 1, "stop")


class Trusting:
    """Negative control: keeps the first draft token whatever the target says."""

    guarantee, needs_law = None, False

    def __call__(self, draft: object, logits: Tensor, context: RoundContext) -> Verdict:
        verdict = ACCEPTANCE_RULES.create("match")(draft, logits, context)
        kept = verdict.num_accepted.clamp_min(min(1, draft.num_nodes - 1))
        return chain_verdict(draft, kept, verdict.next_token)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.7, top_k=3)], ids=["T=1", "T=0.7 top-3"])
def test_the_match_rule_keeps_the_law(sampling: SamplingParams) -> None:
    count, length = 8_000, 3
    table = random_table(VOCAB, length, 11)
    law = enumerate_law(TableTarget(table, length, 1), sampling)
    script = torch.tensor([[2, 0, 1]]).expand(count, -1)
    scores = {}
    for name, rule in {"match": ACCEPTANCE_RULES.create("match"), "trusting": Trusting()}.items():
        session = PromptSession(script, torch.full((count,), 3))
        made = TableTarget(table, length, count)
        tokens, _ = decode(made, seeds(count), length, session, rule, sampling, width=3)
        scores[name] = z_score(string_numbers(tokens, VOCAB), law)
    assert abs(scores["match"]) < 4
    assert scores["trusting"] > 15
