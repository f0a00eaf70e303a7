"""Logits become the law that the reference implementation draws from; ties and bad values have one right answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from mmspec.core.sampling import SamplingParams, draw, draw_by_inversion, draw_token, process


def test_filter_equals_the_reference(golden: Path) -> None:
    stored = load_file(golden / "llamagen" / "sampling_filter.safetensors")
    cases = [name for name in stored if name.startswith("probs")]
    assert len(cases) == 4
    for name in cases:
        top_k, top_p, temperature = re.fullmatch(r"probs_k(\d+)_p([\d.]+)_T([\d.]+)", name).groups()
        params = SamplingParams(float(temperature), int(top_k), float(top_p))
        law = process(stored["logits"], params).softmax(-1)
        torch.testing.assert_close(law, stored[name], atol=1e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
        assert torch.equal(law > 0, stored[name] > 0)


def test_temperature_zero_takes_the_lowest_of_tied_tokens() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0], [0.0, -1.0, 5.0, 5.0]])
    scores = process(logits, SamplingParams(temperature=0))
    assert scores.softmax(-1).argmax(-1).tolist() == [1, 0, 2]
    assert torch.equal((scores > -torch.inf).sum(-1), torch.ones(3, dtype=torch.long))


def test_top_k_keeps_ties_with_the_kth_token() -> None:
    scores = process(torch.tensor([3.0, 2.0, 2.0, 1.0]), SamplingParams(top_k=2))
    assert (scores > -torch.inf).tolist() == [True, True, True, False]


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (process(logits, SamplingParams(top_p=0.6)) > -torch.inf).tolist() == [True, True, False, False]


def test_min_p_is_relative_to_the_most_likely_token() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (process(logits, SamplingParams(min_p=0.5)) > -torch.inf).tolist() == [True, True, False, False]


def test_order_is_temperature_then_top_k_then_top_p() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # among the two of top-k, token 0 holds 4/7; without top-k first, 0.4 would not reach 0.5
    scores = process(logits, SamplingParams(top_k=2, top_p=0.5))
    assert (scores > -torch.inf).tolist() == [True, False, False, False]


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=12),
    temperature=st.sampled_from([0, 1e-3, 0.3, 1.0, 7.0]),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.9),
)
def test_some_token_always_survives(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    raw = torch.tensor(logits)
    scores = process(raw, SamplingParams(temperature, top_k, top_p, min_p))
    law = scores.softmax(-1)
    assert bool(law.isfinite().all())
    assert abs(float(law.sum()) - 1) < 1e-5
    assert raw[scores.argmax()] == raw.max()


def test_draw_never_returns_a_token_outside_the_support() -> None:
    scores = torch.full((1000, 6), -torch.inf)
    scores[:, 4] = -80.0
    gumbel = torch.full((1000, 6), 30.0)
    gumbel[:, 4] = -4.0
    assert bool((draw(scores, gumbel) == 4).all())


def test_process_leaves_its_input_alone() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    process(logits, SamplingParams(0.7, 3, 0.8, 0.1))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"temperature": -0.1}, ValueError),
        ({"temperature": float("nan")}, ValueError),
        ({"temperature": float("inf")}, ValueError),
        ({"temperature": "hot"}, TypeError),
        ({"temperature": True}, TypeError),
        ({"top_k": -1}, ValueError),
        ({"top_k": 2.5}, ValueError),
        ({"top_k": None}, TypeError),
        ({"top_p": 0.0}, ValueError),
        ({"top_p": 1.01}, ValueError),
        ({"min_p": 1.0}, ValueError),
        ({"min_p": -0.1}, ValueError),
    ],
)
def test_bad_settings_are_refused_by_name(setting: dict, error: type[Exception]) -> None:
    [name] = setting
    with pytest.raises(error, match=name):
        SamplingParams(**setting)


def test_top_k_above_the_vocabulary_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"8.*got 9"):
        SamplingParams(top_k=9).check_vocabulary(8)
    SamplingParams(top_k=8).check_vocabulary(8)
    SamplingParams(top_k=0).check_vocabulary(8)


@pytest.mark.parametrize("top_k", [0, 1, 3, 8])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_shortcut_draws_what_the_truncated_law_draws(top_k: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(top_k)
    logits = torch.randn(200, 4, 8, generator=generator).round(decimals=1)  # with ties
    gumbel = -torch.rand(200, 4, 8, generator=generator).log().neg().log()
    params = SamplingParams(temperature=temperature, top_k=top_k)
    for rows in (slice(None), slice(0, 1)):  # one row mostly takes the shortcut, all of them mostly do not
        expected = draw(process(logits[rows], params), gumbel[rows])
        assert torch.equal(draw_token(logits[rows], params, gumbel[rows]), expected)


def test_inversion_draws_the_law_and_never_a_token_of_weight_zero() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.0])
    uniform = (torch.arange(4000).double() + 0.5) / 4000
    counts = torch.bincount(draw_by_inversion(weights.expand(4000, 5), uniform), minlength=5)
    assert counts.tolist() == [0, 3000, 0, 1000, 0]
    edges = torch.tensor([2.0**-60, 1 - 2.0**-53], dtype=torch.float64)
    assert draw_by_inversion(weights.expand(2, 5), edges).tolist() == [1, 3]
