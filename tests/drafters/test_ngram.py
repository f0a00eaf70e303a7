"""Prompt lookup copies what followed the latest occurrence of the longest matching suffix, row by row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import RoundContext
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.ngram import NGramDrafter
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import TableTarget, random_table

BUDGET = 12


def propose(prompts: list[list[int]], outputs: list[list[int]], width: int, max_ngram: int = 3) -> list[list[int]]:
    """The valid draft tokens of each row."""
    longest = max(len(prompt) for prompt in prompts)
    padded = torch.tensor([[*prompt, *[-1] * (longest - len(prompt))] for prompt in prompts]).reshape(len(prompts), -1)
    tokens = torch.tensor([[*output, *[0] * (BUDGET - len(output))] for output in outputs])
    lengths = [len(output) for output in outputs]
    generated = torch.tensor(lengths)
    context = RoundContext(
        tokens=tokens, generated=generated, rounds=generated, root=tokens.gather(1, generated[:, None] - 1)[:, 0],
        noise=RowNoise(generated, 9), sampling=SamplingParams(), lowest=min(lengths), highest=max(lengths),
    )  # fmt: skip
    drafter = NGramDrafter(num_draft_tokens=width - 1, max_ngram=max_ngram)
    setup = DraftSetup(len(prompts), 9, torch.device("cpu"), BUDGET, prompt_ids=padded.long())
    draft = drafter.session(setup).propose(context, width)
    assert draft.num_nodes <= width
    assert draft.tokens[:, 0].tolist() == context.root.tolist()
    assert draft.valid is not None
    return [row[valid][1:].tolist() for row, valid in zip(draft.tokens, draft.valid, strict=True)]


def naive(history: list[int], count: int, max_ngram: int) -> list[int]:
    for size in range(min(max_ngram, len(history) - 1), 0, -1):
        suffix = history[-size:]
        for begin in range(len(history) - size - 1, -1, -1):
            if history[begin : begin + size] == suffix:
                return history[begin + size : begin + size + count]
    return []


ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), min_size=1, max_size=BUDGET)),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, width=st.integers(2, 6), max_ngram=st.integers(1, 4))
def test_latest_longest_match_is_copied(rows: list[tuple[list[int], list[int]]], width: int, max_ngram: int) -> None:
    drafted = propose([p for p, _ in rows], [o for _, o in rows], width, max_ngram)
    for (prompt, output), found in zip(rows, drafted, strict=True):
        assert found == naive([*prompt, *output], width - 1, max_ngram)


def test_longer_suffixes_win_over_later_matches() -> None:
    assert propose([[1, 2, 3, 8, 3, 7]], [[1, 2, 3]], 2) == [[8]]
    assert propose([[1, 2, 3, 8, 3, 7]], [[1, 2, 3]], 2, max_ngram=1) == [[7]]


def test_the_latest_of_equal_matches_wins() -> None:
    assert propose([[5, 1, 5, 2, 5, 3]], [[5]], 2) == [[3]]


def test_padding_of_short_prompts_is_never_matched_or_copied() -> None:
    """The prompt's end and the output's start are neighbours in every row, however much padding lies between."""
    alone = [propose([p], [o], 5)[0] for p, o in (([4, 5], [6, 4, 5]), ([1, 2, 3, 4, 5, 6, 7], [2, 3]))]
    assert propose([[4, 5], [1, 2, 3, 4, 5, 6, 7]], [[6, 4, 5], [2, 3]], 5) == alone
    assert alone == [[6, 4, 5], [4, 5, 6, 7]]


def test_no_match_means_a_plain_round() -> None:
    assert propose([[1, 2, 3]], [[4]], 6) == [[]]
    assert propose([[]], [[4]], 6) == [[]]


def test_a_row_without_a_match_beside_one_with() -> None:
    assert propose([[1, 2, 3], [1, 2, 3]], [[8], [2]], 3) == [[], [3, 2]]


@pytest.mark.parametrize("max_ngram", [1, 3, 50])
@pytest.mark.parametrize("prompted", [True, False])
def test_equals_plain(prompted: bool, max_ngram: int) -> None:
    table = random_table(4, 6)
    prompt = torch.tensor([[0, 1, 2, 3, 0, 1], [2, 2, -1, -1, -1, -1]] * 20) if prompted else None
    plain, _ = decode(TableTarget(table, 6, 40), seeds(40), 10)
    drafter = NGramDrafter(num_draft_tokens=4, max_ngram=max_ngram)
    tokens, stats = decode(TableTarget(table, 6, 40), seeds(40), 10, drafter, prompt_ids=prompt)
    assert torch.equal(tokens, plain)
    assert stats.draft_forwards == 0
    assert sum(row.accepted for row in stats.rows) > 0
