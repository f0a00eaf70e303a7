"""One round of speculative Jacobi decoding equals the reference implementation, given its uniforms and fresh draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.ratio import RatioAcceptance, draft_lengths, log_ratio
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.sampling import SamplingParams
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, residual
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.jacobi import JacobiDrafter


class RecordedNoise:
    """Gives the recorded uniforms to the rule, and makes every draw of the drafter return the recorded fresh token."""

    def __init__(self, uniform: Tensor, fresh: Tensor, p: Tensor) -> None:
        self.recorded, self.vocab_size = uniform, p.shape[-1]
        p = p.double()
        self.draws = (p.cumsum(-1) - p / 2).gather(-1, fresh[:, None])[:, 0]  # inside the token's own interval

    def uniform(self, stream: Stream, *keys: Tensor) -> Tensor:
        if stream == Stream.DRAFT:
            return self.draws[None]
        assert stream == Stream.ACCEPT
        return self.recorded[None]

    def gumbel(self, stream: Stream, keys: Tensor) -> Tensor:
        return torch.zeros(1, keys.shape[1], self.vocab_size)  # takes the most likely correction


def cases(golden: Path) -> tuple[list[dict[str, Any]], int]:
    stored = json.loads((golden / "sjd" / "verify.json").read_text())
    return stored["cases"], stored["V"]


@pytest.mark.parametrize("number", range(16))
def test_round_equals_the_reference(golden: Path, number: int) -> None:
    stored, vocab_size = cases(golden)
    assert len(stored) == 16
    case = stored[number]
    p, q = torch.tensor(case["p"]), torch.tensor(case["q"])
    # the reference keeps a law beside the token drawn from it, a Draft beside the parent of that token
    log_q = torch.cat([q[1:].log(), torch.zeros(1, vocab_size)])[None]
    draft = Draft(torch.tensor([case["draft"]]), DraftLaw.SAMPLED, log_q=log_q)
    accept = log_ratio(draft, p.log()[None]).exp().clamp_max(1)
    torch.testing.assert_close(accept[0], torch.tensor(case["accept_prob"]), atol=1e-5, rtol=1e-5)

    noise: Any = RecordedNoise(torch.tensor(case["r"]), torch.tensor(case["fresh"]), p)
    zeros = torch.zeros(1, dtype=torch.long)
    context = RoundContext(
        tokens=torch.zeros(1, 20, dtype=torch.long), generated=zeros + 1, rounds=zeros, root=draft.tokens[:, 0],
        noise=noise, sampling=SamplingParams(), lowest=1, highest=1,
    )  # fmt: skip
    verdict = RatioAcceptance()(draft, p.log()[None], context)
    committed = int(verdict.num_accepted) + 1
    assert committed == case["sjd"]["matched"]
    assert verdict.tokens[0, : committed - 1].tolist() == case["sjd"]["tokens"][: committed - 1]
    if committed <= int(draft_lengths(draft)):
        law = residual(p, torch.cat([q[1:], torch.zeros(1, vocab_size)]))[committed - 1]
        torch.testing.assert_close(law / law.sum(), torch.tensor(case["sjd"]["residual"]), atol=1e-5, rtol=1e-4)

    drafter = JacobiDrafter(window=6, coupling="independent", controller="fixed")
    session: Any = drafter.session(DraftSetup(1, vocab_size, torch.device("cpu"), 20, needs_law=True))
    session.observe(context, draft, TargetOutput(p.log()[None]), verdict)
    expected = case["sjd"]["next_drafts"]
    assert int(session.filled) == len(expected)
    assert session.slots[0, : len(expected)].tolist() == expected
    laws = session.log_q[0, : len(expected)].exp()
    torch.testing.assert_close(laws, p[case["sjd"]["next_draft_q_row"]], atol=1e-6, rtol=1e-5)
