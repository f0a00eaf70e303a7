"""A relaxed rule with a bound: verify against a mixture of the target's law and the draft's.

With p the target's law, q the draft's and s the share, the target becomes r = (1 - s) p + s q. The ratio test against r
keeps a draft token x with probability min(1, r(x) / q(x)) and otherwise draws from [r - q]+, so that the committed token
has exactly the law r. TV(p, r) = s TV(p, q), at most s: every step is within the stated total variation of the target.

Try it as it is, or make it part of mmspec: docs/guides/new-rule.md.

Symbols: B rows, N nodes of a draft, V vocabulary.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec import JacobiDrafter, LlamaGenPipeline
from mmspec.acceptance.base import Acceptance, check_number
from mmspec.acceptance.ratio import draft_lengths, draw_next, log_ratio
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.noise import Stream
from mmspec.core.verify import Guarantee, RoundContext, Verdict, chain_verdict, first_rejection


class MixtureAcceptance(Acceptance):
    """The ratio test against a mixture of target and draft.

    Args:
        share: Share of the draft's law in [0, 1]; 0 is the exact ratio test, 1 accepts everything.

    Raises:
        TypeError, ValueError: For a value out of range.
    """

    guarantee = Guarantee.BOUNDED_TV
    legal_laws = frozenset({DraftLaw.SAMPLED, DraftLaw.COUPLED})
    needs_law = True

    @register_to_config
    def __init__(self, share: float = 0.1) -> None:
        check_number("share", share, 0, 1)
        self.step_tv_bound = float(share)
        if share == 0:
            self.guarantee = Guarantee.SAME_LAW

    def __call__(self, draft: Draft, logits: Tensor, context: RoundContext) -> Verdict:
        assert draft.log_q is not None
        p, _ = context.laws(logits)
        q = draft.log_q.exp()
        place = torch.arange(draft.num_nodes, device=logits.device)
        drafted = place < draft_lengths(draft)[:, None]  # (B, N) nodes whose next token was drafted
        share = self.config.share * drafted[..., None]  # the bonus token behind a whole draft comes from p itself
        log_r = ((1 - share) * p + share * q).log()
        uniform = context.noise.uniform(Stream.ACCEPT, context.rounds[:, None], place[None, 1:])
        accepted = uniform.log() < log_ratio(draft, log_r)
        num_accepted = first_rejection(accepted, None if draft.valid is None else draft.valid[:, 1:])
        verdict = chain_verdict(draft, num_accepted, draw_next(log_r, draft, num_accepted, context))
        tested = drafted & (place <= num_accepted[:, None])
        verdict.step_tv = torch.where(tested, self.config.share * (p - q).abs().sum(-1) / 2, 0.0)
        return verdict


def main() -> None:
    """Draw a picture under the rule and read what it did to the law."""
    pipe = LlamaGenPipeline.from_pretrained("mmspec/emoji-t2i")
    pipe.set_progress_bar_config(disable=True)
    pipe.drafter = JacobiDrafter(window=16, coupling="independent", controller="fixed")
    pipe.acceptance = MixtureAcceptance(share=0.2)
    stats = pipe("red apple, noto style", seed=7).stats
    assert stats.guarantee is Guarantee.BOUNDED_TV
    assert stats.step_tv_max <= stats.step_tv_bound + 1e-6
    print(stats, f"mean and largest step TV {stats.step_tv_mean:.3f}, {stats.step_tv_max:.3f}", sep="\n")


if __name__ == "__main__":
    main()
