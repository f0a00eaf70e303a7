"""Text to speech: a talker draws frames of codes, their residual codes are drafted, a codec makes them sound."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.core.loop import Decoder, Progress
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats, merge_stats
from mmspec.core.stopping import FinishReason, Stopping
from mmspec.drafters.base import Drafter, check_positive
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.seeds import row_seeds
from mmspec.pipelines.speech_frames import FrameRequest, count_calls, open_frames
from mmspec.pipelines.speech_reference import Reference, read_reference
from mmspec.pipelines.speech_synthesis_output import AudioChunk, SynthesisOutput, as_type, check_output_type
from mmspec.speech.code_sampling import CodeSampling
from mmspec.speech.codec import SpeechCodec
from mmspec.speech.codec_stream import CodecStream, decode
from mmspec.speech.mask_predictor import MaskPredictor, masks_left
from mmspec.speech.speakable import speakable
from mmspec.speech.talker import SpeechTalker
from mmspec.speech.talker_model import TalkerModel
from mmspec.speech.utterances import Piece, make_pieces, text_tokens

DEPTHS = ("ar", "maskgit")
SPEEDS = (0.5, 2.0)
"""Slowest and fastest speech."""


class TextToSpeechPipeline(SpecPipeline):
    """Speak texts.

    Args:
        talker: Text to codes.
        codec: Codes to sound.
        drafter: How residual codes are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        mask_predictor: Fills residual codes in parallel, for calls with ``depth="maskgit"``.
        first, rest: ``temperature``, ``top_k`` and ``top_p`` of code 0 and of the residual codes where a call gives none;
            ``first`` may also have a ``repetition_penalty``.

    Raises:
        ValueError: If talker and codec do not fit, or a sampling setting is out of range.
    """

    model_cpu_offload_seq = "talker->codec"
    _exclude_from_cpu_offload = ["mask_predictor"]  # noqa: RUF012 - small, and it runs in turns with the talker
    _optional_components = ["drafter", "acceptance", "mask_predictor"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        talker: SpeechTalker,
        codec: SpeechCodec,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        mask_predictor: MaskPredictor | None = None,
        first: dict | None = None,  # type: ignore[type-arg] # diffusers compares the annotation with what is loaded
        rest: dict | None = None,  # type: ignore[type-arg]
    ) -> None:
        super().__init__()
        self.register_modules(
            talker=talker, codec=codec, drafter=drafter, acceptance=acceptance, mask_predictor=mask_predictor
        )
        self.register_to_config(first=first, rest=rest)
        CodeSampling.of_settings(first or {}, rest or {})
        sizes = [(model.config.num_codebooks, model.config.num_codes) for model in (talker, codec)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"The talker draws {sizes[0]} (books, codes), but the codec has {sizes[1]}.")

    @property
    def sampling_rate(self) -> int:
        """Samples a second of the waveforms."""
        rate: int = self.codec.config.sample_rate
        return rate

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        reference: Any = None,
        reference_text: str | None = None,
        reference_sampling_rate: int | None = None,
        num_waveforms_per_prompt: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        residual_temperature: float | None = None,
        residual_top_k: int | None = None,
        residual_top_p: float | None = None,
        speed: float = 1.0,
        max_frames: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        layout: str = "auto",
        depth: str = "ar",
        depth_steps: int = 3,
        micro_batch_size: int = 8,
        output_type: str = "np",
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> SynthesisOutput:
        """Speak texts.

        Args:
            prompt: One text or several, of any lengths up to 2,000 characters as spoken.
            reference: A recording that the speech continues in manner: anything :func:`load_audio` reads.
            reference_text: What is said in it.
            reference_sampling_rate: Rate of a bare array.
            num_waveforms_per_prompt: Readings of every text.
            temperature, top_k, top_p: Of code 0 and the end; by default the checkpoint's.
            repetition_penalty: Of code 0, see :class:`mmspec.speech.code_sampling.CodeSampling`.
            residual_temperature, residual_top_k, residual_top_p: Of the residual codes.
            speed: Rate of the speech, 0.5 to 2, of voices that plan their durations.
            max_frames: Most frames of an utterance; by default more than any reading of it needs. A cut is warned of.
            generator, seed: Source of the seeds of the utterances.
            speculate: ``False`` decodes plainly; the waveform is the same.
            layout: How the predictor's calls are laid out, see :class:`mmspec.speech.code_target.CodeTarget`.
            depth: ``ar`` draws residual codes one after the other, drafted or not; ``maskgit`` fills them in parallel by
                the ``mask_predictor``, whose law is its own, without drafts.
            depth_steps: Calls of the ``mask_predictor`` for a frame.
            micro_batch_size: Pieces decoded together.
            output_type: ``np``, ``pt``, ``pcm`` (16 bit) or ``tokens``.
            callback_on_step_end, callback_on_step_end_tensor_inputs: As for the image pipelines.

        Returns:
            Waveforms, each of its own length, codes, finish reasons and stats.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad arguments, before the first forward.
        """
        self.check_callback(callback_on_step_end_tensor_inputs)
        check_positive("micro_batch_size", micro_batch_size)
        check_positive("num_waveforms_per_prompt", num_waveforms_per_prompt)
        check_output_type(output_type)
        codes = self._sampling(
            {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty},
            {"temperature": residual_temperature, "top_k": residual_top_k, "top_p": residual_top_p},
        )
        texts = [text for text in self._texts(prompt) for _ in range(num_waveforms_per_prompt)]
        voice = self._reference(reference, reference_text, reference_sampling_rate)
        self._check_speed(speed)
        depth_calls = self._depth(depth, depth_steps)
        pieces = self._pieces(texts, row_seeds(len(texts), generator, seed), max_frames, speed)
        requests = [
            self._request(
                pieces[start : start + micro_batch_size], voice, codes, speed, speculate, layout, depth_calls
            )
            for start in range(0, len(pieces), micro_batch_size)
        ]
        spoken: list[Tensor] = []
        parts: list[DecodeStats] = []
        last: dict[int, tuple[Decoder, Progress]] = {}
        for decoder, progress in self.run_decoders(requests, callback_on_step_end, callback_on_step_end_tensor_inputs):
            last[id(decoder)] = (decoder, progress)
        for number, (decoder, progress) in enumerate(last.values()):
            start = number * micro_batch_size
            spoken += self._settle(pieces[start : start + micro_batch_size], decoder, progress)
            parts.append(decoder.stats)
        output = self._joined(texts, pieces, spoken, merge_stats(parts), max_frames)
        if output_type != "tokens":
            with output.stats.timed("decode"):
                output.audios = [as_type(decode(self.codec, row), output_type) for row in output.tokens]
        self.maybe_free_model_hooks()
        return output

    @torch.no_grad()
    def stream(
        self,
        prompt: str,
        *,
        reference: Any = None,
        reference_text: str | None = None,
        reference_sampling_rate: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        residual_temperature: float | None = None,
        residual_top_k: int | None = None,
        residual_top_p: float | None = None,
        speed: float = 1.0,
        max_frames: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        speculate: bool = True,
        layout: str = "auto",
        depth: str = "ar",
        depth_steps: int = 3,
        output_type: str = "np",
    ) -> Iterator[AudioChunk]:
        """Speak one text and yield its sound as soon as it is final; joined, the chunks are the waveform of a call, bit for bit.

        Arguments are those of a call. ``stats.seconds["first_audio"]`` is the time to the first samples.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad arguments, before the first forward.
        """
        check_output_type(output_type)
        if output_type == "tokens" or not isinstance(prompt, str):
            raise ValueError("`stream` speaks one text and yields sound; call the pipeline for several or for tokens.")
        codes = self._sampling(
            {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty},
            {"temperature": residual_temperature, "top_k": residual_top_k, "top_p": residual_top_p},
        )
        texts = self._texts(prompt)
        voice = self._reference(reference, reference_text, reference_sampling_rate)
        self._check_speed(speed)
        depth_calls = self._depth(depth, depth_steps)
        pieces = self._pieces(texts, row_seeds(1, generator, seed), max_frames, speed)
        requests = [self._request([piece], voice, codes, speed, speculate, layout, depth_calls) for piece in pieces]
        return self._chunks(texts, pieces, requests, max_frames, output_type)

    @torch.no_grad()
    def _chunks(
        self,
        texts: list[str],
        pieces: list[Piece],
        requests: list[FrameRequest],
        max_frames: int | None,
        output_type: str,
    ) -> Iterator[AudioChunk]:
        begun, first_audio = time.perf_counter(), None
        sound, waveform = CodecStream(self.codec), []
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
                ready = progress.lengths[0] // self.talker.config.num_codebooks
                if ready - sent >= sound.block or (progress.finished and ready > sent):
                    samples = sound.push(self._frames(progress.tokens[0], progress.lengths[0])[sent:ready])
                    sent = ready
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

    def open_decoder(self, request: DecodeRequest) -> Any:
        """Build the decoder of a request of this pipeline; nothing of it stays on the pipeline."""
        assert isinstance(request, FrameRequest)
        return open_frames(request, self._execution_device)

    def _texts(self, prompt: str | Sequence[str]) -> list[str]:
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not texts:
            raise ValueError("`prompt` is an empty list; give at least one text.")
        return [speakable(text) for text in texts]

    def _sampling(self, first: Mapping[str, Any], rest: Mapping[str, Any]) -> CodeSampling:
        """The sampling of a call: what it gives, else the checkpoint's."""
        asked = [{name: value for name, value in given.items() if value is not None} for given in (first, rest)]
        sampling = CodeSampling.of_settings((self.config.first or {}) | asked[0], (self.config.rest or {}) | asked[1])
        for book in sampling.of_books(2):
            book.check_vocabulary(self.codec.config.num_codes)
        return sampling

    def _reference(self, audio: Any, text: str | None, rate: int | None) -> Reference | None:
        if audio is None:
            if text is not None or rate is not None:
                raise ValueError("`reference_text` and `reference_sampling_rate` belong to a `reference`; give one.")
            return None
        return read_reference(audio, text, rate, self.codec, self.talker.config.frame_stack)

    def _check_speed(self, speed: float) -> None:
        if not SPEEDS[0] <= speed <= SPEEDS[1]:
            raise ValueError(f"`speed` must lie between {SPEEDS[0]} and {SPEEDS[1]}, got {speed}.")
        if speed != 1.0 and self.talker.text_track is None:
            raise ValueError(f"`speed` is {speed}, but this voice does not plan its durations; only 1.0 is possible.")

    def _depth(self, depth: str, steps: int) -> int:
        """Calls of the mask predictor for a frame; none if the code predictor draws the codes."""
        if depth not in DEPTHS:
            raise ValueError(f"Unknown `depth` {depth!r}; choose one of {', '.join(DEPTHS)}.")
        if depth == "ar":
            return 0
        if self.mask_predictor is None:
            raise ValueError(
                "`depth` is 'maskgit', but this voice has no `mask_predictor`; load one, or train it with `mmspec train "
                "tts maskgit`."
            )
        masks_left(self.talker.codes_per_step - 1, steps)
        self.mask_predictor.check_target(self.talker)
        return steps

    def _pieces(self, texts: list[str], seeds: list[int], max_frames: int | None, speed: float) -> list[Piece]:
        if max_frames is not None:
            check_positive("max_frames", max_frames)
        rate = self.codec.frame_rate / min(1.0, speed)
        return [
            piece
            for number, (text, seed) in enumerate(zip(texts, seeds, strict=True))
            for piece in make_pieces(text, number, seed, rate, max_frames)
        ]

    def _stopping(self, frames: int) -> Stopping:
        return Stopping(frames * self.talker.config.num_codebooks, (self.talker.config.end_code,))

    def _request(
        self,
        pieces: Sequence[Piece],
        voice: Reference | None,
        codes: CodeSampling,
        speed: float,
        speculate: bool,
        layout: str,
        depth_calls: int,
    ) -> FrameRequest:
        formed = SamplingParams()  # the target's logits are the law itself
        drafter, rule = self.choose_method(speculate and not depth_calls, formed)
        if drafter is not None:
            drafter.check_target(self.talker)
        frames = max(piece.budget for piece in pieces)

        def model(network: SpeechTalker, device: torch.device) -> Any:
            readings = []
            for piece in pieces:
                text = piece.text if voice is None else voice.before(piece.text)
                before = None if voice is None else voice.codes.to(device).view(-1, network.codes_per_step)
                heard = len(text) - len(piece.text)
                readings.append(network.read(text_tokens(text).to(device), before, heard, speed))
            return TalkerModel(network, readings, -(-frames // network.config.frame_stack))

        return FrameRequest(
            model=model, network=self.talker, seeds=[piece.seed for piece in pieces], sampling=formed,
            stopping=self._stopping(frames), guidance=Guidance(), drafter=drafter, rule=rule, codes=codes,
            layout=layout, mask_predictor=self.mask_predictor if depth_calls else None, depth_steps=depth_calls,
        )  # fmt: skip

    def _frames(self, tokens: Tensor, length: int) -> Tensor:
        """Whole frames (T, G) among the first ``length`` tokens (M,), without the end."""
        books = self.talker.config.num_codebooks
        return tokens[: length // books * books].view(-1, books).cpu()

    def _settle(self, pieces: Sequence[Piece], decoder: Decoder, progress: Progress) -> list[Tensor]:
        """Codes of the rows; each ends at its own budget, whatever that of its neighbours."""
        count_calls(decoder)
        rows, books = [], self.talker.config.num_codebooks
        for place, (piece, tokens) in enumerate(zip(pieces, progress.tokens, strict=True)):
            frames, row = self._frames(tokens, progress.lengths[place]), decoder.stats.rows[place]
            if len(frames) > piece.budget:
                frames = frames[: piece.budget]
            if row.tokens > piece.budget * books:
                row.tokens, row.finish_reason = piece.budget * books, FinishReason.LENGTH.name.lower()
            rows.append(frames)
        return rows

    def _joined(
        self, texts: list[str], pieces: list[Piece], spoken: list[Tensor], stats: DecodeStats, max_frames: int | None
    ) -> SynthesisOutput:
        tokens, reasons = [], []
        for number in range(len(texts)):
            mine = [place for place, piece in enumerate(pieces) if piece.utterance == number]
            frames = torch.cat([spoken[place] for place in mine])
            ends = [stats.rows[place].finish_reason for place in mine]
            reason = next((end for end in ends if end != "stop"), "stop")
            if max_frames is not None and (len(frames) > max_frames):
                frames, reason = frames[:max_frames], "length"
            tokens.append(frames)
            reasons.append(reason)
        if "length" in reasons:
            warnings.warn(
                f"{reasons.count('length')} of {len(reasons)} utterances did not end within their frames and were cut; "
                "raise `max_frames`, or try another seed or a lower temperature.",
                stacklevel=3,
            )
        return SynthesisOutput(None, self.sampling_rate, tokens, texts, reasons, stats)
