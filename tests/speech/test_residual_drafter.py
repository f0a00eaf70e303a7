"""Residual drafting on the native talker: drafts, layouts and batches never change a code; laws hold position by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.ratio import RatioAcceptance
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.trees import static_tree
from mmspec.drafters.fingerprint import check_fingerprint, fingerprint
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.speech.code_sampling import CodeLaw, CodeSampling
from mmspec.speech.residual_drafter import ResidualDrafter, ResidualSession
from mmspec.speech.residual_heads import ResidualHeads
from mmspec.speech.talker import SpeechTalker
from mmspec.speech.talker_model import TalkerModel
from tests.oracles.synthesis import BOOKS, CODES, decode_frames, tiny_heads, tiny_talker

FRAMES, SEEDS, LENGTHS = 5, [1, 2, 3], [5, 9, 3]
KINDS = [None, "offset", "gated", "medusa", "chained", "lookahead"]


@pytest.fixture(scope="module")
def talker() -> SpeechTalker:
    return tiny_talker()


def model_of(talker: SpeechTalker, rows: tuple[int, ...], frames: int = FRAMES) -> TalkerModel:
    texts = [torch.randint(1, 31, (1, LENGTHS[r]), generator=torch.Generator().manual_seed(r)) for r in rows]
    with torch.no_grad():
        return TalkerModel(talker, [talker.read(text[0]) for text in texts], frames)


def drafter_of(kind: str | None, **settings: Any) -> ResidualDrafter:
    return ResidualDrafter(heads=None if kind is None else tiny_heads(kind), **settings)


@pytest.fixture(scope="module")
def plain(talker: SpeechTalker) -> list[list[int]]:
    return [decode_frames(model_of(talker, (row,)), [SEEDS[row]], FRAMES).rows[0] for row in range(3)]


@pytest.mark.parametrize("siblings", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_same_codes(kind: str | None, siblings: int, talker: SpeechTalker, plain: list[list[int]]) -> None:
    drafter = drafter_of(kind, siblings=siblings, node_cost=0.0)
    for layout in ("chain", "fixed"):
        for row in (0, 1):
            decoded = decode_frames(model_of(talker, (row,)), [SEEDS[row]], FRAMES, drafter, layout=layout)
            assert decoded.rows[0] == plain[row]
            assert decoded.target.talker_calls == FRAMES
            assert FRAMES <= decoded.target.predictor_calls <= FRAMES * (BOOKS - 1)
    assert decode_frames(model_of(talker, (0, 1, 2)), SEEDS, FRAMES, drafter).rows == plain


@pytest.mark.parametrize("kind", [None, "medusa", "chained"])
def test_branches_are_verified_in_fewer_calls(kind: str | None, talker: SpeechTalker) -> None:
    """Random guesses seldom are right, more of them more often; codes stay the same."""
    calls, rows, widest = [], [], []
    for siblings in (1, 6):
        drafter = drafter_of(kind, siblings=siblings, node_cost=0.0, adaptive=False)
        decoded = decode_frames(model_of(talker, (0,), 30), [5], 30, drafter)
        calls.append(decoded.target.predictor_calls)
        rows.append(decoded.rows)
        widest.append(max(decoded.stats.widths))
    assert rows[0] == rows[1]
    assert calls[1] < calls[0]
    assert widest[1] > BOOKS > widest[0] - 1


def test_a_branching_call_gives_the_hidden_states_of_its_paths() -> None:
    """Each node's output is that behind its own path alone, and a path that is kept is as if it had been run by itself."""
    tree = static_tree([[0], [1], [0, 0], [1, 0], [1, 1]])
    ancestors = Draft(torch.tensor([tree.parent]), DraftLaw.COUPLED, parent=torch.tensor([tree.parent])).ancestors[0]
    depth = torch.tensor(tree.depth)
    codes = torch.randint(0, CODES, (1, tree.num_nodes), generator=torch.Generator().manual_seed(1))
    model = model_of(tiny_talker(books=6), (0,))
    with torch.no_grad():
        states = model.prefill()[1]
        known = torch.tensor([[3]])
        inner = model.open_inner()
        inner.extend(model.inner_inputs(states, known, 0))
        inner.keep(2)
        inputs = model.level_inputs(None, codes, 1, tree.sizes)
        hidden = inner.branch(inputs, depth, ancestors)
        logits = model.level_logits(hidden, 2, tree.sizes)
        for node in range(tree.num_nodes):
            path = [m for m in range(tree.num_nodes) if ancestors[node, m]]
            alone = model.inner(states, torch.cat([known, codes[:, path]], dim=1))[:, -1:]
            assert torch.allclose(hidden[:, node], alone[:, 0], atol=1e-5)
            assert torch.allclose(
                logits[:, node], model.head(alone, torch.tensor([2 + len(path) - 1]))[:, 0], atol=1e-5
            )
        inner.keep_path(torch.tensor([0, 2, 5]), 5)
        last = torch.tensor([[7]])
        ours = inner.extend(model.inner_inputs(None, last, 4))
        path_codes = torch.cat([known, codes[:, [0, 2, 5]], last], dim=1)
        assert torch.allclose(ours, model.inner(states, path_codes)[:, -1:], atol=1e-5)


def test_families_without_branches_and_batches_draft_chains(talker: SpeechTalker, plain: list[list[int]]) -> None:
    drafter = drafter_of("chained", siblings=4, node_cost=0.0, adaptive=False)
    decoded = decode_frames(model_of(talker, (0, 1, 2)), SEEDS, FRAMES, drafter)
    assert decoded.rows == plain
    assert max(decoded.stats.widths) <= BOOKS
    star = Draft(torch.zeros(1, 3).long(), DraftLaw.COUPLED, parent=torch.zeros(1, 3).long())
    with pytest.raises(TypeError, match="trees of its own"):
        decoded.target.verify(star, 0)


def test_jacobi_drafts_too(talker: SpeechTalker, plain: list[list[int]]) -> None:
    drafter = JacobiDrafter(window=BOOKS, controller="fixed")
    assert decode_frames(model_of(talker, (0, 1, 2)), SEEDS, FRAMES, drafter).rows == plain


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_end_apart_equal_solo(seed: int, talker: SpeechTalker) -> None:
    """Rows leave in the midst of their neighbours' frames: layout and lengths must not shift."""
    seeds, end = [seed * 10, seed * 10 + 1, seed * 10 + 2], talker.config.end_code
    sampling = CodeSampling(SamplingParams(1.5), SamplingParams(1.0, 6))
    solo = [
        decode_frames(model_of(talker, (row,), 8), [seeds[row]], 8, sampling=sampling, end=end).rows[0]
        for row in range(3)
    ]
    both = decode_frames(
        model_of(talker, (0, 1, 2), 8), seeds, 8, drafter_of("chained"), sampling=sampling, end=end
    ).rows
    assert both == solo


def test_the_end_lies_where_plain_decoding_has_it(talker: SpeechTalker) -> None:
    """An end that is drawn right behind a fully accepted frame is the last token, and no frame follows."""
    end, ended = talker.config.end_code, 0
    sampling = CodeSampling(SamplingParams(2.0), SamplingParams(0.0))
    for seed in range(3):
        plain = decode_frames(model_of(talker, (0,), 24), [seed], 24, sampling=sampling, end=end)
        spec = decode_frames(model_of(talker, (0,), 24), [seed], 24, drafter_of(None), sampling=sampling, end=end)
        assert spec.rows == plain.rows
        if plain.rows[0][-1] == end:
            ended += 1
            assert len(plain.rows[0]) % BOOKS == 1
            assert spec.stats.rows[0].finish_reason == "stop"
    assert ended


def test_settings_of_each_book(talker: SpeechTalker) -> None:
    """Books with temperatures and cuts of their own, greedy ones among them."""
    rest = (SamplingParams(0.0), SamplingParams(0.7, 3), SamplingParams(1.3, 0, 0.8))
    sampling = CodeSampling(SamplingParams(0.9, 4), rest)
    plain = decode_frames(model_of(talker, (0, 1)), [7, 8], FRAMES, sampling=sampling)
    spec = decode_frames(model_of(talker, (0, 1)), [7, 8], FRAMES, drafter_of("gated"), sampling=sampling)
    assert spec.rows == plain.rows
    with pytest.raises(ValueError, match="3 residual codes"):
        CodeSampling(SamplingParams(), rest[:2]).of_books(BOOKS)


def test_repetition_penalty_of_code_0(talker: SpeechTalker) -> None:
    """Greedy codes 0 are those that transformers' processor makes the likeliest; drafts and batches change none."""
    greedy = SamplingParams(0.0)
    sampling = CodeSampling(greedy, SamplingParams(0.8, 6), repetition_penalty=1.7)
    frames, penalise = 8, RepetitionPenaltyLogitsProcessor(1.7)
    decoded = decode_frames(
        model_of(talker, (0, 1, 2), frames), SEEDS, frames, drafter_of("chained"), sampling=sampling
    )
    changed = 0
    for row in range(3):
        plain = decode_frames(model_of(talker, (row,), frames), [SEEDS[row]], frames, sampling=sampling).rows[0]
        assert decoded.rows[row] == plain
        codes, model = torch.tensor(plain).view(frames, BOOKS), model_of(talker, (row,), frames)
        with torch.no_grad():
            logits = torch.cat(
                [model.prefill()[0], *(model.advance(None, codes[t : t + 1])[0] for t in range(frames))]
            )
        logits = logits.masked_fill(~model.allowed()[0], -torch.inf)
        for t in range(frames):
            lowered = penalise(codes[None, :t, 0], logits[t : t + 1]) if t else logits[:1]
            assert int(codes[t, 0]) == int(lowered.argmax())
            changed += int(lowered.argmax()) != int(logits[t].argmax())
    assert changed


# --- laws


class TableFrames:
    """A frame model of three codes over five tokens whose every law can be enumerated."""

    num_codebooks, vocab_size, width = 3, 5, 6
    device = torch.device("cpu")

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(4)
        self.rows = rows
        self.vectors = torch.randn(3, 5, self.width, generator=generator)
        self.heads = 1.5 * torch.randn(2, 5, self.width, generator=generator)
        self.state = torch.randn(1, self.width, generator=generator)
        self.first = torch.randn(1, 5, generator=generator)

    def allowed(self) -> Tensor:
        return torch.ones(2, 5, dtype=torch.bool)

    def prefill(self) -> tuple[Tensor, Tensor]:
        return self.first.expand(self.rows, -1), self.state.expand(self.rows, -1)

    def inner(self, states: Tensor, codes: Tensor) -> Tensor:
        books = torch.arange(codes.shape[1])
        parts = torch.cat([states[:, None], self.vectors[books, codes]], dim=1)
        return parts.cumsum(1).tanh()

    def head(self, hidden: Tensor, books: Tensor) -> Tensor:
        heads = self.heads[(books - 1).clamp(0, 1)]
        return torch.einsum("bne,nve->bnv" if books.ndim == 1 else "bne,bnve->bnv", hidden, heads)

    def start_state(self, states: Tensor) -> Tensor:
        return states

    def code_table(self) -> Tensor:
        return self.vectors

    def select_rows(self, rows: Tensor) -> None:
        self.rows = len(rows)


SAMPLING = CodeSampling(SamplingParams(1.0, 4), (SamplingParams(0.8, 3), SamplingParams(1.2, 4)))


def frame_law() -> Tensor:
    """The joint law (5, 5, 5) of a frame, by running every prefix."""
    model = TableFrames(1)
    law = CodeLaw(SAMPLING.of_books(3), model.allowed())
    joint = law.first(model.prefill()[0]).softmax(-1)[0][:, None, None].expand(5, 5, 5).clone()
    for first in range(5):
        for second in range(5):
            hidden = model.inner(model.state, torch.tensor([[first, second]]))
            books = torch.tensor([1, 2])
            p = law.rest(model.head(hidden[:, 1:], books), books[None]).softmax(-1)[0]
            joint[first, second] *= p[0, second] * p[1]
    return joint


def counts_of(drafter: ResidualDrafter, rule: Any, rows: int = 4000) -> Tensor:
    model: Any = TableFrames(rows)
    decoded = decode_frames(model, list(range(rows)), 1, drafter, rule, SAMPLING, layout="fixed")
    assert (
        sum(row.accepted for row in decoded.stats.rows) > rows // 10
    )  # something is accepted, so something is tested
    tokens = torch.tensor(decoded.rows)
    return torch.bincount(tokens[:, 0] * 25 + tokens[:, 1] * 5 + tokens[:, 2], minlength=125)


def deviates(counts: Tensor, law: Tensor) -> float:
    """Pearson's statistic in standard deviations from its mean; cells with few expected counts are pooled."""
    expected = law.flatten().double() * counts.sum()
    assert int(counts[expected < 1e-9].sum()) == 0  # nothing outside the cut
    few = expected < 5
    pairs = [(counts[~few].double(), expected[~few]), (counts[few].sum()[None].double(), expected[few].sum()[None])]
    observed, wanted = (torch.cat(column) for column in zip(*pairs, strict=True))
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("coupling", "rule"),
    [("gumbel", CoupledAcceptance()), ("independent", RatioAcceptance())],
    ids=["coupled", "ratio"],
)
def test_law_of_a_frame(coupling: str, rule: Any) -> None:
    drafter = ResidualDrafter(coupling=coupling, adaptive=False, heads=ResidualHeads("offset", 3, 6, 6))
    assert abs(deviates(counts_of(drafter, rule), frame_law())) < 4


def test_a_false_law_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the ratio rule with a draft law that is not the one the codes were drawn from."""
    draw = ResidualSession._draw

    def lying(self: ResidualSession, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        tokens, log_q = draw(self, *arguments)
        assert log_q is not None
        return tokens, torch.full_like(log_q, -torch.tensor(5.0).log().item())

    monkeypatch.setattr(ResidualSession, "_draw", lying)
    drafter = ResidualDrafter(coupling="independent", adaptive=False, heads=ResidualHeads("offset", 3, 6, 6))
    tokens = counts_of(drafter, RatioAcceptance())
    law = frame_law().flatten()
    inside = law > 1e-9
    assert deviates(tokens[inside], law[inside] / law[inside].sum()) > 8


def test_wrong_heads_are_found() -> None:
    """Negative control: heads that are one book off give another law."""

    class Shifted(TableFrames):
        def head(self, hidden: Tensor, books: Tensor) -> Tensor:
            return super().head(hidden, 3 - books)

    model: Any = Shifted(4000)
    rows = decode_frames(model, list(range(4000)), 1, sampling=SAMPLING, layout="fixed").rows
    tokens = torch.tensor(rows)
    counts = torch.bincount(tokens[:, 0] * 25 + tokens[:, 1] * 5 + tokens[:, 2], minlength=125)
    law = frame_law().flatten()
    assert int(counts[law < 1e-9].sum()) > 0 or deviates(counts, law) > 8


# --- the object


PRIOR = [[[0.9, 0.05], [0.8], [0.7]], [[0.9], [0.8]], [[0.9, 0.02]]]


def test_saving(tmp_path: Path, talker: SpeechTalker, plain: list[list[int]]) -> None:
    drafter = drafter_of("chained", prior=PRIOR, node_cost=0.1, siblings=2)
    drafter.save_pretrained(tmp_path)
    again = ResidualDrafter.from_pretrained(tmp_path)
    assert (again.kind, again.config.prior, again.config.node_cost, again.max_siblings) == ("chained", PRIOR, 0.1, 2)
    assert again.heads is not None
    assert all(torch.equal(a, b) for a, b in zip(again.heads.parameters(), drafter.heads.parameters(), strict=True))  # type: ignore[union-attr]
    assert decode_frames(model_of(talker, (0,)), [SEEDS[0]], FRAMES, again).rows[0] == plain[0]


def test_another_target_is_refused(talker: SpeechTalker) -> None:
    heads = ResidualHeads("chained", BOOKS, 24, 32, 8, target=fingerprint(talker))
    ResidualDrafter(heads=heads).check_target(talker)
    with pytest.raises(ValueError, match="other weights"):
        ResidualDrafter(heads=heads).check_target(tiny_talker(seed=1))


def test_prints_from_before_a_setting_hold_for_its_default(talker: SpeechTalker) -> None:
    old = fingerprint(talker)
    del old["settings"]["frame_stack"]
    check_fingerprint(old, talker)
    with pytest.raises(ValueError, match="`frame_stack` 1 instead of 2"):
        check_fingerprint(old, tiny_talker(frame_stack=2))


def test_bad_settings() -> None:
    for settings, said in (
        ({"num_draft_codes": 0}, "num_draft_codes"),
        ({"coupling": "maximal"}, "gumbel, independent"),
        ({"node_cost": -1.0}, "node_cost"),
        ({"siblings": 0}, "siblings"),
        ({"siblings": 2, "coupling": "independent"}, "branch with coupling 'gumbel' only"),
        ({"num_draft_codes": 65}, "at most 64"),
    ):
        with pytest.raises(ValueError, match=said):
            ResidualDrafter(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="offset, gated, medusa, chained"):
        ResidualHeads("hydra")
    with pytest.raises(ValueError, match="made for 7 codes"):
        decode_frames(model_of(tiny_talker(), (0,)), [0], 1, ResidualDrafter(heads=tiny_heads("gated", 7)))
