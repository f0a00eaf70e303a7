"""Forced slots: drafted right by every drafter, accepted by every rule, and the law of the free slots stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.base import Acceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.grammar import Grammar, GrammarSession
from mmspec.core.sampling import SamplingParams
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.initializers import INITIALIZERS, Initializer
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.sessions import RaggedSession, ScriptedSession, TreeSession
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

#: header of 1, two rows of 2 codes with row ends, end of frame; ids 0, 1, 2 are codes
VOCAB, HEADER, ROW_END, END = 6, 5, 3, 4
SLOTS = [HEADER, None, None, ROW_END, None, None, ROW_END, END]
LENGTH, ROW, COUNT = len(SLOTS), 3, 12_000
GRAMMAR = Grammar.of_slots(SLOTS, torch.arange(VOCAB) < 3)
TABLE, OTHER = random_table(VOCAB, LENGTH - 1, 1), random_table(VOCAB, LENGTH - 1, 2)
#: two rows of 2 codes with row ends, few enough strings to enumerate
SMALL = [None, None, 3, None, None, 3]
SMALL_GRAMMAR, SMALL_TABLE = Grammar.of_slots(SMALL, torch.arange(4) < 3), random_table(4, 6, 3)
SAMPLING = {"plain": SamplingParams(), "k2": SamplingParams(top_k=2), "top-p": SamplingParams(0.8, top_p=0.7)}


def target(count: int, scale: float = 1.0) -> TableTarget:
    return TableTarget(TABLE, LENGTH - 1, count, None if scale == 1 else OTHER, scale, GRAMMAR)


def run(
    drafter: Any, rule: str = "coupled", sampling: SamplingParams | None = None, count: int = 40, scale: float = 1.0,
    width: int | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    return decode(
        target(count, scale), seeds(count), LENGTH, drafter, ACCEPTANCE_RULES.create(rule), sampling, width,
        row_length=ROW, row_start=1, grammar=GRAMMAR,
    )  # fmt: skip


def jacobi(window: int, coupling: str = "gumbel", initializer: str = "mix") -> JacobiDrafter:
    return JacobiDrafter(window=window, coupling=coupling, initializer=initializer, controller="fixed")


def structure_holds(tokens: Tensor) -> bool:
    forced = torch.tensor([-1 if slot is None else slot for slot in SLOTS])
    return bool(torch.where(forced >= 0, tokens == forced, tokens < 3).all())


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=list(SAMPLING))
@pytest.mark.parametrize("window", [1, 2, 3, 4, 20])
def test_jacobi_equals_plain_across_row_ends(window: int, sampling: SamplingParams) -> None:
    """Fault 36: windows of 1, 2, a row, a row and one, and more than is left; header, row ends and an end mark."""
    plain, _ = run(None, sampling=sampling, scale=2.0)
    assert structure_holds(plain)
    for coupling in COUPLINGS:
        for initializer in INITIALIZERS:
            tokens, _ = run(jacobi(window, coupling, initializer), sampling=sampling, scale=2.0)
            assert torch.equal(tokens, plain), (coupling, initializer)


def test_every_other_drafter_equals_plain() -> None:
    plain, _ = run(None)
    generator = torch.Generator().manual_seed(0)
    drafters = {
        "ngram": NGramDrafter(num_draft_tokens=6),
        "wrong": ScriptedSession((plain + 1) % VOCAB),
        "garbage": ScriptedSession(torch.randint(VOCAB, plain.shape, generator=generator)),
        "ragged": RaggedSession(plain, torch.arange(40) % 4),
        "trees": TreeSession(VOCAB),
        "trees with holes": TreeSession(VOCAB, holes=0.3),
    }
    for name, drafter in drafters.items():
        tokens, stats = run(drafter, width=5)
        assert torch.equal(tokens, plain), name
        assert stats.tokens == 40 * LENGTH


@pytest.mark.parametrize("rule", ["block", "coupled", "match", "ratio"])
def test_forced_tokens_are_accepted_by_every_rule(rule: str) -> None:
    """A drafter that is right nowhere still gets every forced token behind its root: 8 tokens take 6 forwards."""

    class Wrong(ScriptedSession):
        def propose(self, context: Any, width: int) -> Draft:
            draft = super().propose(context, width)
            # token 5 is a header mark, allowed at no later slot; its law is stated as certain
            law = torch.full((*draft.tokens.shape, VOCAB), -torch.inf)
            law[..., 5] = 0.0
            return Draft(draft.tokens, DraftLaw.SAMPLED, log_q=law)

    _, stats = run(Wrong(torch.full((40, LENGTH), 5)), rule, width=2)
    assert stats.forwards == 6  # header | code | code | row end, code | code | row end, end mark
    assert stats.tokens == 40 * LENGTH


def test_the_law_of_a_forced_token_is_one_hot_and_others_are_kept() -> None:
    seen: list[Draft] = []

    class Spy(GrammarSession):
        def propose(self, context: Any, width: int) -> Draft:
            draft = super().propose(context, width)
            assert draft.log_q is not None
            after = context.generated[:, None] + draft.depth
            forced = GRAMMAR.forced_at(after)
            there = forced >= 0
            torch.testing.assert_close(
                draft.log_q.exp().sum(-1)[:, :-1], torch.ones_like(draft.tokens[:, :-1], dtype=torch.float32)
            )
            picked = draft.log_q.gather(-1, forced.clamp_min(0)[..., None])[..., 0]
            assert bool((picked[there] == 0).all())
            assert bool((draft.tokens[:, 1:][there[:, :-1]] == forced[:, :-1][there[:, :-1]]).all())
            seen.append(draft)
            return draft

    setup = DraftSetup(8, VOCAB, torch.device("cpu"), LENGTH, needs_law=True, row_length=ROW)  # knows no grammar
    decode(target(8), seeds(8), LENGTH, Spy(jacobi(6, "maximal").session(setup), GRAMMAR), width=6)
    assert seen


RULES = [
    pytest.param(rule, coupling, initializer, id=f"{name}-{coupling}-{initializer}")
    for place, (name, rule) in enumerate({n: ACCEPTANCE_RULES.create(n) for n in ("block", "match", "ratio")}.items())
    for number, coupling in enumerate(COUPLINGS)
    for initializer in (INITIALIZERS if name == "ratio" else [INITIALIZERS[(place + number) % len(INITIALIZERS)]])
    if jacobi(2, coupling).law in rule.legal_laws
]


def small_target(count: int) -> TableTarget:
    return TableTarget(SMALL_TABLE, len(SMALL), count, grammar=SMALL_GRAMMAR)


def deviation(drafter: Any, rule: str, sampling: SamplingParams) -> float:
    """z of the decoded strings of :data:`SMALL` against their enumerated law."""
    tokens, _ = decode(
        small_target(COUNT), seeds(COUNT), len(SMALL), drafter, ACCEPTANCE_RULES.create(rule), sampling,
        row_length=ROW, grammar=SMALL_GRAMMAR,
    )  # fmt: skip
    return z_score(string_numbers(tokens, 4), enumerate_law(small_target(1), sampling))


@pytest.mark.parametrize(("rule", "coupling", "initializer"), RULES)
def test_free_slots_keep_their_law(rule: Acceptance, coupling: str, initializer: str) -> None:
    name = type(rule).__name__.removesuffix("Acceptance").lower()
    assert abs(deviation(jacobi(5, coupling, initializer), name, SAMPLING["k2"])) < 4.5


def test_a_stated_law_that_forgets_the_grammar_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: draws among the allowed tokens, but states that all tokens were possible."""
    honest = Initializer._uniform_law

    def forgetful(self: Initializer, filled: Tensor, count: int, allowed: Tensor | None) -> Tensor:
        return honest(self, filled, count, None)

    monkeypatch.setattr(Initializer, "_uniform_law", forgetful)
    assert deviation(jacobi(5, "gumbel", "uniform"), "ratio", SAMPLING["plain"]) > 10


def test_masks_and_forced_tokens_by_index() -> None:
    order = torch.tensor([[0, 1, 3], [7, 6, 99]])
    assert GRAMMAR.forced_at(order).tolist() == [[5, -1, 3], [4, 3, 4]]  # beyond the end: as the last index
    masked = GRAMMAR.mask(torch.zeros(2, 3, VOCAB), order)
    assert masked[0, 1].tolist() == [0, 0, 0, -torch.inf, -torch.inf, -torch.inf]
    assert int((masked == 0).sum()) == 5 + 3
    assert GRAMMAR.vocab_size == VOCAB


@pytest.mark.parametrize(
    ("allowed", "kinds", "message"),
    [
        (torch.zeros(1, 4, dtype=torch.bool), torch.zeros(2).long(), "at least one token"),
        (torch.ones(2, 4, dtype=torch.bool), torch.tensor([0, 2]), "0 to 1"),
        (torch.ones(2, 4, dtype=torch.bool), torch.zeros(0).long(), "at least one order index"),
    ],
)
def test_impossible_grammars_are_refused(allowed: Tensor, kinds: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grammar(allowed, kinds)


def test_forced_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 4\)"):
        Grammar.of_slots([None, 4], torch.ones(4, dtype=torch.bool))
