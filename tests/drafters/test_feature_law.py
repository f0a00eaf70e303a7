"""Sampled drafts: children follow the law that they report, and ratio rules leave the target's law as it is.

The target is a real LlamaGen decoder with four codes a picture and three codes to choose from, guided; all 81 pictures
are enumerated. 30 000 rows are one ragged batch.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams, process
from mmspec.core.verify import RoundContext
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.feature import FeatureDrafter
from mmspec.drafters.feature_session import FeatureSession
from mmspec.image.llamagen_target import Condition, LlamaGenModel
from mmspec.runner.features import FeatureRunner
from mmspec.runner.runner import Runner
from tests.oracles.decode import decode, seeds
from tests.oracles.tiny import tiny_feature, tiny_transformer
from tests.oracles.toy import string_numbers, z_score

VOCAB, LENGTH, COUNT = 3, 4, 30_000
GUIDANCE, SAMPLING = Guidance(1.5), SamplingParams(temperature=0.8)
PASS, FAIL = 4.5, 8.0
TARGET = tiny_transformer(
    vocab_size=VOCAB, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, grid_height=2, grid_width=2,
    condition_length=1, caption_dim=None, num_classes=2,
)  # fmt: skip


def open_target(rows: int) -> Runner:
    model = LlamaGenModel(TARGET, Condition(class_labels=torch.zeros(rows, dtype=torch.long)), guided=True)
    return Runner(model, GUIDANCE, LENGTH, 16)


def drafter(**settings: Any) -> FeatureDrafter:
    return tiny_feature(TARGET, seed=1, **{"mode": "sampled", "tree": "chain", "num_nodes": 4, **settings})


@pytest.fixture(scope="module")
def law() -> Tensor:
    """Probability of each of the 81 pictures."""
    with torch.no_grad():
        strings = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
        target = open_target(len(strings))
        first = target.prefill().logits
        rest = target.verify(Draft(strings[:, :-1], DraftLaw.DETERMINISTIC), 1).logits
        log_p = process(torch.cat([first, rest], dim=1), SAMPLING).double().log_softmax(-1)
        return log_p.gather(-1, strings[..., None])[..., 0].sum(-1).exp()


@torch.no_grad()
def deviation(session: Any, rule: str, law: Tensor) -> float:
    target = open_target(COUNT)
    session = session if isinstance(session, FeatureDrafter) else session(target)
    tokens, stats = decode(target, seeds(COUNT), LENGTH, session, ACCEPTANCE_RULES.create(rule), SAMPLING, width=4)
    assert stats.acceptance_rate > 0.05
    return abs(z_score(string_numbers(tokens, VOCAB), law))


def test_the_enumerated_law_is_that_of_plain_decoding(law: Tensor) -> None:
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-5)
    with torch.no_grad():
        tokens, _ = decode(open_target(COUNT), seeds(COUNT), LENGTH, sampling=SAMPLING)
    assert abs(z_score(string_numbers(tokens, VOCAB), law)) < PASS


@pytest.mark.parametrize("rule", ["block", "match", "ratio"])
def test_sampled_chains_leave_the_law(rule: str, law: Tensor) -> None:
    assert deviation(drafter(), rule, law) < PASS


@pytest.mark.parametrize(
    "settings", [{"mode": "top-k", "tree": "dynamic"}, {"mode": "coupled", "tree": "static"}], ids=str
)
def test_chosen_trees_leave_the_law_under_the_match_rule(settings: dict, law: Tensor) -> None:
    assert deviation(drafter(num_nodes=8, depth=3, **settings), "match", law) < PASS


@pytest.mark.parametrize(
    "settings", [{}, {"replacement": True}, {"mode": "coupled"}, {"tree": "dynamic", "beam": 2, "depth": 3}], ids=str
)
def test_trees_leave_the_law_under_recursive_rejection(settings: dict, law: Tensor) -> None:
    shape = {"tree": "static", "num_nodes": 7, "choices": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]}
    assert deviation(drafter(**{**shape, **settings}), "recursive", law) < PASS


class Flattened(FeatureSession):
    """Reports a flatter law than the one that it draws from, as a drafter does that forgets the temperature."""

    def _score(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        ranking, acceptance, log_q = super()._score(*arguments)
        assert log_q is not None
        return ranking, acceptance, (0.5 * log_q).log_softmax(-1)


def open_session(kind: type[FeatureSession], target: Runner, made: FeatureDrafter) -> FeatureSession:
    setup = DraftSetup(COUNT, VOCAB, torch.device("cpu"), LENGTH, needs_law=True, runner=target)
    return kind(FeatureRunner(made, target, LENGTH, 16), made, setup)


def test_a_wrong_law_is_found(law: Tensor) -> None:
    """The negative control: the statistic sees what it is there to see."""
    assert deviation(lambda target: open_session(FeatureSession, target, drafter()), "ratio", law) < PASS
    assert deviation(lambda target: open_session(Flattened, target, drafter()), "ratio", law) > FAIL


SHAPE = {"tree": "static", "num_nodes": 4, "choices": [[0], [1], [0, 0]]}


@torch.no_grad()
def first_drafts(**settings: Any) -> Draft:
    """The drafts of one round of COUNT rows that differ in their noise alone; all begin with the same code."""
    made = drafter(**SHAPE, **settings)
    target = open_target(COUNT)
    session = open_session(FeatureSession, target, made)
    ones = torch.ones(COUNT, dtype=torch.long)
    context = RoundContext(
        tokens=torch.zeros(COUNT, LENGTH, dtype=torch.long), generated=ones, rounds=ones, root=ones,
        noise=RowNoise(seeds(COUNT), VOCAB), sampling=SAMPLING, lowest=1, highest=1,
    )  # fmt: skip
    session.start(context, target.prefill())
    return session.propose(context, 4)


@pytest.mark.parametrize("replacement", [False, True])
def test_children_are_drawn_from_the_law_that_is_reported(replacement: bool) -> None:
    """Nodes: root 0, its children 1 and 2, and node 3 below node 1."""
    draft = first_drafts(replacement=replacement)
    assert draft.law is (DraftLaw.INDEPENDENT if replacement else DraftLaw.WITHOUT_REPLACEMENT)
    assert draft.log_q is not None
    assert draft.parent is not None
    assert draft.parent[0].tolist() == [0, 0, 0, 1]
    q = draft.log_q[0, 0].exp().double()
    assert torch.allclose(draft.log_q[:, 0], draft.log_q[:1, 0].expand(COUNT, -1), atol=1e-5)
    twins = q[:, None] * q[None]
    without = (twins / (1 - q[:, None])).fill_diagonal_(0.0)
    seen = draft.tokens[:, 1] * VOCAB + draft.tokens[:, 2]
    assert abs(z_score(seen, (twins if replacement else without).flatten())) < PASS
    assert abs(z_score(seen, (without if replacement else twins).flatten())) > FAIL  # the law of the other kind
    for first in range(VOCAB):
        rows = (draft.tokens[:, 1] == first).nonzero()[:, 0]
        below = draft.log_q[rows[0], 1].exp().double()
        assert torch.allclose(draft.log_q[rows, 1], draft.log_q[rows[:1], 1].expand(len(rows), -1), atol=1e-5)
        assert abs(z_score(draft.tokens[rows, 3], below)) < PASS
