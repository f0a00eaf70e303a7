"""Relaxed chain rules: the measured deviation is the true one, bounds hold, and the sampler has the enumerated law."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.base import TokenVectors
from mmspec.acceptance.cool import Annealed
from mmspec.acceptance.fuzzy import Fuzzy, divergence
from mmspec.acceptance.relaxed import Exact, Relaxation, relaxed_chain, total_variation
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import SamplingParams, draw
from mmspec.core.verify import RoundContext, residual
from mmspec.image.codes import CodeLookup
from mmspec.image.grouped import Distances, Groups
from mmspec.image.lantern import Neighbourhood, Neighbours
from mmspec.image.neighbours import nearest_codes
from tests.oracles.decode import seeds
from tests.oracles.laws import chain_law, random_laws
from tests.oracles.toy import z_score

VOCAB = 9
CPU = torch.device("cpu")


def vectors(size: int = VOCAB, **settings: Any) -> TokenVectors:
    codebook = torch.randn(size, 3, generator=torch.Generator().manual_seed(5))
    return TokenVectors(torch.nn.functional.normalize(codebook, dim=-1), **settings)


def lantern(delta: float | None, lam: float | None = None, kind: str = "optimal", k: int = 4) -> Neighbourhood:
    table = nearest_codes(vectors().vectors, k + 1)
    return Neighbourhood(Neighbours(CodeLookup(vectors(), CPU), table, k), delta, lam, kind)


def groups(size: int, kind: str) -> Groups:
    return Groups(Distances(vectors(), None, CPU), size, 0.3, kind)


RELAXATIONS: dict[str, Relaxation] = {
    "exact": Exact(),
    "annealed": Annealed(1.5, 0.7, 4),
    "fuzzy-ratio": Fuzzy(0.1, "js", "ratio"),
    "fuzzy-reject": Fuzzy(0.1, "js", "reject"),
    "groups-token": groups(4, "token"),
    "groups-group": groups(4, "group"),
    "lantern-delta": lantern(0.2),
    "lantern-lam": lantern(None, 2.0),
    "lantern-cutset": lantern(0.2, kind="cutset"),
    "lantern-compat": lantern(0.2, kind="lantern_compat"),
}
#: relaxations that are too weak to change anything
IDLE: dict[str, Relaxation] = {
    "annealed": Annealed(1.0, 0.0, 3),
    "fuzzy": Fuzzy(0.0, "js", "ratio"),
    "groups-token": groups(1, "token"),
    "groups-group": groups(1, "group"),
    "lantern-delta": lantern(0.0),
    "lantern-lam": lantern(None, 1.0),
}
any_laws = given(st.integers(0, 1 << 20), st.booleans(), st.sampled_from([0.3, 1.0, 10.0]))


@pytest.mark.parametrize("name", RELAXATIONS)
@settings(max_examples=25, deadline=None)
@any_laws
def test_the_measured_deviation_is_that_of_the_law(name: str, seed: int, zeros: bool, flat: float) -> None:
    p, q = random_laws(2, VOCAB, seed, zeros, flat)
    law = chain_law(p, q, RELAXATIONS[name], depth=2)
    assert float(law.sum()) == pytest.approx(1, abs=1e-9)
    assert bool((law >= -1e-12).all())
    _, tv = RELAXATIONS[name].correct(p[None], q[None], q.argmax()[None], torch.tensor([2]))
    assert float(tv) == pytest.approx(float(total_variation(p, law)), abs=1e-9)


@pytest.mark.parametrize("name", IDLE)
@settings(max_examples=15, deadline=None)
@any_laws
def test_without_relaxation_the_law_is_the_targets(name: str, seed: int, zeros: bool, flat: float) -> None:
    p, q = random_laws(2, VOCAB, seed, zeros, flat)
    torch.testing.assert_close(chain_law(p, q, IDLE[name]), p, atol=1e-9, rtol=0)


@settings(max_examples=40, deadline=None)
@any_laws
def test_factors_bound_the_law_and_its_deviation(seed: int, zeros: bool, flat: float) -> None:
    """omega and lambda raise no token by more than the factor f, so no step deviates by more than 1 - 1 / f."""
    p, q = random_laws(2, VOCAB, seed, zeros, flat)
    annealed = Annealed(1.5, 0.7, 4)
    for relaxation, factor in ((annealed, annealed.omega(1)), (lantern(None, 2.0), 2.0)):
        law = chain_law(p, q, relaxation)
        assert bool((law <= factor * p + 1e-9).all())
        assert float(total_variation(p, law)) <= 1 - 1 / factor + 1e-9


@settings(max_examples=40, deadline=None)
@any_laws
def test_the_corrected_residual_is_never_worse(seed: int, zeros: bool, flat: float) -> None:
    class TokenCorrection(Groups):
        """The same acceptances, corrected as published."""

        def correction(self, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
            return residual(p, q)

    p, q = random_laws(2, VOCAB, seed, zeros, flat)
    published = TokenCorrection(Distances(vectors(), None, CPU), 4, 0.3, "group")
    for better, worse in ((groups(4, "group"), published), (lantern(0.2), lantern(0.2, kind="cutset"))):
        least = total_variation(p, chain_law(p, q, better))
        assert float(least) <= float(total_variation(p, chain_law(p, q, worse))) + 1e-9


@settings(max_examples=30, deadline=None)
@any_laws
def test_fuzzy_has_exactly_the_law_of_its_transform(seed: int, zeros: bool, flat: float) -> None:
    p, q = random_laws(2, VOCAB, seed, zeros, flat)
    for kind in ("js", "kl", "tv"):
        close = bool(divergence(kind, p, q) <= 0.1)
        for fallback in ("ratio", "reject"):
            law = chain_law(p, q, Fuzzy(0.1, kind, fallback))
            torch.testing.assert_close(law, q if close else p, atol=1e-9, rtol=0)


def test_divergences_have_their_golden_values() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], dtype=torch.float64)
    assert float(divergence("js", p, q)) == pytest.approx(0.05087, abs=1e-5)
    assert float(divergence("kl", p, q)) == pytest.approx(0.2238, abs=1e-4)
    assert float(divergence("tv", p, q)) == pytest.approx(0.3, abs=1e-9)


def test_the_schedule_falls_and_has_the_mean_that_was_asked_for() -> None:
    annealed = Annealed(1.4, 0.2, 3)
    omega = [annealed.omega(depth) for depth in range(1, 9)]
    assert omega == sorted(omega, reverse=True)
    assert sum(omega[:3]) / 3 == pytest.approx(1.4)
    assert omega[-1] == 1.0  # never below: that would accept less without coming closer


COUNT = 60_000


def first_tokens(p: Tensor, q: Tensor, relaxation: Relaxation) -> tuple[Tensor, Tensor]:
    """First committed token of ``COUNT`` rows that each draft two tokens from ``q``, and the TV of that step."""
    noise = RowNoise(seeds(COUNT), VOCAB)
    zeros = torch.zeros(COUNT, dtype=torch.long)
    log_p, log_q = (law.log().float().expand(COUNT, 3, -1) for law in (p, q))
    drafted = draw(log_q[:, :2], noise.gumbel(Stream.DRAFT, torch.tensor([[0, 1]])))
    draft = Draft(torch.cat([zeros[:, None], drafted], 1), DraftLaw.SAMPLED, log_q=log_q)
    context = RoundContext(
        tokens=zeros[:, None].expand(-1, 4), generated=zeros + 1, rounds=zeros, root=zeros, noise=noise,
        sampling=SamplingParams(), lowest=1, highest=1,
    )  # fmt: skip
    verdict = relaxed_chain(draft, log_p.exp(), context, relaxation)
    assert verdict.step_tv is not None
    beyond = torch.arange(3) > verdict.num_accepted[:, None]
    assert not verdict.step_tv[beyond].any()
    return verdict.tokens[:, 0], verdict.step_tv[:, 0]


@pytest.mark.parametrize("name", RELAXATIONS)
def test_the_sampler_has_the_enumerated_law(name: str) -> None:
    p, q = random_laws(2, VOCAB, 11, flat=2.0)
    if name.startswith("fuzzy"):
        q = (p + q) / 2  # close enough to take the draft's law
    law = chain_law(p, q, RELAXATIONS[name])
    tokens, step_tv = first_tokens(p, q, RELAXATIONS[name])
    assert abs(z_score(tokens, law)) < 4.5
    deviation = float(total_variation(p, law))
    assert float(step_tv.max()) == pytest.approx(deviation, abs=1e-5)
    assert float(step_tv.min()) == pytest.approx(deviation, abs=1e-5)
    if name != "exact":  # the statistic sees that the law is not the target's
        assert deviation > 0.02
        assert z_score(tokens, p) > 8


def test_a_wrong_correction_is_found() -> None:
    """Drawing the correction from p, as some code does, gives another law."""

    class FromTarget(Exact):
        def correct(self, p: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
            return p, torch.zeros_like(p[:, 0])

    p, q = random_laws(2, VOCAB, 11, flat=2.0)
    assert abs(z_score(first_tokens(p, q, Exact())[0], p)) < 4.5
    assert z_score(first_tokens(p, q, FromTarget())[0], p) > 8
