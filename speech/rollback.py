"""After a rejection, take the draft back to the start of the word that holds it.

The accepted part of a word may be split into tokens as only the wrong word would be, so a relaxed rule resumes before
the word (Saon et al., 2026). Exact rules need none of this: what they accept is the target's own.

Symbols: B rows, K draft tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.core.draft import Draft
from mmspec.core.verify import RoundContext, Verdict


class WordRollback:
    """An acceptance rule that keeps whole words of what ``rule`` accepts, unless it accepts the whole draft.

    Args:
        rule: The relaxed rule.
        begins_word: Which tokens begin a word (V,), see :attr:`mmspec.speech.text.TextCodec.begins_word`.
    """

    needs_law = False
    step_tv_bound = None

    def __init__(self, rule: LikelihoodAcceptance, begins_word: Tensor) -> None:
        self.rule, self.begins_word = rule, begins_word
        self.name, self.guarantee = rule.name, rule.guarantee

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        accepted = self.rule.accepted(draft, logits, context)
        return self.rule.verdict(draft, logits, context, rolled_back(draft, accepted, self.begins_word))


def rolled_back(draft: Draft, num_accepted: Tensor, begins_word: Tensor) -> Tensor:
    """Accepted draft tokens (B,) before the word of the first rejected one; all where nothing is rejected.

    The draft's own start counts as the start of a word.
    """
    if draft.num_nodes == 1:
        return num_accepted
    tokens = draft.tokens[:, 1:]
    place = torch.arange(tokens.shape[1], device=tokens.device)
    length = torch.full_like(num_accepted, len(place)) if draft.valid is None else draft.valid[:, 1:].sum(-1)
    starts = begins_word.to(tokens.device)[tokens] & (place <= num_accepted[:, None])
    last_start = torch.where(starts, place, 0).amax(-1)
    return torch.where(num_accepted < length, last_start, num_accepted)
