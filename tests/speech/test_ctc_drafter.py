"""The CTC hypothesis in the one decoding loop: exact rules return plain decoding's tokens whatever was heard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.verify import RoundContext, Verdict, chain_verdict
from mmspec.drafters.base import DraftSetup
from mmspec.speech.ctc_drafter import ON_FAIL, CTCDrafter, CTCSession, HypothesisDrafter
from mmspec.speech.presets import PRESETS, choose_preset, preset_method, verification
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

VOCAB, LENGTH, EOS = 6, 7, 5
GREEDY = SamplingParams(temperature=0)


class TokenCodec:
    """Hypotheses that are tokens: what is written counts by its length, or by where its last token occurs next."""

    def draft(self, row: Any, committed: Sequence[int]) -> list[int]:
        if not committed or committed[-1] not in row[len(committed) - 1 :]:
            return list(row[len(committed) :])
        return list(row[row.index(committed[-1], len(committed) - 1) + 1 :])

    def branches(self, row: Any, committed: Sequence[int], count: int) -> list[list[int]]:
        """The rest, and the rest with another token first and another one second."""
        rest = self.draft(row, committed)
        other = [(token + 1) % VOCAB if token < VOCAB else token for token in rest]
        return [rest, [*other[:1], *rest[1:]], [*rest[:1], *other[1:2], *rest[2:]]]


def session(rows: list[list[int]], on_fail: str = "resync", stop: int | None = None, tokens: int = 4) -> CTCSession:
    bound = HypothesisDrafter(CTCDrafter(on_fail, num_draft_tokens=tokens), rows, TokenCodec(), stop)
    return bound.session(DraftSetup(len(rows), VOCAB, torch.device("cpu"), LENGTH))


def run(
    table: Tensor, made: CTCSession | None, rows: int, rule: Any = None, sampling: SamplingParams = GREEDY, **more: Any
) -> tuple[Tensor, DecodeStats]:
    return decode(TableTarget(table, LENGTH, rows), seeds(rows), LENGTH, made, rule, sampling, width=5, **more)


def drafts_of(plain: list[int]) -> dict[str, list[int]]:
    """Right, wrong at the start, the middle and the end, cut short, too long, empty, with an early end, with unknown tokens."""
    wrong = [(token + 1) % VOCAB for token in plain]
    return {
        "right": plain, "wrong first": [wrong[0], *plain[1:]], "wrong middle": [*plain[:3], wrong[3], *plain[4:]],
        "wrong last": [*plain[:-1], wrong[-1]], "cut short": plain[:3], "too long": [*plain, 1, 2, 3, 1, 2, 3, 1, 2],
        "empty": [], "early end": [*plain[:2], EOS, *plain[2:]], "unknown": [*plain[:4], VOCAB + 3, *plain[4:]],
        "left out": [*plain[:2], *plain[3:]], "put in": [*plain[:2], wrong[2], *plain[2:]], "all wrong": wrong,
    }  # fmt: skip


@pytest.mark.parametrize("on_fail", ["resume", "resync"])
@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_exact_rules_equal_plain_for_every_draft(rule: str, on_fail: str) -> None:
    for seed in range(25):
        table = random_table(VOCAB, LENGTH, seed)
        plain, stats = run(table, None, 1, stop_tokens=(EOS,))
        length = stats.rows[0].tokens
        if length < 4:
            continue
        for rows in drafts_of(plain[0].tolist()[:length]).values():
            made = session([rows], on_fail)
            tokens, counts = run(table, made, 1, ACCEPTANCE_RULES.create(rule), stop_tokens=(EOS,))
            assert torch.equal(tokens, plain)
            assert counts.rows[0].tokens == length
            assert counts.forwards <= length


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_ragged_batch_equals_its_rows_alone(temperature: float) -> None:
    """Faults 17 and 23: drafts of every kind and length beside one another; none waits, none leaks."""
    table, sampling = random_table(VOCAB, LENGTH, 3), SamplingParams(temperature)
    first, _ = run(table, None, 12, sampling=sampling, stop_tokens=(EOS,))
    rows = [list(drafts_of(first[row].tolist()).values())[row] for row in range(12)]
    for rule in (None, LikelihoodAcceptance("rel", 0.5)):
        together, stats = run(table, session(rows), 12, rule, sampling, stop_tokens=(EOS,))
        for row in range(12):
            target = TableTarget(table, LENGTH, 1)
            alone, _ = decode(
                target, seeds(12)[row : row + 1], LENGTH, session(rows[row : row + 1]), rule, sampling, width=5,
                stop_tokens=(EOS,),
            )  # fmt: skip
            assert torch.equal(alone[0], together[row])
        if rule is None:
            assert torch.equal(together, first)
            assert stats.rows[0].rounds == 1  # the right draft is not held back by the wrong ones


def test_forwards_are_counted_as_they_should_be() -> None:
    """One for a verified draft, one and the rest when resumed, fewer when the rest is found again."""
    table = random_table(VOCAB, LENGTH, 1)
    plain, _ = run(table, None, 1)
    right = plain[0].tolist()
    wrong = [*right[:2], (right[2] + 1) % VOCAB, *right[3:]]
    assert run(table, session([right]), 1)[1].forwards == 1
    assert run(table, session([wrong], "resume"), 1)[1].forwards == 1 + LENGTH - 3
    assert run(table, session([wrong], "resync", tokens=9), 1)[1].forwards == 2
    assert run(table, session([[]], "resume"), 1)[1].forwards == LENGTH


def test_rows_that_keep_failing_draft_less() -> None:
    table = random_table(VOCAB, LENGTH, 2)
    plain, _ = run(table, None, 1)
    never = next(token for token in range(VOCAB) if token not in plain[0].tolist())
    _, stats = run(table, session([[never] * 30], tokens=6), 1)
    assert stats.forwards == LENGTH
    assert list(stats.widths) == [7, 4, 2]


class Credulous:
    """Negative control: keeps the first draft token whatever its probability."""

    needs_law = False

    def __call__(self, draft: Any, logits: Tensor, context: RoundContext) -> Verdict:
        verdict = ACCEPTANCE_RULES.create("match")(draft, logits, context)
        drafted = int(draft.num_nodes > 1)
        return chain_verdict(draft, verdict.num_accepted.clamp_min(drafted), verdict.next_token)


def test_sample_verification_keeps_the_law() -> None:
    """A fixed draft, the first three tokens: distributed as plain sampling, with truncation; the control is not."""
    count, length = 9_000, 3
    table, sampling = random_table(VOCAB, length, 7), SamplingParams(0.8, top_k=4)
    law = enumerate_law(TableTarget(table, length, 1), sampling)
    scores = {}
    for name, rule in {"sample": verification("sample"), "credulous": Credulous()}.items():
        made = session([[1, 3, 2]] * count)
        tokens, _ = decode(TableTarget(table, length, count), seeds(count), length, made, rule, sampling, width=4)
        scores[name] = z_score(string_numbers(tokens, VOCAB), law)
    assert abs(scores["sample"]) < 4
    assert scores["credulous"] > 15


def test_drafted_ends_are_judged_by_relaxed_rules() -> None:
    table = random_table(VOCAB, LENGTH, 1)
    lenient, strict = LikelihoodAcceptance("abs", 0.0), LikelihoodAcceptance("abs", 0.0, eos_threshold=1.0)
    tokens, stats = run(table, session([[1, 2]], stop=EOS), 1, lenient, stop_tokens=(EOS,))
    assert tokens[0, :3].tolist() == [1, 2, EOS]
    assert (stats.forwards, stats.rows[0].finish_reason) == (1, "stop")
    assert run(table, session([[1, 2]], "resume", stop=EOS), 1, strict, stop_tokens=(EOS,))[0][0, :2].tolist() == [
        1,
        2,
    ]


def test_presets_have_the_published_thresholds() -> None:
    assert {name: (p.entropy, p.likelihood) for name, p in PRESETS.items()} == {
        "exact": (0.0, None), "accurate": (0.0, 0.4), "balanced": (0.7, 0.2), "fast": (3.0, 0.1),
    }  # fmt: skip
    own = CTCDrafter("resume", aggregate="p95", num_draft_tokens=9)
    drafter, rule = preset_method(choose_preset("balanced", {"balanced": [0.3, 0.25]}), own)
    assert (drafter.gate.threshold, drafter.gate.aggregate, drafter.config.on_fail) == (0.3, "p95", "resync")
    assert (rule.config.test, rule.threshold, drafter.config.num_draft_tokens) == ("abs", 0.25, 9)
    assert preset_method(choose_preset("exact"), None)[1].guarantee.name == "SAME_TOKENS"
    with pytest.raises(ValueError, match="balanced"):
        choose_preset("quick")


def test_verifications_by_name() -> None:
    assert [type(verification(name)).__name__ for name in ("greedy", "sample", "abs")] == [
        "GreedyAcceptance", "MatchAcceptance", "LikelihoodAcceptance",
    ]  # fmt: skip
    assert verification("rank", 3).threshold == 3
    with pytest.raises(ValueError, match="takes no threshold"):
        verification("greedy", 0.5)
    with pytest.raises(ValueError, match="typical"):
        verification("median")


def test_settings_are_checked_and_saved(tmp_path: Any) -> None:
    for settings, message in (
        ({"on_fail": "retry"}, "resync"), ({"entropy_threshold": -1.0}, "-1"), ({"aggregate": "x"}, "p95"),
        ({"num_draft_tokens": 0}, "num_draft_tokens"), ({"empty": "x"}, "verify"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            CTCDrafter(**settings)
    CTCDrafter("resume", 0.4, "max_run", normalised=True).save_pretrained(tmp_path)
    loaded = CTCDrafter.from_pretrained(tmp_path)
    assert (loaded.config.on_fail, loaded.gate.threshold, loaded.gate.normalised) == ("resume", 0.4, True)
    assert set(ON_FAIL) == {"restart", "resume", "resync"}
    with pytest.raises(ValueError, match="SpeechRecognitionPipeline"):
        loaded.session(DraftSetup(1, VOCAB, torch.device("cpu"), 4))
