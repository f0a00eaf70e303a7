"""The rows of a recognition call: segments of recordings, from samples to decisions that need no language model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.core.sampling import SamplingParams
from mmspec.pipelines.speech_output import TranscribedSegment
from mmspec.speech.activity import Segment, holds_speech
from mmspec.speech.adapters.base import EncodedClip, SpeechAdapter, SpeechTask
from mmspec.speech.audio import Clip
from mmspec.speech.ctc import Posterior
from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.ctc_models import CTCModel
from mmspec.speech.gate import EntropyGate
from mmspec.speech.hypotheses import Hypothesis, StyledHypothesis
from mmspec.speech.signal_functions import resample
from mmspec.speech.vocabulary import CTCVocabulary, hypothesis_text
from mmspec.speech.words import timed_words

_SLACK = 1.5, 20  # a transcript of m hypothesis tokens has at most 1.5 m + 20


@dataclass(frozen=True)
class SpeechSettings:
    """The checked settings of one call.

    ``listener`` says which CTC head hears the recordings; plain decoding too asks it about silence.
    """

    task: SpeechTask
    sampling: SamplingParams
    drafter: Any
    rule: Any
    listener: CTCDrafter | None
    speculate: bool
    max_new_tokens: int | None
    micro_batch_size: int

    @property
    def ctc_drafter(self) -> CTCDrafter | None:
        return self.drafter if isinstance(self.drafter, CTCDrafter) else None


@dataclass
class SpeechRow:
    """One segment on its way to a transcript."""

    name: str
    samples: Tensor
    sampling_rate: int
    segment: Segment
    seed: int
    encoded: EncodedClip | None = None
    posterior: Posterior | None = None
    hypothesis: Hypothesis | None = None
    budget: int = 0
    decision: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    resumed_at: int | None = None

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sampling_rate

    @classmethod
    def of(cls, clip: Clip, segment: Segment, seed: int) -> SpeechRow:
        """The row of a ``segment`` of ``clip``."""
        return cls(clip.name, clip.samples[segment.first : segment.last], clip.sampling_rate, segment, seed)


class Listener:
    """Runs the encoders of a call and takes the decisions that need no language model.

    Args:
        adapter: The recogniser.
        settings: Of the call.
    """

    def __init__(self, adapter: SpeechAdapter, settings: SpeechSettings) -> None:
        self.adapter, self.settings = adapter, settings
        drafter = settings.listener
        self.ctc: CTCModel | None = drafter.ctc if drafter else None
        self.gate = drafter.gate if drafter else EntropyGate()

    @property
    def vocabulary(self) -> CTCVocabulary | None:
        """Labels of the CTC head that is listened to."""
        return self.ctc.vocabulary if self.ctc else self.adapter.ctc

    def listen(self, row: SpeechRow) -> None:
        """Encode ``row``, or decide it where it is silent or its hypothesis is sure enough."""
        if not holds_speech(row.samples, row.sampling_rate):
            row.decision = "silence"
            return
        if self.ctc is not None:
            row.posterior = self.ctc.posterior(self._at_rate(row.samples, self.ctc.sampling_rate))
            if self._decided(row):
                return
        row.encoded = self.adapter.encode(row.samples, self.settings.task)
        if self.ctc is None:
            row.posterior = row.encoded.posterior
            if self._decided(row):
                return
        if row.posterior is not None and self.vocabulary is not None:
            drafter = self.settings.listener or CTCDrafter()
            row.hypothesis = self._styled(drafter.hypothesis(row.posterior, self.vocabulary))
        row.budget = self._budget(row)

    def _at_rate(self, samples: Tensor, rate: int) -> Tensor:
        here = self.adapter.sampling_rate
        return samples if rate == here else resample(samples, here, rate)

    def _decided(self, row: SpeechRow) -> bool:
        """Whether ``row`` is settled by its posterior; plain decoding too asks nobody about silence."""
        if row.posterior is None or self.vocabulary is None or self.settings.task.name != "transcribe":
            return False
        if self.gate.is_silence(row.posterior):
            row.decision = "silence"
        elif self.settings.speculate and self.settings.ctc_drafter and self.gate.accepts(row.posterior):
            row.decision = "ctc"
            row.text = hypothesis_text(self.vocabulary.pieces(row.posterior.runs()))
        return bool(row.decision)

    def _styled(self, hypothesis: Hypothesis) -> Hypothesis:
        assert self.vocabulary is not None
        if self.vocabulary.cased:
            return hypothesis
        return StyledHypothesis(hypothesis, sentences=self.adapter.punctuates or self.settings.task.punctuation)

    def _budget(self, row: SpeechRow) -> int:
        """Most new tokens of ``row``: as given, else by its hypothesis, else by its length.

        Raises:
            ValueError: If prompt and budget exceed the positions of the model.
        """
        assert row.encoded is not None
        length, limit = self.adapter.prompt_length(row.encoded), self.adapter.max_positions
        given = self.settings.max_new_tokens
        if given is not None:
            if length + given > limit:
                raise ValueError(
                    f"{row.name} takes {length} positions and `max_new_tokens` is {given}, but the model has "
                    f"{limit} positions; give shorter segments or fewer tokens."
                )
            return given
        if limit - length < 1:
            raise ValueError(f"{row.name} takes {length} positions and the model has {limit}; give `segment_seconds`.")
        share, more = _SLACK
        if self.settings.task.name == "transcribe" and row.hypothesis is not None:
            codec = self.adapter.codec_for(self.settings.task)
            wanted = int(share * len(codec.draft(row.hypothesis, []))) + more
        else:
            wanted = int(row.seconds * self.adapter.tokens_per_second) + more
        return min(wanted, limit - length)

    def finished(self, row: SpeechRow) -> TranscribedSegment:
        """The result of a decided ``row``."""
        rate = row.sampling_rate
        start, end = row.segment.first / rate, row.segment.last / rate
        spoken = self.settings.task.name == "transcribe"
        words, confidence = timed_words(
            row.text, row.posterior if spoken else None, self.vocabulary, start, row.seconds
        )
        return TranscribedSegment(
            start=start, end=end, seam=row.segment.seam, text=row.text, decision=row.decision,
            resumed_at=row.resumed_at, confidence=confidence, tokens=row.tokens, words=words,
        )  # fmt: skip
