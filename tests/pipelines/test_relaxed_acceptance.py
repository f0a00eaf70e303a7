"""Relaxed rules in pipelines: swapped, saved, refused where they do not fit, and named in the stats."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.recursive import RecursiveAcceptance
from mmspec.core.verify import Guarantee
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.image.grouped import GroupedAcceptance
from mmspec.image.lantern import LanternAcceptance
from mmspec.image.neighbours import nearest_codes, save_table
from mmspec.pipelines.base import SpecPipeline
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.tiny import tiny_pipeline, tiny_transformer

SAMPLED = JacobiDrafter(window=6, coupling="independent", controller="fixed")
PROMPTS = ["a red apple", "the very old tree on the moon", "cat"]
CALL: dict[str, Any] = {"seed": [3, 4, 5], "output_type": "tokens"}


def rule_of(name: str, folder: Path) -> Any:
    settings = {
        "lantern": {"k": 8, "delta": 0.3, "cache_dir": str(folder)},
        "grouped": {"group_size": 6, "probability_gap": 1.0, "distance": None},
        "cool": {"delta": 1.5},
        "fuzzy": {"threshold": 0.3},
        "recursive": {},
        "threshold": {},
        "typical": {},
    }[name]
    return ACCEPTANCE_RULES.create(name, **settings)


NAMES = ["cool", "fuzzy", "grouped", "lantern", "recursive", "threshold", "typical"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_equal_solo_and_the_stats_name_the_rule(name: str, tmp_path: Path) -> None:
    pipe = tiny_pipeline(drafter=SAMPLED, acceptance=rule_of(name, tmp_path))
    together = pipe(PROMPTS, **CALL)
    for row, prompt in enumerate(PROMPTS):
        alone = pipe(prompt, seed=3 + row, output_type="tokens")
        assert torch.equal(alone.tokens[0], together.tokens[row])
    stats = together.stats
    assert stats.method == f"jacobi+{name}"
    summary = json.loads(json.dumps(stats.summary()))
    assert summary["guarantee"] == stats.guarantee.value
    if name == "recursive":
        assert stats.guarantee is Guarantee.SAME_LAW
        assert summary["step_tv_max"] == 0
    else:
        assert not stats.lossless
        assert 0 < summary["step_tv_mean"] <= summary["step_tv_max"] <= 1
    if stats.step_tv_bound is not None:
        assert stats.step_tv_max <= stats.step_tv_bound + 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_rules_survive_saving(name: str, tmp_path: Path) -> None:
    rule = rule_of(name, tmp_path / "cache")
    pipe = tiny_pipeline(drafter=SAMPLED, acceptance=rule)
    pipe.save_pretrained(tmp_path / "pipe")
    again = LlamaGenPipeline.from_pretrained(tmp_path / "pipe")
    again.set_progress_bar_config(disable=True)
    assert type(again.acceptance) is type(rule)
    assert torch.equal(again(PROMPTS, **CALL).tokens, pipe(PROMPTS, **CALL).tokens)


def test_a_bound_rule_leaves_nothing_on_the_pipeline(tmp_path: Path) -> None:
    """Call, call with another codebook, call again: the table is that of the codebook in use."""
    pipe = tiny_pipeline(drafter=SAMPLED, acceptance=rule_of("lantern", tmp_path))
    first = pipe(PROMPTS, **CALL).tokens
    before = dict(vars(pipe.acceptance))
    rows = pipe.vq.quantize.embedding.weight
    kept = rows.detach().clone()
    with torch.no_grad():
        rows.copy_(kept.flip(0).roll(5, dims=1) + torch.arange(24)[:, None] % 7)
    other = pipe(PROMPTS, **CALL).tokens
    with torch.no_grad():
        rows.copy_(kept)
    assert torch.equal(pipe(PROMPTS, **CALL).tokens, first)
    assert not torch.equal(other, first)
    assert vars(pipe.acceptance) == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("off", [{"delta": 0.0}, {"lam": 1.0}])
def test_lantern_without_relaxation_is_the_ratio_rule(off: dict[str, float], tmp_path: Path) -> None:
    exact = tiny_pipeline(drafter=SAMPLED, acceptance=ACCEPTANCE_RULES.create("ratio"))(PROMPTS, **CALL)
    pipe = tiny_pipeline(drafter=SAMPLED, acceptance=LanternAcceptance(cache_dir=str(tmp_path), **off))
    out = pipe(PROMPTS, **CALL)
    assert torch.equal(out.tokens, exact.tokens)
    assert out.stats.guarantee is Guarantee.SAME_LAW


def test_groups_of_one_are_the_ratio_rule() -> None:
    exact = tiny_pipeline(drafter=SAMPLED, acceptance=ACCEPTANCE_RULES.create("ratio"))(PROMPTS, **CALL)
    out = tiny_pipeline(drafter=SAMPLED, acceptance=GroupedAcceptance(group_size=1))(PROMPTS, **CALL)
    assert torch.equal(out.tokens, exact.tokens)


def test_chosen_drafts_keep_the_promised_bound(tmp_path: Path) -> None:
    rule = LanternAcceptance(k=24, delta=0.2, cache_dir=str(tmp_path))
    stats = tiny_pipeline(drafter=NGramDrafter(), acceptance=rule)(PROMPTS, **CALL).stats
    assert stats.guarantee is Guarantee.BOUNDED_TV
    assert stats.step_tv_bound == pytest.approx(0.2)
    assert 0 < stats.step_tv_max <= 0.2 + 1e-6


def test_a_budgeted_call_reports_its_regret() -> None:
    pipe = tiny_pipeline(drafter=JacobiDrafter(window=6, controller="fixed"), acceptance=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = pipe(PROMPTS, temperature=0, speculate=False, **CALL)
        for budget in (0.0, 0.3):
            pipe.acceptance = ACCEPTANCE_RULES.create("budgeted", budget=budget, gate=3.0)
            out = pipe(PROMPTS, temperature=0, **CALL)
            regrets = out.stats.summary()["regrets"]
            assert torch.equal(out.tokens, plain.tokens) == (budget == 0)
            assert max(regrets) <= budget * 15 + 1e-5
            assert (max(regrets) > 0) == (budget > 0)


def no_forward(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a forward ran before the error")


def test_a_table_of_another_codebook_is_refused_before_the_first_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = torch.randn(24, 4, generator=torch.Generator().manual_seed(9))
    save_table(nearest_codes(other, 23), other, tmp_path / "table")
    transformer = tiny_transformer()
    monkeypatch.setattr(transformer, "forward", no_forward)
    rule = LanternAcceptance(k=8, table=str(tmp_path / "table"))
    pipe = tiny_pipeline(drafter=SAMPLED, acceptance=rule, transformer=transformer)
    with pytest.raises(ValueError, match="another codebook"):
        pipe(PROMPTS, **CALL)


def test_a_target_without_codebook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaGenPipeline, "token_vectors", SpecPipeline.token_vectors)
    for rule in (LanternAcceptance(), GroupedAcceptance()):
        with pytest.raises(ValueError, match="codebook"):
            tiny_pipeline(drafter=SAMPLED, acceptance=rule)(PROMPTS, **CALL)


def test_every_rule_is_public() -> None:
    for name in ACCEPTANCE_RULES.names:
        assert type(ACCEPTANCE_RULES.create(name)).__name__ in mmspec.__all__
    assert isinstance(ACCEPTANCE_RULES.create("recursive"), RecursiveAcceptance)
