"""Text to speech: a talker draws frames of codes, their residual codes are drafted, a codec makes them sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mmspec.acceptance.base import Acceptance
from mmspec.drafters.base import Drafter, check_positive
from mmspec.pipelines.seeds import row_seeds
from mmspec.pipelines.speaking import Sound, SpeakingPipeline
from mmspec.pipelines.speech_frames import FrameRequest
from mmspec.pipelines.speech_reference import Reference, read_reference
from mmspec.pipelines.speech_synthesis_output import AudioChunk, SynthesisOutput
from mmspec.speech.code_sampling import CodeSampling
from mmspec.speech.codec import SpeechCodec
from mmspec.speech.codec_stream import CodecStream
from mmspec.speech.mask_predictor import MaskPredictor, masks_left
from mmspec.speech.speakable import speakable
from mmspec.speech.talker import SpeechTalker
from mmspec.speech.talker_model import TalkerModel
from mmspec.speech.utterances import Piece, make_pieces, text_tokens

DEPTHS = ("ar", "maskgit")
SPEEDS = (0.5, 2.0)
"""Slowest and fastest speech."""


class TextToSpeechPipeline(SpeakingPipeline):
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

    @property
    def num_codebooks(self) -> int:
        books: int = self.talker.config.num_codebooks
        return books

    @property
    def num_codes(self) -> int:
        codes: int = self.codec.config.num_codes
        return codes

    @property
    def end_token(self) -> int:
        end: int = self.talker.config.end_code
        return end

    @property
    def network(self) -> SpeechTalker:
        talker: SpeechTalker = self.talker
        return talker

    def open_sound(self) -> Sound:
        return CodecStream(self.codec)

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
        self._check_call(
            output_type, layout, num_waveforms_per_prompt, micro_batch_size, callback_on_step_end_tensor_inputs
        )
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
        return self._speak(
            texts, pieces, requests, max_frames, output_type, callback_on_step_end, callback_on_step_end_tensor_inputs
        )

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
        self._check_call(output_type, layout)
        self._check_streamed(prompt, output_type)
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

    def _texts(self, prompt: str | Sequence[str]) -> list[str]:
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not texts:
            raise ValueError("`prompt` is an empty list; give at least one text.")
        return [speakable(text) for text in texts]

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
        frames = max(piece.budget for piece in pieces)

        def model(network: SpeechTalker, device: torch.device) -> Any:
            readings = []
            for piece in pieces:
                text = piece.text if voice is None else voice.before(piece.text)
                before = None if voice is None else voice.codes.to(device).view(-1, network.codes_per_step)
                heard = len(text) - len(piece.text)
                readings.append(network.read(text_tokens(text).to(device), before, heard, speed))
            return TalkerModel(network, readings, -(-frames // network.config.frame_stack))

        filler = self.mask_predictor if depth_calls else None
        return self._frame_request(
            pieces, model, codes, speculate, layout, mask_predictor=filler, depth_steps=depth_calls
        )
