"""LANTERN: the promised bounds hold, the published code breaks them, tables and settings are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.base import RuleSetup, TokenVectors
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.acceptance.recursive import RecursiveAcceptance
from mmspec.acceptance.relaxed import total_variation
from mmspec.core.draft import DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import Guarantee
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.image.codes import CodeLookup
from mmspec.image.lantern import LanternAcceptance, Neighbourhood, Neighbours
from mmspec.image.neighbours import nearest_codes, save_table
from tests.oracles.decode import decode, seeds
from tests.oracles.laws import chain_law, random_laws, sibling_laws
from tests.oracles.sessions import TreeSession
from tests.oracles.siblings import SiblingSession
from tests.oracles.toy import TableTarget, random_table

CPU = torch.device("cpu")


def codebook(size: int, width: int = 3, seed: int = 5) -> Tensor:
    rows = torch.randn(size, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=-1)


def relaxation(size: int, k: int, kind: str, delta: float | None = None, lam: float | None = None) -> Neighbourhood:
    vectors = TokenVectors(codebook(size))
    near = Neighbours(CodeLookup(vectors, CPU), nearest_codes(vectors.vectors, k + 1), k)
    return Neighbourhood(near, delta, lam, kind, chosen=True)


@pytest.mark.parametrize("kind", ["optimal", "cutset"])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 4), st.sampled_from([0.05, 0.2, 0.6]), st.booleans())
def test_chosen_siblings_keep_the_bound(kind: str, seed: int, count: int, delta: float, zeros: bool) -> None:
    """One chosen token moves at most delta, m siblings at most 1 - (1 - delta)^m; what is reported lies in between."""
    [p] = random_laws(1, 12, seed, zeros, flat=2.0)
    siblings = torch.randint(12, (10, count), generator=torch.Generator().manual_seed(seed))
    for factors in ({"delta": delta}, {"lam": 1 / (1 - delta)}):
        rule = relaxation(12, 5, kind, **factors)
        law, _, spent = sibling_laws(p, p, siblings, DraftLaw.DETERMINISTIC, rule)
        deviation = total_variation(p, law)
        assert bool((deviation <= spent + 1e-9).all())
        assert bool((spent <= 1 - (1 - delta) ** count + 1e-9).all())
        if count == 1:
            torch.testing.assert_close(deviation, spent, atol=1e-9, rtol=0)


def test_the_cutset_leaves_everything_outside_it_as_it_is() -> None:
    [p] = random_laws(1, 12, 3, flat=4.0)
    rule = relaxation(12, 5, "cutset", delta=0.3)
    law, _, _ = sibling_laws(p, p, torch.tensor([[7]]), DraftLaw.DETERMINISTIC, rule)
    mass, count = rule.borrow(p[None], torch.tensor([0]), torch.tensor([7]))
    cut = [7, *rule.neighbours.table[7, : int(count)].tolist()]
    outside = [token for token in range(12) if token not in cut]
    torch.testing.assert_close(law[0, outside], p[outside])
    assert float(law[0, 7]) == pytest.approx(float(p[7] + mass))


def test_the_published_correction_breaks_the_bound() -> None:
    """Flat laws over 256 codes, delta 0.2: striking k + 1 neighbours moves far more than delta."""
    laws = random_laws(20, 256, 1, flat=20.0)
    for k, least in ((64, 0.22), (200, 0.7)):
        spent = {"optimal": [], "lantern_compat": []}
        for row, p in enumerate(laws):
            for kind, found in spent.items():
                rule = relaxation(256, k, kind, delta=0.2)
                law, _, _ = sibling_laws(p, p, torch.tensor([[row * 11]]), DraftLaw.DETERMINISTIC, rule)
                found.append(float(total_variation(p, law[0])))
        assert max(spent["optimal"]) <= 0.2 + 1e-9
        assert sum(spent["lantern_compat"]) / 20 > least


def test_delta_bounds_nothing_for_drawn_tokens() -> None:
    """Ten equally likely drafts that p does not know, each with a tenth of p around it: all are accepted."""
    size = 20
    angle = torch.arange(10) * 0.6
    ring = torch.stack([angle.cos(), angle.sin()], dim=-1)
    vectors = TokenVectors(torch.cat([ring, ring * 1.01]))  # code i + 10 is the nearest of code i
    near = Neighbours(CodeLookup(vectors, CPU), nearest_codes(vectors.vectors, 2), 1)
    p, q = torch.zeros(2, size, dtype=torch.float64)
    p[10:], q[:10] = 0.1, 0.1
    rule = Neighbourhood(near, 0.1 + 1e-9, None)
    assert float(total_variation(p, chain_law(p, q, rule))) == pytest.approx(1.0)


def test_structural_tokens_are_never_relaxed() -> None:
    """Tokens without a code and those listed as structural borrow nothing and lend nothing."""
    vectors = TokenVectors(codebook(6), tokens=torch.tensor([9, 3, 4, 5, 7, 8]), structural=frozenset({4}))
    near = Neighbours(CodeLookup(vectors, CPU), nearest_codes(vectors.vectors, 5), 5)
    rule = Neighbourhood(near, 1.0, None)
    p = torch.full((12, 12), 1 / 12, dtype=torch.float64)
    tokens = torch.arange(12)
    mass, _ = rule.borrow(p, tokens, tokens)
    # codes 9, 3, 5, 7, 8 lend to one another; 4 is structural though it has a code; the others have none
    expected = torch.tensor([4 / 12 if token in (9, 3, 5, 7, 8) else 0.0 for token in range(12)]).double()
    torch.testing.assert_close(mass, expected)
    only_structural = torch.zeros_like(p)
    only_structural[:, 4] = 1
    assert not rule.borrow(only_structural, tokens, tokens)[0].any()


VOCAB, LENGTH = 4, 5
TABLE, DRAFT = random_table(VOCAB, LENGTH, 5), random_table(VOCAB, LENGTH, 6)


def setup(law: DraftLaw, siblings: int | None = 1, temperature: float = 1.0) -> RuleSetup:
    vectors = TokenVectors(codebook(VOCAB))
    return RuleSetup(law, SamplingParams(temperature), CPU, siblings, lambda: vectors)


def run(rule: Any, session: Any, law: DraftLaw, count: int, first: int = 0, temperature: float = 1.0) -> Any:
    bound = rule.bind(setup(law, temperature=temperature))
    target = TableTarget(TABLE, LENGTH, count)
    return decode(target, seeds(count, first), LENGTH, session, bound, SamplingParams(temperature), width=7)


def draft_session(kind: str, count: int) -> tuple[Any, DraftLaw]:
    if kind == "jacobi":
        setup = {"window": 4, "coupling": "independent", "controller": "fixed"}
        return JacobiDrafter(**setup), DraftLaw.SAMPLED
    if kind == "chosen":
        return TreeSession(VOCAB, "static"), DraftLaw.DETERMINISTIC
    return SiblingSession(TableTarget(DRAFT, LENGTH, count), kind), DraftLaw.WITHOUT_REPLACEMENT


@pytest.mark.parametrize("kind", ["jacobi", "chosen", "without-replacement"])
@pytest.mark.parametrize("off", [{"delta": 0.0}, {"lam": 1.0}], ids=["delta", "lam"])
def test_without_relaxation_the_tokens_are_those_of_the_exact_rule(
    kind: str, off: dict[str, float], tmp_path: Path
) -> None:
    exact = RatioAcceptance() if kind == "jacobi" else RecursiveAcceptance()
    rule = LanternAcceptance(k=3, cache_dir=str(tmp_path), **off)
    runs = [run(each, *draft_session(kind, 80), 80) for each in (rule, exact)]
    assert torch.equal(runs[0][0], runs[1][0])
    assert rule.bind(setup(DraftLaw.SAMPLED)).guarantee is Guarantee.SAME_LAW
    relaxed = run(LanternAcceptance(k=3, delta=0.6, cache_dir=str(tmp_path)), *draft_session(kind, 80), 80)
    assert not torch.equal(relaxed[0], runs[1][0])
    assert relaxed[1].step_tv_max > 0.01


@pytest.mark.parametrize("residual", ["optimal", "cutset", "lantern_compat"])
@pytest.mark.parametrize("kind", ["jacobi", "without-replacement", "beam"])
def test_rows_equal_solo(kind: str, residual: str, tmp_path: Path) -> None:
    rule = LanternAcceptance(k=2, delta=0.3, residual=residual, cache_dir=str(tmp_path))
    together, _ = run(rule, *draft_session(kind, 40), 40)
    alone = [run(rule, *draft_session(kind, 1), 1, row)[0] for row in range(8)]
    assert torch.equal(torch.cat(alone), together[:8])


def test_at_temperature_zero_near_misses_are_accepted(tmp_path: Path) -> None:
    """A raised token may become the arg-max; with no budget the output is greedy."""
    session, law = draft_session("chosen", 60)
    relaxed, stats = run(LanternAcceptance(k=3, delta=0.9, cache_dir=str(tmp_path)), session, law, 60, temperature=0)
    exact, _ = run(LanternAcceptance(k=3, delta=0.0), draft_session("chosen", 60)[0], law, 60, temperature=0)
    plain = decode(TableTarget(TABLE, LENGTH, 60), seeds(60), LENGTH, sampling=SamplingParams(0))[0]
    assert torch.equal(exact, plain)
    assert not torch.equal(relaxed, plain)
    assert stats.step_tv_max == 1.0


@pytest.mark.parametrize(
    ("law", "siblings", "settings_", "bound"),
    [
        (DraftLaw.DETERMINISTIC, 1, {"delta": 0.2}, 0.2),
        (DraftLaw.DETERMINISTIC, 2, {"delta": 0.2}, 0.36),
        (DraftLaw.DETERMINISTIC, 2, {"delta": 0.2, "residual": "cutset"}, 0.36),
        (DraftLaw.DETERMINISTIC, 1, {"delta": 0.2, "residual": "lantern_compat"}, None),
        (DraftLaw.DETERMINISTIC, None, {"delta": 0.2}, None),
        (DraftLaw.SAMPLED, 1, {"delta": 0.2}, None),
        (DraftLaw.SAMPLED, 1, {"lam": 2.0}, 0.5),
        (DraftLaw.SAMPLED, 1, {"lam": 2.0, "residual": "cutset"}, None),
        (DraftLaw.WITHOUT_REPLACEMENT, 2, {"lam": 2.0}, 0.75),
    ],
)
def test_only_what_holds_is_promised(
    law: DraftLaw, siblings: int | None, settings_: dict[str, Any], bound: float | None, tmp_path: Path
) -> None:
    rule = LanternAcceptance(k=3, cache_dir=str(tmp_path), **settings_).bind(setup(law, siblings))
    assert rule.guarantee is (Guarantee.HEURISTIC if bound is None else Guarantee.BOUNDED_TV)
    assert rule.step_tv_bound == (None if bound is None else pytest.approx(bound))
    greedy = LanternAcceptance(k=3, cache_dir=str(tmp_path), **settings_).bind(setup(law, siblings, 0.0))
    assert greedy.step_tv_bound is None


@pytest.mark.parametrize(
    ("settings_", "error", "message"),
    [
        ({"k": 0}, ValueError, "`k`"),
        ({"k": 2.0}, TypeError, "`k`"),
        ({"delta": -0.1}, ValueError, r"\[0, 1\]"),
        ({"delta": 1.1}, ValueError, r"\[0, 1\]"),
        ({"delta": "0.1"}, TypeError, "`delta`"),
        ({"lam": 0.5}, ValueError, "at least 1"),
        ({"lam": float("inf")}, ValueError, "`lam`"),
        ({"delta": 0.1, "lam": 2.0}, ValueError, "either"),
        ({"residual": "best"}, ValueError, "optimal, cutset, lantern_compat"),
    ],
)
def test_bad_settings_raise(settings_: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LanternAcceptance(**settings_)


def test_a_table_must_belong_to_the_codebook(tmp_path: Path) -> None:
    file = tmp_path / "table.safetensors"
    mine = codebook(VOCAB)
    for other, message in ((codebook(VOCAB, seed=9), "another codebook"), (codebook(VOCAB + 1), "4 codes")):
        save_table(nearest_codes(other, 3), other, file)
        with pytest.raises(ValueError, match=message):
            LanternAcceptance(k=3, table=str(file)).bind(setup(DraftLaw.SAMPLED))
    save_table(nearest_codes(mine, 1), mine, file)
    with pytest.raises(ValueError, match="holds 1 neighbours"):
        LanternAcceptance(k=3, table=str(file)).bind(setup(DraftLaw.SAMPLED))
    with pytest.raises(ValueError, match="not readable"):
        LanternAcceptance(k=3, table=str(tmp_path / "absent")).bind(setup(DraftLaw.SAMPLED))
    save_table(nearest_codes(mine, 3), mine, file)
    assert LanternAcceptance(k=3, table=str(file)).bind(setup(DraftLaw.SAMPLED)).name == "lantern"


def test_a_target_without_codebook_is_refused() -> None:
    with pytest.raises(ValueError, match="codebook"):
        LanternAcceptance().bind(RuleSetup(DraftLaw.SAMPLED, SamplingParams(), CPU))
