"""ZipAR: the order of the paper, the tokens of the authors' code, and attention that never meets an empty cell."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from mmspec.checkpoints.llamagen import load_llamagen_transformer
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.scheduled import ScheduledDecoder, is_raster
from mmspec.core.stats import DecodeStats
from mmspec.core.target import TargetOutput
from mmspec.core.verify import Guarantee
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_target import Condition, LlamaGenModel
from mmspec.image.zipar import MODES, ZipARSchedule
from mmspec.runner.scheduled import ScheduledRunner
from mmspec.schedules import SCHEDULES
from tests.oracles.tiny import tiny_transformer

DATA = Path(__file__).parents[1] / "data" / "llamagen"
ROWS, COLUMNS, CLOSE = 3, 5, 1e-4
CELLS = ROWS * COLUMNS


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 8), columns=st.integers(1, 9), window=st.integers(1, 11), mode=st.sampled_from(MODES))
def test_every_cell_is_drawn_once_and_never_before_its_window(rows: int, columns: int, window: int, mode: str) -> None:
    steps = ZipARSchedule(window, mode).steps(rows, columns)
    drawn, fed = {0}, set()
    for step in steps:
        assert list(step.cells) == sorted(set(step.cells))
        for cell, source in zip(step.cells, step.sources, strict=True):
            assert source in drawn
            if source == cell:
                assert cell not in fed
                fed.add(cell)
            else:  # a placeholder opens a row, at the place of a cell that does not exist
                assert cell % columns == columns - 1
                assert cell not in drawn
        for cell in step.drawn:
            row, column = divmod(cell, columns)
            assert cell not in drawn
            assert row == 0 or (row - 1) * columns + min(column + window, columns) - 1 in drawn
            assert column == 0 or cell - 1 in drawn
        drawn |= set(step.drawn)
    assert drawn == set(range(rows * columns))
    assert fed >= drawn - {rows * columns - 1}
    if window >= columns or rows == 1:
        assert is_raster(steps)
        assert len(steps) + 1 == rows * columns
    else:
        assert len(steps) + 1 == 2 * columns + (rows - 2) * window


def test_an_example_of_the_order() -> None:
    """Grid of 3 x 4, window 2: row 2 begins when row 1 has two cells; cell 3, two rows above, stands in for cell 7."""
    steps = ZipARSchedule(2).steps(3, 4)
    assert [step.cells for step in steps[:5]] == [(0,), (1,), (2,), (3,), (4,)]
    assert [step.cells for step in steps[5:]] == [(5, 7), (6, 8), (7, 9), (10,)]
    assert steps[5].sources == (5, 3)
    assert all(step.cells == step.sources for step in (*steps[:5], *steps[6:]))
    assert steps[7].draws == (False, True)  # cell 7 is fed for others to see; what follows it exists


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("window", [2, 3])
@torch.no_grad()
def test_compat_returns_the_tokens_of_the_authors_code(window: int, guidance: float) -> None:
    """Greedy tokens of two classes on a 4 x 4 grid, with and without the unconditional branch, and the forwards."""
    model = load_llamagen_transformer(DATA / "c2i_tiny_weights.safetensors", image_size=64, num_heads=4)
    wanted = load_file(DATA / "zipar_tiny_io.safetensors")
    condition = Condition(class_labels=wanted["class_ids"])
    tokens, stats = decode(model, condition, Guidance(guidance), ZipARSchedule(window, "compat"), (4, 4), greedy=True)
    assert torch.equal(tokens, wanted[f"tokens_w{window}_cfg{guidance}"])
    assert stats.forwards == int(wanted[f"forwards_w{window}"])
    if (window, guidance) == (2, 2.0):  # negative control: the masked mode differs from the public code
        other, _ = decode(model, condition, Guidance(guidance), ZipARSchedule(window), (4, 4), greedy=True)
        assert not torch.equal(other, tokens)


def captions() -> Condition:
    """Three captions of 1, 4 and 8 real slots of 8, left-padded."""
    embeds = torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(8) >= torch.tensor([7, 4, 0])[:, None]
    return Condition(caption_embeds=embeds * mask[..., None], caption_mask=mask)


class Recorded(ScheduledRunner):
    """Keeps every call and its logits; cells that nothing was written to may hold ``garbage``."""

    garbage = 0.0

    def prefill(self) -> TargetOutput:
        output = super().prefill()
        self.calls: list[tuple[Tensor, list[int], Tensor, Tensor]] = []
        if self.garbage:
            generator = torch.Generator().manual_seed(9)
            for store in (*self.cache.keys, *self.cache.values):
                empty = store[:, self.model.prompt.width :]
                empty.copy_(self.garbage * torch.randn(empty.shape, generator=generator))
        return output

    def step(self, tokens: Tensor, cells: Tensor, allowed: Tensor, last: int) -> TargetOutput:
        output = super().step(tokens, cells, allowed, last)
        self.calls.append((tokens, cells.tolist(), allowed, output.logits))
        return output


def decode(
    model: LlamaGenTransformer,
    condition: Condition,
    guidance: Guidance,
    schedule: ZipARSchedule,
    grid: tuple[int, int] = (ROWS, COLUMNS),
    *,
    greedy: bool = False,
    buckets: bool = False,
    garbage: float = 0.0,
    runners: list[Recorded] | None = None,
) -> tuple[Tensor, DecodeStats]:
    adapter = LlamaGenModel(model, condition, guidance.branches > 1)
    steps = schedule.steps(*grid)
    target = Recorded(adapter, guidance, grid[0] * grid[1], 4, buckets=buckets)
    target.garbage = garbage
    if runners is not None:
        runners.append(target)
    noise = RowNoise(torch.arange(len(condition)) + 5, adapter.vocab_size)
    sampling = SamplingParams(0) if greedy else SamplingParams(0.9, 12)
    decoder = ScheduledDecoder(
        target,
        steps,
        grid[0] * grid[1],
        noise,
        sampling,
        stats := DecodeStats(),
        masked=schedule.masked,
        measure=False,
    )
    *_, last = decoder.steps()
    return last.tokens, stats


GUIDED = pytest.mark.parametrize("guidance", [Guidance(1.0), Guidance(2.0), Guidance(3.0, last_index=6)])


@torch.no_grad()
@GUIDED
@pytest.mark.parametrize("window", [1, 2, 4])
def test_logits_equal_one_forward_without_a_cache(window: int, guidance: Guidance) -> None:
    """Both branches: everything that was ever fed, in one sequence under the mask of who saw whom."""
    model, condition, runners = tiny_transformer(), captions(), []
    tokens, _ = decode(model, condition, guidance, ZipARSchedule(window), runners=runners)
    calls = runners[0].calls
    fed = torch.cat([call[0] for call in calls], dim=1)
    cells = torch.tensor([cell for call in calls for cell in call[1]])
    number = torch.tensor([i for i, call in enumerate(calls) for _ in call[1]])  # the forward of each input
    later = (cells[:, None] == cells) & (number[:, None] < number)  # placeholders are fed again
    real = ~later.any(1)
    allowed = torch.cat([call[2] for call in calls])[:, cells]  # (inputs, inputs) by cell
    seen = allowed & (number <= number[:, None]) & real | torch.eye(len(cells)).bool()
    for row in range(3):
        slots = condition.caption_mask[row]
        length = int(slots.sum())
        mask = torch.ones(length + len(cells), length + len(cells)).tril().bool()
        mask[length:, length:] = seen
        positions = torch.cat([torch.arange(8 - length, 8), 8 + cells])[None]
        branches = [condition.caption_embeds[row][slots], model.null_caption[slots]][: guidance.branches]
        outputs = [
            model(fed[row][None], caption_embeds=branch[None], position_ids=positions, attention_mask=mask[None, None])
            for branch in branches
        ]
        logits = torch.cat([output.logits[:, length:] for output in outputs])
        wanted = guidance.merge(logits, cells[None] + 1)[0]
        got = torch.cat([call[3][row] for call in calls])
        torch.testing.assert_close(got, wanted, atol=CLOSE, rtol=CLOSE)
        assert set(tokens[row].tolist()) <= set(range(24))


@torch.no_grad()
@GUIDED
def test_masked_never_attends_to_cells_that_were_never_written(guidance: Guidance) -> None:
    """Garbage in all empty slots changes no logit; in the compatible mode, the negative control, it changes the tokens."""
    model, runners = tiny_transformer(), []
    for garbage in (0.0, 30.0):
        decode(model, captions(), guidance, ZipARSchedule(2), garbage=garbage, runners=runners)
    for clean, dirty in zip(runners[0].calls, runners[1].calls, strict=True):
        assert torch.equal(clean[0], dirty[0])
        assert torch.equal(clean[3], dirty[3])
    compat = [
        decode(model, captions(), guidance, ZipARSchedule(2, "compat"), garbage=garbage)[0] for garbage in (0.0, 30.0)
    ]
    assert not torch.equal(*compat)


@torch.no_grad()
@GUIDED
@pytest.mark.parametrize("mode", MODES)
def test_static_shapes_change_no_token(guidance: Guidance, mode: str) -> None:
    runs = [
        decode(tiny_transformer(), captions(), guidance, ZipARSchedule(2, mode), buckets=buckets)[0]
        for buckets in (False, True)
    ]
    assert torch.equal(*runs)


def test_guarantee_depends_on_the_grid() -> None:
    assert ZipARSchedule(4).guarantee(3, 5) is Guarantee.HEURISTIC
    assert ZipARSchedule(5).guarantee(3, 5) is Guarantee.SAME_TOKENS
    assert ZipARSchedule(4).guarantee(1, 5) is Guarantee.SAME_TOKENS


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"window": 0}, ValueError, "0"),
        ({"window": -3}, ValueError, "-3"),
        ({"window": 2.0}, TypeError, "2.0"),
        ({"window": True}, TypeError, "True"),
        ({"window": "8"}, TypeError, "8"),
        ({"mode": "exact"}, ValueError, "compat, masked"),
        ({"measure": 1}, TypeError, "1"),
        ({"windw": 3}, TypeError, "windw"),
    ],
)
def test_bad_values_name_what_is_legal(settings: dict, error: type[Exception], named: str) -> None:
    with pytest.raises(error) as caught:
        ZipARSchedule(**settings)
    assert named in str(caught.value)


def test_the_registry_knows_it_and_names_what_it_knows() -> None:
    assert type(SCHEDULES.create("zipar", window=3)) is ZipARSchedule
    with pytest.raises(ValueError, match="zipar"):
        SCHEDULES.create("zippy")
