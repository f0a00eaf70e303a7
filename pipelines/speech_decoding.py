"""Decoding the rows of a recognition call: one decoder per micro-batch, and what its first forward decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.acceptance.likelihood import LikelihoodAcceptance
from mmspec.core.guidance import Guidance
from mmspec.core.loop import Decoder, Progress
from mmspec.core.stopping import Stopping
from mmspec.pipelines.base import DecodeRequest
from mmspec.pipelines.speech_rows import SpeechRow, SpeechSettings
from mmspec.speech.adapters.base import SpeechAdapter
from mmspec.speech.ctc_drafter import HypothesisDrafter
from mmspec.speech.rollback import WordRollback
from mmspec.speech.text import TextCodec


@dataclass
class RowBatch:
    """Rows that are decoded together, with their request; ``draft_lengths`` are those of the first drafts."""

    rows: list[SpeechRow]
    request: DecodeRequest
    draft_lengths: list[int] | None


class BatchMaker:
    """Builds the requests of a call.

    Args:
        adapter: The recogniser.
        settings: Of the call.
    """

    def __init__(self, adapter: SpeechAdapter, settings: SpeechSettings) -> None:
        self.adapter, self.settings = adapter, settings
        self.codec = adapter.codec_for(settings.task)

    def batches(self, rows: Sequence[SpeechRow]) -> Iterator[RowBatch]:
        """Micro-batches of the rows that nothing has decided yet."""
        open_rows = [row for row in rows if not row.decision]
        size = self.settings.micro_batch_size
        for first in range(0, len(open_rows), size):
            yield self.batch(open_rows[first : first + size])

    def batch(self, rows: list[SpeechRow], speculate: bool = True) -> RowBatch:
        """The request of ``rows``; plain without ``speculate``."""
        drafter, rule = (self.settings.drafter, self.settings.rule) if speculate else (None, CoupledAcceptance())
        lengths = None
        if speculate and self.settings.ctc_drafter is not None:
            drafter = self._bound(rows)
            lengths = [len(ids) - len(drafter.ends) for ids in drafter.first]
            if isinstance(rule, LikelihoodAcceptance) and self.settings.ctc_drafter.config.word_rollback:
                rule = WordRollback(rule, self.codec.begins_word)
        clips = [row.encoded for row in rows if row.encoded is not None]
        budgets = tuple(row.budget for row in rows)
        adapter = self.adapter
        request = DecodeRequest(
            model=lambda network, device: adapter.decoder(network, clips, device),
            network=adapter.network,
            seeds=[row.seed for row in rows],
            sampling=self.settings.sampling,
            stopping=Stopping(max(budgets), adapter.stop_tokens, row_budgets=budgets),
            guidance=Guidance(),
            drafter=drafter,
            rule=rule,
            cache_bytes_per_slot=adapter.cache_bytes_per_slot(),
        )
        return RowBatch(rows, request, lengths)

    def _bound(self, rows: Sequence[SpeechRow]) -> HypothesisDrafter:
        drafter, rule = self.settings.ctc_drafter, self.settings.rule
        assert drafter is not None
        judged = not rule.guarantee.lossless  # exact rules find the end by themselves
        stop = self.adapter.stop_tokens[0] if judged and self.adapter.stop_tokens else None
        hypotheses = [row.hypothesis for row in rows if row.hypothesis is not None]
        return drafter.bind(hypotheses, self.codec, stop)

    def settle(self, batch: RowBatch, progress: Progress) -> None:
        """Write tokens and texts to the rows."""
        for row, tokens, length in zip(batch.rows, progress.tokens.tolist(), progress.lengths, strict=True):
            row.tokens = tokens[:length]
            row.text = self.adapter.text(spoken(row.tokens, self.adapter.stop_tokens))
            if not row.decision:
                row.decision = "plain" if batch.request.drafter is None else "drafted"

    def decide(self, batch: RowBatch, decoder: Decoder, progress: Progress) -> None:
        """Note what the first forward decided about each row."""
        if batch.draft_lengths is None:
            return
        for place, row in enumerate(batch.rows):
            tokens = progress.tokens[place, : progress.lengths[place]].tolist()
            if verified(tokens, batch.draft_lengths[place], self.adapter.stop_tokens):
                row.decision = "verified"
            else:
                row.decision = "resumed"
                row.resumed_at = 1 + settled_words(self.codec, tokens, self.adapter.stop_tokens)


def spoken(tokens: Sequence[int], stop_tokens: Sequence[int]) -> Sequence[int]:
    """``tokens`` without a stop token at their end, which need not be a special one."""
    return tokens[:-1] if tokens and tokens[-1] in stop_tokens else tokens


def verified(tokens: Sequence[int], draft_length: int, stop_tokens: Sequence[int]) -> bool:
    """Whether the first forward kept a draft of ``draft_length`` tokens whole and ended there."""
    return len(tokens) == draft_length + 1 and tokens[-1] in stop_tokens


def settled_words(codec: TextCodec, tokens: Sequence[int], stop_tokens: Sequence[int]) -> int:
    """Whole words among the accepted ``tokens``, the last of which is the verifier's own."""
    words = len(codec.decode(tokens[:-1]).split())
    newest = tokens[-1]
    goes_on = newest not in stop_tokens and not bool(codec.begins_word[newest])
    return max(0, words - 1) if goes_on else words
