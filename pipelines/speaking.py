"""What all text-to-speech pipelines share: running requests of frames, streaming, and joining rows to utterances."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.core.loop import Decoder, Progress
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats, merge_stats
from mmspec.core.stopping import FinishReason, Stopping
from mmspec.drafters.base import check_positive
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.speech_frames import FrameRequest, count_calls, open_frames
from mmspec.pipelines.speech_synthesis_output import AudioChunk, SynthesisOutput, as_type, check_output_type
from mmspec.speech.code_sampling import CodeSampling
from mmspec.speech.code_target import check_layout
from mmspec.speech.utterances import Piece


class Sound(Protocol):
    """A codec that decodes one utterance piece by piece; what it has given is final."""

    block: int

    def push(self, codes: Tensor, last: bool = False) -> Tensor:
        """Take frames of ``codes`` (n, G) and return the samples (m,) that are final now; all of them with ``last``."""
        ...


class SpeakingPipeline(SpecPipeline):
    """Base of the text-to-speech pipelines. A family fills in the abstract members and its own call; the rest is shared."""

    @property
    @abstractmethod
    def sampling_rate(self) -> int:
        """Samples a second of the waveforms."""

    @property
    @abstractmethod
    def num_codebooks(self) -> int:
        """G: codes a frame."""

    @property
    @abstractmethod
    def num_codes(self) -> int:
        """Codes of a book of the codec."""

    @property
    @abstractmethod
    def end_token(self) -> int:
        """Token of the loop that ends the speech."""

    @property
    @abstractmethod
    def network(self) -> Any:
        """The network that draws the codes, which drafters are made for."""

    @abstractmethod
    def open_sound(self) -> Sound:
        """A decoder of one utterance."""

    def own_sampling(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sampling of code 0 and of the residual codes as the checkpoint has it."""
        return self.config.first or {}, self.config.rest or {}

    def frames_of(self, tokens: Tensor, length: int) -> Tensor:
        """Whole frames (T, G) among the first ``length`` tokens (M,), without the end."""
        books = self.num_codebooks
        return tokens[: length // books * books].view(-1, books).cpu()

    def open_decoder(self, request: DecodeRequest) -> Any:
        """Build the decoder of a request of this pipeline; nothing of it stays on the pipeline."""
        assert isinstance(request, FrameRequest)
        return open_frames(request, self._execution_device)

    def _sampling(self, first: Mapping[str, Any], rest: Mapping[str, Any]) -> CodeSampling:
        """The sampling of a call: what it gives, else the checkpoint's."""
        own = self.own_sampling()
        asked = [{name: value for name, value in given.items() if value is not None} for given in (first, rest)]
        sampling = CodeSampling.of_settings(own[0] | asked[0], own[1] | asked[1])
        for book in sampling.of_books(2):
            book.check_vocabulary(self.num_codes)
        return sampling

    def _check_call(
        self,
        output_type: str,
        layout: str,
        num_waveforms: int = 1,
        micro_batch_size: int = 1,
        inputs: Sequence[str] = (),
    ) -> None:
        """Raise TypeError or ValueError for arguments that concern no text."""
        self.check_callback(inputs)
        check_positive("micro_batch_size", micro_batch_size)
        check_positive("num_waveforms_per_prompt", num_waveforms)
        check_output_type(output_type)
        check_layout(layout)

    @staticmethod
    def _check_streamed(prompt: Any, output_type: str) -> None:
        if output_type == "tokens" or not isinstance(prompt, str):
            raise ValueError("`stream` speaks one text and yields sound; call the pipeline for several or for tokens.")

    def _stopping(self, frames: int) -> Stopping:
        return Stopping(frames * self.num_codebooks, (self.end_token,))

    def _frame_request(
        self,
        pieces: Sequence[Piece],
        model: Callable[[Any, torch.device], Any],
        codes: CodeSampling,
        speculate: bool,
        layout: str,
        **masked: Any,
    ) -> FrameRequest:
        """Request of ``pieces`` that are decoded together, for the frame model that ``model`` builds."""
        check_layout(layout, len(pieces))
        formed = SamplingParams()  # the target's logits are the law itself
        drafter, rule = self.choose_method(speculate and not masked.get("depth_steps"), formed)
        if drafter is not None:
            drafter.check_target(self.network)
        return FrameRequest(
            model=model, network=self.network, seeds=[piece.seed for piece in pieces], sampling=formed,
            stopping=self._stopping(max(piece.budget for piece in pieces)), guidance=Guidance(), drafter=drafter,
            rule=rule, codes=codes, layout=layout, **masked,
        )  # fmt: skip

    def _speak(
        self,
        texts: list[str],
        pieces: Sequence[Piece],
        requests: Sequence[FrameRequest],
        max_frames: int | None,
        output_type: str,
        callback: Callable[..., Any] | None,
        tensor_inputs: Sequence[str],
    ) -> SynthesisOutput:
        """Decode the requests, which hold the pieces in order, and make their codes sound."""
        spoken: list[Tensor] = []
        parts: list[DecodeStats] = []
        last: dict[int, tuple[Decoder, Progress]] = {}
        for decoder, progress in self.run_decoders(requests, callback, tensor_inputs):
            last[id(decoder)] = (decoder, progress)
        for request, (decoder, progress) in zip(requests, last.values(), strict=False):  # fewer if interrupted
            start = len(spoken)
            spoken += self._settle(pieces[start : start + len(request.seeds)], decoder, progress)
            parts.append(decoder.stats)
        output = self._joined(texts, pieces, spoken, merge_stats(parts), max_frames)
        if output_type != "tokens":
            with output.stats.timed("decode"):
                output.audios = [as_type(self.open_sound().push(row, last=True), output_type) for row in output.tokens]
        self.maybe_free_model_hooks()
        return output

    @torch.no_grad()
    def _chunks(
        self,
        texts: list[str],
        pieces: Sequence[Piece],
        requests: Sequence[FrameRequest],
        max_frames: int | None,
        output_type: str,
    ) -> Iterator[AudioChunk]:
        """Decode the pieces of one utterance, one a request, and yield its sound as soon as it is final."""
        begun, first_audio = time.perf_counter(), None
        sound, waveform = self.open_sound(), []
        spoken: list[Tensor] = []
        parts: list[DecodeStats] = []
        left = max_frames
        for piece, request in zip(pieces, requests, strict=True):
            if left is not None:
                if left == 0:
                    break
                request.stopping = self._stopping(min(piece.budget, left))
            sent = 0
            for opened, latest in self.run_decoders([request]):
                decoder, progress = opened, latest
                ready = progress.lengths[0] // self.num_codebooks
                if ready - sent >= sound.block or (progress.finished and ready > sent):
                    frames = self.frames_of(progress.tokens[0], progress.lengths[0])
                    samples = sound.push(frames[sent:])
                    sent = len(frames)
                    if len(samples):
                        first_audio = first_audio or time.perf_counter() - begun
                        waveform.append(samples)
                        count_calls(decoder)
                        so_far = merge_stats([*parts, decoder.stats])
                        yield AudioChunk(as_type(samples, output_type), self.sampling_rate, stats=so_far)
            spoken += self._settle([piece], decoder, progress)
            parts.append(decoder.stats)
            left = None if left is None else left - len(spoken[-1])
            if self.interrupt:
                break
        stats = merge_stats(parts)
        output = self._joined(texts, pieces[: len(spoken)], spoken, stats, max_frames)
        tail = sound.push(output.tokens[0][:0], last=True)
        stats.seconds["first_audio"] = first_audio or time.perf_counter() - begun
        output.audios = [as_type(torch.cat([*waveform, tail]), output_type)]
        self.maybe_free_model_hooks()
        yield AudioChunk(
            as_type(tail, output_type), self.sampling_rate, finished=True, output=output, stats=output.stats
        )

    def _settle(self, pieces: Sequence[Piece], decoder: Decoder, progress: Progress) -> list[Tensor]:
        """Codes of the rows; each ends at its own budget, whatever that of its neighbours."""
        count_calls(decoder)
        rows, books = [], self.num_codebooks
        for place, (piece, tokens) in enumerate(zip(pieces, progress.tokens, strict=True)):
            row, budget = decoder.stats.rows[place], piece.budget * books
            rows.append(self.frames_of(tokens, min(progress.lengths[place], budget)))
            if row.tokens > budget:
                row.tokens, row.finish_reason = budget, FinishReason.LENGTH.name.lower()
        return rows

    def _joined(
        self,
        texts: list[str],
        pieces: Sequence[Piece],
        spoken: list[Tensor],
        stats: DecodeStats,
        max_frames: int | None,
    ) -> SynthesisOutput:
        tokens, reasons = [], []
        for number in range(len(texts)):
            mine = [place for place, piece in enumerate(pieces) if piece.utterance == number]
            begun = [place for place in mine if place < len(spoken)]
            nothing = torch.zeros(0, self.num_codebooks, dtype=torch.long)
            frames = torch.cat([nothing, *(spoken[place] for place in begun)])
            ends = [stats.rows[place].finish_reason for place in begun]
            ends += [FinishReason.INTERRUPTED.name.lower()] * (len(mine) - len(begun))
            reason = next((end for end in ends if end != "stop"), "stop")
            if max_frames is not None and (len(frames) > max_frames):
                frames, reason = frames[:max_frames], "length"
            tokens.append(frames)
            reasons.append(reason)
        if "length" in reasons:
            warnings.warn(
                f"{reasons.count('length')} of {len(reasons)} utterances did not end within their frames and were cut; "
                "raise `max_frames`, or try another seed or a lower temperature.",
                stacklevel=4,
            )
        return SynthesisOutput(None, self.sampling_rate, tokens, texts, reasons, stats)
