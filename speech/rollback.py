"""After a rejection, take the draft back to the start of the word that holds it.

The accepted part of a word may be split into tokens as only the wrong word would be, so a relaxed rule resumes before
the word (Saon et al., 2026). A part that the target would have written by itself stays: it is split as the target
splits it. Exact rules accept nothing else, so they need none of this.

Symbols: B rows, N nodes, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.acceptance.coupled import target_choice
from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.core.draft import Draft
from mmspec.core.verify import RoundContext, Verdict


class WordRollback:
    """An acceptance rule that keeps whole words of what ``rule`` accepts, unless it accepts a draft to its end.

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
        chosen = target_choice(draft, logits, context)
        accepted, path = self.rule.accepted(draft, logits, context, chosen)
        # a model may have more tokens than its tokenizer
        begins = torch.nn.functional.pad(self.begins_word, (0, max(0, logits.shape[-1] - len(self.begins_word))))
        if context.stop_tokens:  # nothing is unfinished at the end
            begins = begins.index_fill(0, torch.tensor(context.stop_tokens, device=begins.device), True)
        kept = rolled_back(draft, accepted, path, chosen, begins)
        return self.rule.verdict(draft, logits, context, chosen, kept, path)


def rolled_back(draft: Draft, num_accepted: Tensor, path: Tensor, chosen: Tensor, begins_word: Tensor) -> Tensor:
    """Accepted draft tokens (B,) before the word that was left unfinished; all where the draft ended.

    Args:
        draft: The draft; its own start counts as the start of a word.
        num_accepted: Accepted tokens of each row (B,).
        path: Nodes from the root on (B, N).
        chosen: What the target would write after each node (B, N).
        begins_word: Which tokens begin a word (V,).
    """
    begins = begins_word.to(path.device)
    place = torch.arange(draft.num_nodes, device=path.device)
    child = path.roll(-1, dims=1)
    tokens, own = draft.tokens.gather(1, child), chosen.gather(1, path)  # (B, N) accepted, and what the target wanted
    inside = place < num_accepted[:, None]
    last = path.gather(1, num_accepted[:, None])
    next_token = chosen.gather(1, last)[:, 0]
    # the token behind the accepted ones may itself begin a word
    starts = begins[tokens] & inside
    word = torch.where(starts, place, 0).amax(-1)
    word = torch.where(begins[next_token], num_accepted, word)
    foreign = (inside & (place >= word[:, None]) & (tokens != own)).any(-1)
    ended = ~_has_child(draft).gather(1, last)[:, 0]
    return torch.where(ended | ~foreign, num_accepted, word)


def _has_child(draft: Draft) -> Tensor:
    """Which nodes are followed by another one (B, N)."""
    exists = torch.ones_like(draft.tokens, dtype=torch.bool) if draft.valid is None else draft.valid.clone()
    exists[:, 0] = False
    return torch.zeros_like(exists, dtype=torch.long).scatter_reduce(1, draft.parents, exists.long(), "amax") > 0
