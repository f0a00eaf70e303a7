"""Relaxed verification of chains by the target's likelihood, and roll-back to the start of the word."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.likelihood import TESTS, LikelihoodAcceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.verify import RoundContext
from mmspec.speech.rollback import WordRollback, rolled_back
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import PromptSession
from tests.oracles.toy import TableTarget, random_table

VOCAB, EOS = 5, 4
#: p of the draft token and the largest p at each of four places
LAWS = torch.tensor(
    [
        [0.5, 0.3, 0.1, 0.05, 0.05],
        [0.25, 0.45, 0.2, 0.05, 0.05],
        [0.04, 0.9, 0.02, 0.02, 0.02],
        [0.1, 0.1, 0.1, 0.1, 0.6],
    ]
)
DRAFT = [0, 0, 1, 0]


def context(rows: int, temperature: float = 0.0) -> RoundContext:
    zeros = torch.zeros(rows, dtype=torch.long)
    return RoundContext(
        tokens=zeros[:, None], generated=zeros, rounds=zeros, root=zeros, noise=RowNoise(zeros, VOCAB),
        sampling=SamplingParams(temperature), lowest=0, highest=0, stop_tokens=(EOS,),
    )  # fmt: skip


def judge(rule: LikelihoodAcceptance, tokens: list[int], laws: Tensor = LAWS) -> int:
    draft = Draft(torch.tensor([[0, *tokens]]), DraftLaw.DETERMINISTIC)
    logits = torch.cat([laws[: len(tokens)], laws[:1]]).log()[None]
    return int(rule(draft, logits, context(1)).num_accepted)


@pytest.mark.parametrize(
    ("test", "threshold", "accepted"),
    [("abs", 0.5, 1), ("abs", 0.25, 3), ("abs", 0.05, 4), ("rel", 1.0, 1), ("rel", 0.5, 3), ("rel", 0.1, 4),
     ("rank", 1, 1), ("rank", 2, 4), ("seq", -0.7, 0), ("seq", -2.0, 4)],
)  # fmt: skip
def test_tests_by_hand(test: str, threshold: float, accepted: int) -> None:
    assert judge(LikelihoodAcceptance(test, threshold), DRAFT) == accepted


def test_typical_by_hand() -> None:
    entropies = [-float((law * law.log()).sum()) for law in LAWS]
    own = [float(LAWS[place, token]) for place, token in enumerate(DRAFT)]
    for eps, delta in ((0.3, 0.5), (0.09, 0.3), (0.6, 3.0)):
        passes = [p >= min(eps, delta * math.exp(-h)) for p, h in zip(own, entropies, strict=True)]
        expected = next((place for place, good in enumerate(passes) if not good), 4)
        assert judge(LikelihoodAcceptance("typical", eps, delta), DRAFT) == expected


@pytest.mark.parametrize("test", TESTS)
def test_lowering_the_threshold_never_keeps_fewer(test: str) -> None:
    generator = torch.Generator().manual_seed(0)
    thresholds = {"rank": [1, 2, 3, 5], "seq": [-0.01, -0.5, -1.0, -9.0]}.get(test, [1.0, 0.5, 0.2, 0.05, 0.0])
    for _ in range(30):
        laws = (2 * torch.randn(4, VOCAB, generator=generator)).softmax(-1)
        tokens = torch.randint(VOCAB, (4,), generator=generator).tolist()
        kept = [judge(LikelihoodAcceptance(test, t), tokens, laws) for t in thresholds]
        assert kept == sorted(kept)
        assert kept[-1] == 4


def test_the_end_is_tested_unless_it_is_taken_for_granted() -> None:
    laws = LAWS.clone()
    laws[3] = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1])
    tokens = [0, 0, 1, EOS]
    assert judge(LikelihoodAcceptance("abs", 0.25), tokens, laws) == 3
    assert judge(LikelihoodAcceptance("abs", 0.25, eos_threshold=0.05), tokens, laws) == 4
    assert judge(LikelihoodAcceptance("abs", 0.25, eos_threshold=0.0), tokens, laws) == 4
    assert judge(LikelihoodAcceptance("abs", 0.05, eos_threshold=0.5), tokens, laws) == 3


def test_deviation_is_the_mass_that_was_not_the_tokens() -> None:
    draft = Draft(torch.tensor([[0, *DRAFT]]), DraftLaw.DETERMINISTIC)
    logits = torch.cat([LAWS, LAWS[:1]]).log()[None]
    rule = LikelihoodAcceptance("abs", 0.2)
    sampled = rule(draft, logits, context(1, 1.0))
    assert int(sampled.num_accepted) == 3
    assert float(sampled.step_tv.sum()) == pytest.approx(0.5 + 0.75 + 0.1, abs=1e-5)
    greedy = rule(draft, logits, context(1))
    assert float(greedy.step_tv.sum()) == 1.0  # one of the three was not the most likely
    assert int(greedy.next_token) == EOS  # the target's own choice follows
    assert judge(LikelihoodAcceptance("abs", 1.0), [0]) == 0


def test_a_rank_of_one_is_greedy_and_equals_plain() -> None:
    table = random_table(4, 6, 3)
    greedy = SamplingParams(temperature=0)
    plain, _ = decode(TableTarget(table, 6, 60), seeds(60), 6, None, None, greedy)
    script = torch.randint(4, (60, 6), generator=torch.Generator().manual_seed(0))
    for rule in (LikelihoodAcceptance("rank", 1), LikelihoodAcceptance("rel", 1.0)):
        session = PromptSession(script, torch.full((60,), 6))
        tokens, stats = decode(TableTarget(table, 6, 60), seeds(60), 6, session, rule, greedy)
        assert torch.equal(tokens, plain)
        assert stats.step_tv_mean == 0
    session = PromptSession(script, torch.full((60,), 6))
    relaxed, stats = decode(TableTarget(table, 6, 60), seeds(60), 6, session, LikelihoodAcceptance("rank", 4), greedy)
    assert not torch.equal(relaxed, plain)
    assert stats.step_tv_mean > 0


def test_rows_equal_solo() -> None:
    table, script = random_table(4, 6, 3), torch.arange(180).view(30, 6) % 4
    for rule in (
        LikelihoodAcceptance("abs", 0.2),
        WordRollback(LikelihoodAcceptance("rel"), torch.arange(4) % 2 == 0),
    ):
        together, _ = decode(
            TableTarget(table, 6, 30), seeds(30), 6, PromptSession(script, torch.arange(30) % 7), rule
        )
        for row in range(30):
            session = PromptSession(script[row : row + 1], torch.tensor([row % 7]))
            alone, _ = decode(TableTarget(table, 6, 1), seeds(1, row), 6, session, rule)
            assert torch.equal(alone[0], together[row])


def rolled(starts: list[int], accepted: int, chosen: list[int], valid: Tensor | None = None) -> int:
    """Tokens 0, 1, 2, 3, 4 are drafted, ``chosen`` is what the target wants at each place."""
    draft = Draft(torch.tensor([[0, 0, 1, 2, 3, 4]]), DraftLaw.DETERMINISTIC, valid=valid)
    path = torch.arange(6).clamp_max(accepted)[None]
    begins = torch.tensor(starts, dtype=torch.bool)
    return int(rolled_back(draft, torch.tensor([accepted]), path, torch.tensor([chosen]), begins))


OTHER = [3, 3, 3, 1, 1, 1]  # what the target wants is never what was drafted, and begins no word


@pytest.mark.parametrize(
    ("starts", "accepted", "chosen", "kept"),
    [
        ([1, 0, 1, 0, 0], 4, OTHER, 2),  # the last piece of the second word failed: go back before it
        ([1, 0, 1, 0, 0], 3, OTHER, 2),
        ([1, 0, 1, 0, 0], 2, OTHER, 0),  # the target goes on with the first word, which was relaxed
        ([1, 0, 1, 0, 0], 2, [3, 3, 0, 0, 0, 0], 2),  # the target begins another word: nothing to take back
        ([1, 0, 1, 0, 0], 4, [3, 3, 2, 3, 1, 1], 4),  # the second word is the target's own so far
        ([1, 0, 1, 0, 0], 4, [0, 1, 2, 1, 1, 1], 2),  # its second piece is not
        ([1, 0, 1, 0, 0], 1, OTHER, 0),
        ([0, 0, 0, 0, 0], 3, OTHER, 0),  # inside the first word
        ([1, 1, 1, 1, 1], 3, OTHER, 3),  # scripts without spaces lose nothing
        ([1, 0, 1, 0, 0], 5, OTHER, 5),  # all accepted
    ],
)
def test_roll_back_to_the_start_of_a_word(starts: list[int], accepted: int, chosen: list[int], kept: int) -> None:
    assert rolled(starts, accepted, chosen) == kept


def test_roll_back_knows_where_a_ragged_draft_ends() -> None:
    valid = torch.tensor([[True, True, True, True, False, False]])
    assert rolled([1, 0, 0, 0, 0], 3, OTHER, valid) == 3
    assert rolled([1, 0, 0, 0, 0], 2, OTHER, valid) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"test": "median"}, "typical"), ({"threshold": 1.5}, "1.5"), ({"test": "rank", "threshold": 0.5}, "0.5"),
     ({"test": "seq", "threshold": 0.5}, "0.5"), ({"delta": 0.0}, "delta"), ({"eos_threshold": 2.0}, "eos_threshold")],
)  # fmt: skip
def test_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LikelihoodAcceptance(**settings)
    with pytest.raises(TypeError, match="threshold"):
        LikelihoodAcceptance(threshold="high")


TREE = torch.tensor([[0, 0, 0, 2]])  # two children of the root, the second with a child


def test_the_likeliest_alternative_that_passes_is_followed() -> None:
    """Both children pass: the target's own is kept. It is not drafted: the other one is, if it passes."""
    laws = [[0.3, 0.6, 0.1, 0, 0], [1, 0, 0, 0, 0], [0.1, 0, 0.9, 0, 0], [0, 1, 0, 0, 0]]
    logits = torch.tensor(laws, dtype=torch.float32).log()[None]
    begins = torch.zeros(VOCAB, dtype=torch.bool)
    for test, threshold in (("abs", 0.1), ("rel", 0.1), ("rank", 2), ("typical", 0.1), ("seq", -3.0)):
        for wrap in (lambda rule: rule, lambda rule: WordRollback(rule, begins)):
            rule = wrap(LikelihoodAcceptance(test, threshold))
            tree = Draft(torch.tensor([[0, 0, 1, 2]]), DraftLaw.DETERMINISTIC, TREE)
            verdict = rule(tree, logits, context(1))
            assert verdict.tokens[0, :3].tolist() == [1, 2, 1]
            assert float(verdict.step_tv.sum()) == 0
    other = Draft(torch.tensor([[0, 2, 0, 0]]), DraftLaw.DETERMINISTIC, TREE)
    verdict = LikelihoodAcceptance("abs", 0.2)(other, logits, context(1))
    assert verdict.tokens[0, :2].tolist() == [0, 2]  # 0 has probability 0.3; its child fails, the target chooses 2
    assert float(verdict.step_tv.sum()) == 1.0
    assert int(LikelihoodAcceptance("abs", 0.4)(other, logits, context(1)).num_accepted) == 0
    assert int(LikelihoodAcceptance("seq", -3.0)(other, logits, context(1)).num_accepted) == 0


@pytest.mark.parametrize(
    ("test", "threshold"), [("abs", 0.1), ("rel", 0.2), ("rank", 2), ("typical", 0.1), ("seq", -2.0)]
)
def test_rows_of_trees_are_judged_as_alone(test: str, threshold: float) -> None:
    tokens = torch.tensor([[0, 0, 1, 2], [0, 0, 1, 2], [0, 2, 1, 0]])
    parents = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 2], [0, 0, 1, 0]])
    valid = torch.tensor([[True] * 4, [True] * 4, [True, True, False, True]])
    logits = torch.tensor([[0.4, 0.6, 0.0], [0.3, 0.7, 0.0], [0.1, 0.0, 0.9], [0.0, 1.0, 0.0]]).log().expand(3, -1, -1)
    rule = LikelihoodAcceptance(test, threshold)
    together = rule(Draft(tokens, DraftLaw.DETERMINISTIC, parents, valid), logits, context(3))
    for row in range(3):
        at = slice(row, row + 1)
        chain = None if row == 0 else parents[at]
        alone = rule(Draft(tokens[at], DraftLaw.DETERMINISTIC, chain, valid[at]), logits[at], context(1))
        count = int(alone.num_accepted)
        assert int(together.num_accepted[row]) == count
        assert together.tokens[row, : count + 1].tolist() == alone.tokens[0, : count + 1].tolist()
        assert torch.equal(together.step_tv[row], alone.step_tv[0])


def test_settings_are_saved(tmp_path) -> None:
    LikelihoodAcceptance("typical", 0.2, 0.7, 0.1).save_pretrained(tmp_path)
    loaded = LikelihoodAcceptance.from_pretrained(tmp_path)
    assert (loaded.config.test, loaded.threshold, loaded.config.delta, loaded.config.eos_threshold) == (
        "typical",
        0.2,
        0.7,
        0.1,
    )
    assert not DecodeStats(guarantee=loaded.guarantee).lossless
