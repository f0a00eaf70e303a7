"""Threshold rules accept what they say, in chains and trees, and report the deviation of each token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.acceptance.threshold import KINDS, ThresholdAcceptance, threshold
from mmspec.acceptance.typical import TypicalAcceptance, entropy
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import SamplingParams, draw
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.jacobi import JacobiDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.laws import random_laws
from tests.oracles.sessions import TreeSession
from tests.oracles.toy import TableTarget, random_table, z_score

RULES: dict[str, Acceptance] = {
    "strict": ThresholdAcceptance("strict"),
    "additive": ThresholdAcceptance("additive", 0.1),
    "multiplicative": ThresholdAcceptance("multiplicative", 0.5),
    "top": ThresholdAcceptance("top", 2),
    "typical": TypicalAcceptance(0.2, 0.5),
}


def lowest(name: str, p: Tensor) -> float:
    """The threshold of one law (V,), written out."""
    largest = float(p.max())
    return {
        "strict": largest,
        "additive": largest - 0.1,
        "multiplicative": 0.5 * largest,
        "top": float(p.sort(descending=True).values[1]),
        "typical": min(0.2, 0.5 * float(torch.exp((p * p.clamp_min(1e-30).log()).sum()))),
    }[name]


def judge(rule: Acceptance, draft: Draft, logits: Tensor) -> Verdict:
    zeros = torch.zeros(len(logits), dtype=torch.long)
    context = RoundContext(
        tokens=zeros[:, None].expand(-1, 9), generated=zeros + 1, rounds=zeros, root=zeros,
        noise=RowNoise(seeds(len(logits)), logits.shape[-1]), sampling=SamplingParams(), lowest=1, highest=1,
    )  # fmt: skip
    return rule(draft, logits, context)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 9))
def test_a_tree_is_judged_as_written_out(name: str, seed: int, size: int) -> None:
    """Deepest node whose tokens all reach the threshold of their parent, ties to the likeliest path."""
    generator = torch.Generator().manual_seed(seed)
    p = random_laws(size, 5, seed, flat=2.0)
    parent = (torch.rand(size, generator=generator) * torch.arange(size)).long()
    tokens = torch.randint(5, (size,), generator=generator)
    best, reach = (0, 0.0, 0), {0: (0, 0.0)}
    for node in range(1, size):
        above = int(parent[node])
        chance = float(p[above, tokens[node]])
        if above in reach and chance >= lowest(name, p[above]) - 1e-12:
            depth, path = reach[above]
            reach[node] = (depth + 1, path + torch.tensor(chance).log().item())
            best = max(best, (reach[node][0], reach[node][1], -node))
    verdict = judge(RULES[name], Draft(tokens[None], DraftLaw.DETERMINISTIC, parent=parent[None]), p.log()[None])
    assert int(verdict.num_accepted) == best[0]
    depth, path = reach[int(verdict.path[0, -1])]
    assert (depth, pytest.approx(path, abs=1e-5)) == (best[0], best[1])
    walk = verdict.path[0].tolist()
    spent = [1 - float(p[walk[i], tokens[walk[i + 1]]]) for i in range(best[0])]
    assert verdict.step_tv[0].tolist() == pytest.approx(spent + [0.0] * (size - best[0]), abs=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_the_law_of_a_drawn_token_is_the_one_whose_deviation_is_reported(name: str) -> None:
    count = 40_000
    p, q = random_laws(2, 6, 3, flat=2.0)
    noise = RowNoise(seeds(count), 6)
    drafted = draw(q.log().float(), noise.gumbel(Stream.DRAFT, torch.zeros(count, 1, dtype=torch.long))[:, 0])
    tokens = torch.stack([torch.zeros_like(drafted), drafted], 1)
    draft = Draft(tokens, DraftLaw.SAMPLED, log_q=q.log().float().expand(count, 2, -1))
    verdict = judge(RULES[name], draft, p.log().float().expand(count, 2, -1))
    taken = q * (p >= lowest(name, p) - 1e-12)
    law = taken + (1 - taken.sum()) * p
    assert abs(z_score(verdict.tokens[:, 0], law)) < 4.5
    assert z_score(verdict.tokens[:, 0], p) > 8
    expected = float((law - p).abs().sum() / 2)
    torch.testing.assert_close(verdict.step_tv[:, 0], torch.full((count,), expected), atol=1e-5, rtol=0)


def test_the_strict_rule_at_temperature_zero_is_greedy() -> None:
    vocab, length = 4, 5
    table = random_table(vocab, length, 5)
    greedy = SamplingParams(temperature=0)
    plain, _ = decode(TableTarget(table, length, 10), seeds(10), length, sampling=greedy)
    for session in (JacobiDrafter(window=4, controller="fixed"), TreeSession(vocab)):
        runs = [
            decode(TableTarget(table, length, 10), seeds(10), length, session, rule, greedy, width=6)[0]
            for rule in (RULES["strict"], ThresholdAcceptance("additive", 1.0))
        ]
        assert torch.equal(runs[0], plain)
        assert not torch.equal(runs[1], plain)


@pytest.mark.parametrize("name", RULES)
def test_rows_equal_solo(name: str) -> None:
    table = random_table(4, 5, 5)
    drafter = JacobiDrafter(window=4, coupling="independent", controller="fixed")

    def tokens(count: int, first: int = 0) -> Tensor:
        return decode(TableTarget(table, 5, count), seeds(count, first), 5, drafter, RULES[name])[0]

    assert torch.equal(torch.cat([tokens(1, row) for row in range(8)]), tokens(30)[:8])


def test_a_token_outside_the_support_is_never_accepted() -> None:
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]])
    draft = Draft(torch.tensor([[0, 2]]), DraftLaw.DETERMINISTIC)
    for rule in (ThresholdAcceptance("additive", 1.0), ThresholdAcceptance("top", 3)):
        assert int(judge(rule, draft, logits).num_accepted) == 0


def test_thresholds_and_entropy_have_their_values() -> None:
    p = torch.tensor([0.5, 0.3, 0.2, 0.0])
    values = [float(threshold(kind, {"top": 3}.get(kind, 0.25), p)) for kind in KINDS]
    assert values == pytest.approx([0.25, 0.125, 0.5, 0.2])
    assert float(entropy(p)) == pytest.approx(1.0297, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ThresholdAcceptance("soft"), ValueError, "additive, multiplicative, strict, top"),
        (lambda: ThresholdAcceptance("additive", 2.0), ValueError, "`value`"),
        (lambda: ThresholdAcceptance("top", 0), ValueError, "`value`"),
        (lambda: ThresholdAcceptance("top", 1.5), TypeError, "`value`"),
        (lambda: TypicalAcceptance(epsilon=1.1), ValueError, "`epsilon`"),
        (lambda: TypicalAcceptance(delta="a"), TypeError, "`delta`"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_raise(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
