"""What the decoding loop needs of a drafter, and the drafter that drafts nothing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict


class DraftSession(Protocol):
    """One decoding session of a drafter over B rows. It reads the context only, row by row.

    A session with an attribute ``revisable`` that is true learns of a draft the outcome alone, so that drafts may be revised
    before they are verified. One with an attribute ``clock``, a :class:`mmspec.core.timing.NetworkClock`, tells how long its
    own network runs.
    """

    forwards: int

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        """See the prefill and the first token."""
        ...

    def propose(self, context: RoundContext, width: int) -> Draft:
        """Draft at most ``width`` nodes, root included."""
        ...

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        """See the outcome of a round; ``context`` is still that of before the commit."""
        ...

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows``."""
        ...


@runtime_checkable
class PromptDraftSession(Protocol):
    """A session that drafts from the prompt alone, so that prefill and first verification are one forward."""

    def propose_first(self, context: RoundContext, width: int) -> Draft:
        """Draft a chain of at most ``width`` nodes; its root stands for the last prompt token and is not read."""
        ...


class NoDraft:
    """Drafts nothing: every round is one token of plain decoding."""

    forwards = 0
    revisable = True

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        return Draft(context.root[:, None], DraftLaw.DETERMINISTIC)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        pass
