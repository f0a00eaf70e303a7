"""First guesses of clips are the same place one frame before, and stored laws are laws."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.verify import RoundContext
from mmspec.drafters.frame_laws import FrameLaws
from mmspec.drafters.initializers import FRAME_INITIALIZERS, Initializer
from mmspec.drafters.jacobi import JacobiDrafter
from tests.drafters.test_initializers import context

VOCAB, FRAME = 50, 6


def test_the_first_frame_copies_the_last_one_of_the_prompt() -> None:
    prompt = torch.arange(20, 32)[None]
    init = Initializer("copy-frame", VOCAB, 3, 0.0, frame_length=FRAME, prompt_ids=prompt)
    slots, filled = torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    guesses, _ = init(context([1]), slots, filled, 8, None, False)
    # one token is known, 0: slots 1 to 5 copy the prompt's last frame, slot 6 copies token 0, slot 7 the guess of slot 1
    assert guesses[0].tolist() == [27, 28, 29, 30, 31, 0, 27, 28]


def test_later_frames_copy_the_frame_before() -> None:
    init = Initializer("copy-frame", VOCAB, 3, 0.0, frame_length=FRAME)
    slots, filled = torch.full((2, 9), 40), torch.tensor([2, 0])
    guesses, _ = init(context([8, 13]), slots, filled, 9, None, False)
    assert guesses[0, 2:].tolist() == [4, 5, 6, 7, 40, 40, 4]  # slots 10 ..: 4, 5, 6, 7, then the open guesses 8 and 9
    assert guesses[1].tolist() == [17, 18, 19, 20, 21, 22, 17, 18, 19]


@pytest.mark.parametrize("kind", FRAME_INITIALIZERS)
def test_frames_are_needed(kind: str) -> None:
    with pytest.raises(ValueError, match="clips"):
        Initializer(kind, VOCAB, 5, 0.3)
    JacobiDrafter(initializer=kind)


def laws_context(rows: int, generated: int, vocab: int) -> RoundContext:
    known = torch.full((rows,), generated)
    return RoundContext(
        tokens=torch.zeros(rows, 20, dtype=torch.long), generated=known, rounds=known, root=torch.zeros_like(known),
        noise=RowNoise(torch.arange(rows), vocab), sampling=SamplingParams(), lowest=generated, highest=generated,
    )  # fmt: skip


def test_stored_laws_keep_the_top_and_spread_the_rest() -> None:
    laws = FrameLaws(4, 10, kept=3)
    scores = torch.randn(1, 4, 10, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    laws.store(torch.tensor([0]), scores)
    ctx = laws_context(1, 4, 10)
    place = torch.tensor([[4, 5, 6, 7]])
    assert bool(laws.covered(place).all())
    _, law = laws.guess(ctx, place)
    torch.testing.assert_close(law.exp().sum(-1), torch.ones(1, 4))
    top = scores.topk(3, dim=-1)
    torch.testing.assert_close(law.gather(-1, top.indices), top.values)
    rest = law.exp().scatter(-1, top.indices, 0)
    torch.testing.assert_close(rest.amax(-1), (1 - top.values.exp().sum(-1)) / 7)
    assert laws.log_p.shape == (1, 4, 3)  # what is kept does not grow with the vocabulary


def test_a_law_that_was_never_seen_covers_nothing() -> None:
    laws = FrameLaws(4, 10, kept=3)
    laws.store(torch.tensor([0]), torch.zeros(1, 2, 10).log_softmax(-1))
    assert laws.covered(torch.tensor([[2, 3, 4, 5, 6]])).tolist() == [[False, False, True, True, False]]


def test_guesses_follow_the_stored_law() -> None:
    rows, vocab = 3000, 5
    laws = FrameLaws(2, vocab, kept=2)
    law = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1])
    laws.store(torch.zeros(rows, dtype=torch.long), law.log().expand(rows, 2, -1))
    guesses, log_q = laws.guess(laws_context(rows, 2, vocab), torch.tensor([[2, 3]]).expand(rows, -1))
    for slot in range(2):
        expected = log_q[0, slot].exp() * rows
        counts = torch.bincount(guesses[:, slot], minlength=vocab)
        assert float(((counts - expected) ** 2 / expected).sum()) < 24  # 4 degrees of freedom, p = 1e-4
