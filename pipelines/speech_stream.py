"""Transcribing a recording while it arrives: segments end in pauses, texts grow by whole rounds, nothing is taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats, merge_stats
from mmspec.pipelines.seeds import row_seeds
from mmspec.pipelines.speech_decoding import spoken
from mmspec.pipelines.speech_output import PartialTranscript, TranscribedSegment, join_segments
from mmspec.pipelines.speech_rows import Listener, SpeechRow, SpeechSettings
from mmspec.speech.activity import PauseSplitter, Segment
from mmspec.speech.adapters.base import SpeechTask
from mmspec.speech.audio import load_audio

if TYPE_CHECKING:
    from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline

_BLOCK = 1.0  # seconds of a whole recording that are read at a time


@dataclass(frozen=True)
class StreamArguments:
    """Arguments of a streaming call, as of a call."""

    task: str | None = None
    prompt: str | None = None
    language: str | None = None
    punctuation: bool = False
    preset: str | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    speculate: bool = True

    def settings(self, pipe: SpeechRecognitionPipeline) -> SpeechSettings:
        """Checked settings for ``pipe``."""
        task = SpeechTask(
            self.task or ("ask" if self.prompt else "transcribe"), self.prompt, self.language, self.punctuation
        )
        sampling = SamplingParams(self.temperature, self.top_k, self.top_p)
        return pipe._settings(task, sampling, self.preset, self.speculate, self.max_new_tokens, 1)


def stream_transcript(
    pipe: SpeechRecognitionPipeline,
    audio: Any,
    sampling_rate: int | None,
    segment_seconds: float,
    arguments: dict[str, Any],
) -> Iterator[PartialTranscript]:
    """Yield the growing transcript of ``audio``; see :meth:`SpeechRecognitionPipeline.stream`."""
    given = StreamArguments(**arguments)
    settings = given.settings(pipe)
    adapter = pipe.adapter
    rate = adapter.sampling_rate
    splitter = PauseSplitter(rate, adapter.max_seconds, segment_seconds)
    [seed] = row_seeds(1, None, given.seed)
    state = _StreamState(pipe, settings, seed)
    name, blocks = _blocks(audio, rate, sampling_rate)
    for block in blocks:
        state.waiting.append(block)
        for segment in splitter.feed(block):
            yield from state.transcribe(name, segment, rate)
    for segment in splitter.finish():
        yield from state.transcribe(name, segment, rate)
    output = join_segments([state.segments], [splitter.received / rate], state.stats())
    delta = output.texts[0][len(state.given) :]
    tokens = [segment.tokens for segment in state.segments]
    yield PartialTranscript(output.texts[0], delta, splitter.received / rate, True, output, tokens, output.stats)


class _StreamState:
    """What is settled so far, and the samples behind it."""

    def __init__(self, pipe: SpeechRecognitionPipeline, settings: SpeechSettings, seed: int) -> None:
        self.pipe, self.settings, self.seed = pipe, settings, seed
        self.listener = Listener(pipe.adapter, settings)
        self.waiting: list[Tensor] = []
        self.first = 0  # sample at which `waiting` begins
        self.segments: list[TranscribedSegment] = []
        self.parts: list[DecodeStats] = []
        self.given = ""

    def stats(self) -> DecodeStats:
        return merge_stats(self.parts) if self.parts else DecodeStats()

    def transcribe(self, name: str, segment: Segment, rate: int) -> Iterator[PartialTranscript]:
        """Transcribe the next segment; yield whenever there is more text."""
        samples = torch.cat(self.waiting)
        size = segment.last - segment.first
        self.waiting, self.first = [samples[size:]], segment.last
        seed = (self.seed + len(self.segments)) % (1 << 63)
        row = SpeechRow(name, samples[:size], rate, segment, seed)
        before = self.given
        for _, progress, latest in self.pipe._transcribe([row], self.settings):
            stats = latest
            if progress is not None and not self._taken_back():
                tokens = progress.tokens[0, : progress.lengths[0]].tolist()
                adapter = self.pipe.adapter
                text = adapter.settled_text(spoken(tokens, adapter.stop_tokens))
                yield from self._grown(before, text, segment.first / rate, [tokens], [latest])
        self.parts.append(stats)
        done = self.listener.finished(row)
        self.segments.append(done)
        yield from self._grown(before, done.text, segment.last / rate)

    def _taken_back(self) -> bool:
        """Whether a first verification may be thrown away."""
        drafter = self.settings.ctc_drafter
        return drafter is not None and drafter.config.on_fail == "restart"

    def _grown(
        self,
        before: str,
        text: str,
        seconds: float,
        tokens: Sequence[list[int]] = (),
        stats: Sequence[DecodeStats] = (),
    ) -> Iterator[PartialTranscript]:
        """A part if ``text`` goes on; ``tokens`` and ``stats`` are of the segment that is not settled yet."""
        whole = f"{before} {text}" if before and text else before or text
        if len(whole) > len(self.given) and whole.startswith(self.given):
            delta, self.given = whole[len(self.given) :], whole
            known = [*(segment.tokens for segment in self.segments), *tokens]
            yield PartialTranscript(whole, delta, seconds, tokens=known, stats=merge_stats([*self.parts, *stats]))


def _blocks(audio: Any, rate: int, sampling_rate: int | None) -> tuple[str, Iterator[Tensor]]:
    """Name and blocks of samples of a recording, or of an iterator of arrays at the model's rate.

    Raises:
        ValueError: If an iterator has another rate: resampling block by block would click at every seam.
    """
    if hasattr(audio, "__next__"):
        if sampling_rate != rate:
            raise ValueError(f"A stream of arrays must have `sampling_rate` {rate}, got {sampling_rate}; resample it.")
        return "stream", (load_audio(block, rate, rate, number).samples for number, block in enumerate(audio))
    clip = load_audio(audio, rate, sampling_rate)
    size = int(_BLOCK * rate)
    return clip.name, (clip.samples[at : at + size] for at in range(0, len(clip.samples), size))
