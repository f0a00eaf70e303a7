"""Logits after any accept and rollback equal a fresh forward; a tree node's equal those of its root path alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.guidance import Guidance
from mmspec.core.verify import Verdict
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_target import Condition, LlamaGenModel
from mmspec.runner.memory import MemoryEstimate, check_memory, estimate_memory
from mmspec.runner.runner import Runner
from tests.oracles.tiny import tiny_transformer

ROWS, TOTAL, CLOSE = 3, 15, 1e-4
TEXT, CLASSES = "captions", "classes"


def condition(kind: str) -> Condition:
    """Three captions of 1, 4 and 8 real slots of 8, left-padded; or three classes."""
    if kind == CLASSES:
        return Condition(class_labels=torch.tensor([0, 3, 1]))
    embeds = torch.randn(ROWS, 8, 16, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(8) >= torch.tensor([7, 4, 0])[:, None]
    return Condition(caption_embeds=embeds * mask[..., None], caption_mask=mask)


def open_runner(model: LlamaGenTransformer, kind: str, guidance: Guidance, buckets: bool = False) -> Runner:
    return Runner(LlamaGenModel(model, condition(kind), guidance.branches > 1), guidance, TOTAL, 16, buckets=buckets)


def fresh_logits(model: LlamaGenTransformer, kind: str, guidance: Guidance, row: int, tokens: list[int]) -> Tensor:
    """Logits (V,) after ``tokens`` by one forward over everything, without cache or padding."""
    branches, given = [], condition(kind)
    for unconditional in range(guidance.branches):
        if kind == CLASSES:
            label = torch.tensor([model.config.num_classes]) if unconditional else given.class_labels[row : row + 1]
            prefix, length = {"class_labels": label}, 1
        else:
            real = given.caption_mask[row]
            source = model.null_caption if unconditional else given.caption_embeds[row]
            prefix, length = {"caption_embeds": source[real][None]}, int(real.sum())
        positions = torch.arange(8 - length, 8 + len(tokens))[None]
        ids = torch.tensor([tokens], dtype=torch.long) if tokens else None
        branches.append(model(ids, position_ids=positions, **prefix).logits[:, -1:])
    return guidance.merge(torch.cat(branches), torch.full((1, 1), len(tokens)))[0, 0]


CASES = pytest.mark.parametrize(
    ("kind", "guidance"),
    [(TEXT, Guidance(1.0)), (TEXT, Guidance(2.0)), (TEXT, Guidance(3.0, last_index=4)), (CLASSES, Guidance(2.0))],
    ids=["text", "text-cfg", "text-cfg-until", "class-cfg"],
)


@torch.no_grad()
@CASES
@pytest.mark.parametrize("buckets", [False, True], ids=["exact-shapes", "buckets"])
def test_logits_after_ragged_accepts_equal_a_fresh_forward(kind: str, guidance: Guidance, buckets: bool) -> None:
    model, generator = tiny_transformer(), torch.Generator().manual_seed(0)
    runner = open_runner(model, kind, guidance, buckets)
    logits = runner.prefill().logits
    for row in range(ROWS):
        torch.testing.assert_close(
            logits[row, 0], fresh_logits(model, kind, guidance, row, []), atol=CLOSE, rtol=CLOSE
        )
    committed = [[int(logits[row, 0].argmax())] for row in range(ROWS)]
    for nodes in (4, 1, 5, 3):
        drafted = torch.randint(24, (ROWS, nodes), generator=generator)
        drafted[:, 0] = torch.tensor([tokens[-1] for tokens in committed])
        logits = runner.verify(Draft(drafted, DraftLaw.DETERMINISTIC), max(map(len, committed))).logits
        for row, tokens in enumerate(committed):
            for node in range(nodes):
                if len(tokens) + node >= TOTAL:
                    continue
                wanted = fresh_logits(model, kind, guidance, row, [*tokens, *drafted[row, 1 : node + 1].tolist()])
                torch.testing.assert_close(logits[row, node], wanted, atol=CLOSE, rtol=CLOSE)
        accepted = torch.randint(nodes, (ROWS,), generator=generator)
        runner.commit(Verdict(accepted, accepted, drafted), accepted + 1)
        for row, count in enumerate(accepted.tolist()):
            committed[row] += [*drafted[row, 1 : count + 1].tolist(), int(logits[row, count].argmax())]


@torch.no_grad()
@CASES
def test_tree_nodes_and_their_commit_equal_the_root_path_alone(kind: str, guidance: Guidance) -> None:
    model = tiny_transformer()
    runner = open_runner(model, kind, guidance)
    first = runner.prefill().logits[:, 0].argmax(-1)
    parent = torch.tensor([[0, 0, 0, 1, 1, 2, 3], [0, 0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0, 0]])
    tokens = torch.randint(24, parent.shape, generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = first
    draft = Draft(tokens, DraftLaw.DETERMINISTIC, parent=parent)
    logits = runner.verify(draft, 1).logits
    for row in range(ROWS):
        for node in range(7):
            path = draft.ancestors[row, node].nonzero()[:, 0]
            wanted = fresh_logits(model, kind, guidance, row, tokens[row, path].tolist())
            torch.testing.assert_close(logits[row, node], wanted, atol=CLOSE, rtol=CLOSE)
    path = torch.tensor([[0, 1, 3, 6, 6, 6, 6], [0, 1, 2, 2, 2, 2, 2], [0, 5, 5, 5, 5, 5, 5]])
    kept = torch.tensor([4, 3, 2])
    runner.commit(Verdict(kept - 1, first, tokens, path=path), kept)
    after = runner.verify(Draft(torch.tensor([[7], [8], [9]]), DraftLaw.DETERMINISTIC), 5).logits
    for row in range(ROWS):
        past = [*tokens[row, path[row, : kept[row]]].tolist(), 7 + row]
        wanted = fresh_logits(model, kind, guidance, row, past)
        torch.testing.assert_close(after[row, 0], wanted, atol=CLOSE, rtol=CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("count", [0, 1, 3])
def test_rollback_then_other_tokens_equals_a_fresh_forward(count: int) -> None:
    model, guidance = tiny_transformer(), Guidance(2.0)
    runner = open_runner(model, TEXT, guidance)
    runner.prefill()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    runner.verify(Draft(tokens, DraftLaw.DETERMINISTIC), 1)
    runner.commit(Verdict(torch.full((3,), 3), tokens[:, 0], tokens), torch.full((3,), 4))
    runner.rollback(torch.full((3,), count))
    logits = runner.verify(Draft(torch.full((3, 1), 20), DraftLaw.DETERMINISTIC), 5 - count).logits
    for row in range(ROWS):
        wanted = fresh_logits(model, TEXT, guidance, row, [*tokens[row, : 4 - count].tolist(), 20])
        torch.testing.assert_close(logits[row, 0], wanted, atol=CLOSE, rtol=CLOSE)


@torch.no_grad()
def test_unconditional_branch_does_not_see_the_caption() -> None:
    """Fault 21: another caption under the same padding leaves the unconditional logits bit for bit as they are."""
    model = tiny_transformer()
    given = condition(TEXT)
    outputs = []
    for scale in (1.0, -2.0):
        other = Condition(caption_embeds=given.caption_embeds * scale, caption_mask=given.caption_mask)
        runner = Runner(LlamaGenModel(model, other, guided=True), Guidance(0.0), TOTAL, 4)
        runner.prefill()
        tokens = torch.tensor([[1, 2], [3, 4], [5, 6]])
        outputs.append(runner.verify(Draft(tokens, DraftLaw.DETERMINISTIC), 1).logits)
    assert torch.equal(*outputs)


@torch.no_grad()
def test_scale_one_runs_half_the_rows() -> None:
    model = tiny_transformer()
    for scale, rows in ((1.0, ROWS), (2.0, 2 * ROWS)):
        assert open_runner(model, TEXT, Guidance(scale)).cache.num_rows == rows


@torch.no_grad()
def test_selected_rows_go_on_as_before() -> None:
    model, guidance = tiny_transformer(), Guidance(2.0)
    runner = open_runner(model, TEXT, guidance)
    runner.prefill()
    runner.select_rows(torch.tensor([2, 0]))
    logits = runner.verify(Draft(torch.tensor([[4, 5], [6, 7]]), DraftLaw.DETERMINISTIC), 1).logits
    for place, row, tokens in ((0, 2, [4, 5]), (1, 0, [6, 7])):
        wanted = fresh_logits(model, TEXT, guidance, row, tokens)
        torch.testing.assert_close(logits[place, 1], wanted, atol=CLOSE, rtol=CLOSE)


def test_estimate_counts_cache_logits_and_noise() -> None:
    figures = {"branches": 2, "capacity": 100, "max_nodes": 8, "vocab_size": 1000, "cache_bytes_per_slot": 64}
    one, four = (estimate_memory(rows=rows, **figures) for rows in (1, 4))
    assert one.cache == 2 * 100 * 64
    assert four.total == 4 * one.total
    assert estimate_memory(rows=1, decode=1 << 40, **figures).total == 1 << 40


def test_a_call_that_does_not_fit_raises_with_figures_and_remedy() -> None:
    huge = MemoryEstimate(cache=1 << 50, logits=0, noise=0)
    with pytest.raises(MemoryError, match=r"1048576\.00 GiB.*cpu has [\d.]+ GiB free.*Use less\."):
        check_memory(huge, torch.device("cpu"), "Use less.")
    check_memory(MemoryEstimate(1, 1, 1), torch.device("cpu"), "Use less.")
