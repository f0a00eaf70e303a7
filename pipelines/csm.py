"""CSM: speech that goes on from a conversation; the residual codes of its frames are drafted, Mimi makes them sound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CsmForConditionalGeneration, ProcessorMixin

from mmspec.acceptance.base import Acceptance
from mmspec.core.loop import Decoder, Progress
from mmspec.drafters.base import Drafter, check_positive
from mmspec.models.hf import bring_in
from mmspec.models.loading import download_options, local_folder, read_json
from mmspec.models.transformers_loading import load_transformers_model
from mmspec.pipelines.csm_call import (
    FASTEST,
    CsmCall,
    CsmContext,
    CsmPiece,
    asked_sampling,
    generation_sampling,
    read_context,
    speakers_of,
)
from mmspec.pipelines.seeds import row_seeds
from mmspec.pipelines.speaking import Sound, SpeakingPipeline
from mmspec.pipelines.speech_frames import FrameRequest
from mmspec.pipelines.speech_synthesis_output import AudioChunk, SynthesisOutput
from mmspec.speech.code_sampling import CodeSampling
from mmspec.speech.csm_frames import CsmFrames, embed_csm_codes, encode_csm_audio
from mmspec.speech.csm_prompts import Turn, conversation_tokens, readable
from mmspec.speech.mimi_stream import MimiStream, check_causal, samples_per_frame
from mmspec.speech.utterances import Piece, frames_for


class CsmPipeline(SpeakingPipeline):
    """Speak texts with Sesame's CSM.

    Args:
        model: Backbone, depth decoder and the Mimi codec.
        processor: Its processor, whose chat template writes conversations.
        drafter: How residual codes are drafted; ``None`` decodes plainly. ``ResidualDrafter()`` needs no training.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        first, rest: ``temperature``, ``top_k`` and ``top_p`` of code 0 and of the residual codes in place of those in the model's
            generation configuration; ``first`` may also have a ``repetition_penalty``.

    Raises:
        ValueError: If model, codec and processor do not fit, or a sampling setting is out of range.
    """

    model_cpu_offload_seq = "model"
    _optional_components = ["drafter", "acceptance"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        model: CsmForConditionalGeneration,
        processor: ProcessorMixin,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        first: dict | None = None,  # type: ignore[type-arg] # diffusers compares the annotation with what is loaded
        rest: dict | None = None,  # type: ignore[type-arg]
    ) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter, acceptance=acceptance)
        self.register_to_config(first=first, rest=rest)
        CodeSampling.of_settings(first or {}, rest or {})
        _check_parts(model, processor)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a saved pipeline, see :meth:`SpecPipeline.from_pretrained`.

        A checkpoint as its authors publish it is loaded by :class:`AutoTextToSpeechPipeline`.
        """
        folder = local_folder(pretrained_model_name_or_path)
        if folder is None:
            folder = Path(cls.download(str(pretrained_model_name_or_path), **download_options(kwargs)))
        index = read_json(folder / "model_index.json")
        if index.get("_class_name") == "CsmPipeline" and kwargs.get("model") is None:
            dtype = kwargs.get("dtype", kwargs.get("torch_dtype", torch.float32))
            kwargs["model"] = load_transformers_model(folder / "model", dtype)
        return super().from_pretrained(folder, **kwargs)

    @property
    def sampling_rate(self) -> int:
        """Samples a second of the waveforms."""
        rate: int = self.model.codec_model.config.sampling_rate
        return rate

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sampling_rate / samples_per_frame(self.model.codec_model)

    @property
    def num_codebooks(self) -> int:
        books: int = self.model.config.num_codebooks
        return books

    @property
    def num_codes(self) -> int:
        codes: int = self.model.codec_model.config.codebook_size
        return codes

    @property
    def end_token(self) -> int:
        """The mark that follows the frame of end codes, see :class:`CsmFrames`."""
        mark: int = self.model.config.vocab_size
        return mark

    @property
    def network(self) -> CsmForConditionalGeneration:
        return self.model

    def open_sound(self) -> Sound:
        return MimiStream(self.model.codec_model)

    def own_sampling(self) -> tuple[dict[str, Any], dict[str, Any]]:
        first = generation_sampling(self.model.generation_config, self.num_codes)
        rest = generation_sampling(self.model.depth_decoder.generation_config, self.num_codes)
        return first | (self.config.first or {}), rest | (self.config.rest or {})

    def frames_of(self, tokens: Tensor, length: int) -> Tensor:
        """Whole frames (T, G) among the first ``length`` tokens (M,), up to the frame of end codes."""
        frames = super().frames_of(tokens, length)
        over = (frames[:, :-1] == self.model.config.codebook_eos_token_id).all(-1).nonzero()
        return frames[: int(over[0])] if len(over) else frames

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        speaker: int | Sequence[int] = 0,
        reference: Any = None,
        reference_text: str | Sequence[str] | None = None,
        reference_speaker: int | Sequence[int] | None = None,
        reference_sampling_rate: int | None = None,
        num_waveforms_per_prompt: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        residual_temperature: float | None = None,
        residual_top_k: int | None = None,
        residual_top_p: float | None = None,
        max_frames: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        layout: str = "auto",
        micro_batch_size: int = 8,
        output_type: str = "np",
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> SynthesisOutput:
        """Speak texts.

        Args:
            prompt: One text or several, of any lengths that the model's positions hold together with their speech.
            speaker: Number of the speaker, at least 0; one for all texts or one for each.
            reference: What was said before: a recording, or a list of recordings in order; anything :func:`load_audio` reads.
            reference_text: What is said in it; a list for a list.
            reference_speaker: Who says it; by default the ``speaker`` of each text, so that the voice goes on.
            reference_sampling_rate: Rate of bare arrays.
            num_waveforms_per_prompt: Readings of every text.
            temperature, top_k, top_p: Of code 0; by default those of the model's generation configuration.
            repetition_penalty: Of code 0, see :class:`mmspec.speech.code_sampling.CodeSampling`.
            residual_temperature, residual_top_k, residual_top_p: Of the residual codes.
            max_frames: Most frames of an utterance; by default more than any reading of it needs, as far as positions reach. A
                cut is warned of.
            generator, seed: Source of the seeds of the utterances.
            speculate: ``False`` decodes plainly; the waveform is the same.
            layout: How the depth decoder's calls are laid out, see :class:`mmspec.speech.code_target.CodeTarget`.
            micro_batch_size: Utterances decoded together.
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
        call = CsmCall(
            prompt, speaker, reference, reference_text, reference_speaker, reference_sampling_rate,
            asked_sampling(temperature, top_k, top_p, repetition_penalty=repetition_penalty),
            asked_sampling(residual_temperature, residual_top_k, residual_top_p), max_frames, generator, seed, speculate, layout,
            num_waveforms_per_prompt, micro_batch_size,
        )  # fmt: skip
        pieces, requests = self._plan(call)
        texts = [piece.text for piece in pieces]
        return self._speak(
            texts, pieces, requests, max_frames, output_type, callback_on_step_end, callback_on_step_end_tensor_inputs
        )

    @torch.no_grad()
    def stream(
        self,
        prompt: str,
        *,
        speaker: int = 0,
        reference: Any = None,
        reference_text: str | Sequence[str] | None = None,
        reference_speaker: int | Sequence[int] | None = None,
        reference_sampling_rate: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        residual_temperature: float | None = None,
        residual_top_k: int | None = None,
        residual_top_p: float | None = None,
        max_frames: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        speculate: bool = True,
        layout: str = "auto",
        output_type: str = "np",
    ) -> Iterator[AudioChunk]:
        """Speak one text and yield its sound as soon as it is final; joined, the chunks are the waveform of a call, bit for bit.

        Arguments are those of a call. ``stats.seconds["first_audio"]`` is the time to the first samples.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad arguments, before the first forward.
        """
        self._check_call(output_type, layout)
        self._check_streamed(prompt, output_type)
        call = CsmCall(
            prompt, speaker, reference, reference_text, reference_speaker, reference_sampling_rate,
            asked_sampling(temperature, top_k, top_p, repetition_penalty=repetition_penalty),
            asked_sampling(residual_temperature, residual_top_k, residual_top_p), max_frames, generator, seed, speculate, layout,
        )  # fmt: skip
        pieces, requests = self._plan(call)
        return self._chunks([pieces[0].text], pieces, requests, max_frames, output_type)

    def _plan(self, call: CsmCall) -> tuple[list[CsmPiece], list[FrameRequest]]:
        """The utterances of a call and its requests; recordings are encoded when all arguments were found good."""
        codes = self._sampling(call.first, call.rest)
        if call.max_frames is not None:
            check_positive("max_frames", call.max_frames)
        prompts = [call.prompt] if isinstance(call.prompt, str) else list(call.prompt)
        if not prompts:
            raise ValueError("`prompt` is an empty list; give at least one text.")
        texts = [readable(text, self.processor) for text in prompts]
        speakers = speakers_of("speaker", call.speaker, len(texts))
        rows = [(text, who) for text, who in zip(texts, speakers, strict=True) for _ in range(call.num_waveforms)]
        seeds = row_seeds(len(rows), call.generator, call.seed)
        longest = self.model.config.max_position_embeddings / self.frame_rate
        context = read_context(call, self.processor, self.sampling_rate, longest)
        pieces = [
            self._piece(number, text, who, seed, context, call.max_frames)
            for number, ((text, who), seed) in enumerate(zip(rows, seeds, strict=True))
        ]
        heard: list[Tensor] = []
        size = call.micro_batch_size
        requests = [
            self._request(pieces[start : start + size], heard, codes, call) for start in range(0, len(pieces), size)
        ]
        bring_in(self.model)
        heard += [encode_csm_audio(self.model, samples) for samples in context.samples]
        return pieces, requests

    def _piece(
        self, number: int, text: str, speaker: int, seed: int, context: CsmContext, max_frames: int | None
    ) -> CsmPiece:
        """Utterance ``number`` with its prompt and budget.

        Raises:
            ValueError: If prompt and speech are longer than the model's positions.
        """
        codec = self.model.codec_model
        turns = [
            Turn(speaker if who is None else who, said, int(codec.get_encoded_length(torch.tensor(len(samples)))))
            for said, who, samples in zip(context.texts, context.speakers, context.samples, strict=True)
        ]
        prompt = conversation_tokens(self.processor, [*turns, Turn(speaker, text)])
        positions = self.model.config.max_position_embeddings
        room = positions - len(prompt)
        wanted = max_frames or math.ceil(self.frame_rate * FASTEST * len(text))
        if wanted > room:
            raise ValueError(
                f"Text {number} is too long: its prompt, with what was said before, takes {len(prompt)} of {positions} "
                f"positions and leaves {max(0, room)} frames, but {'`max_frames` is' if max_frames else 'it needs'} {wanted}. "
                "Shorten the text or the references, or speak it in parts."
            )
        return CsmPiece(number, text, seed, max_frames or min(room, frames_for(text, self.frame_rate)), prompt)

    def _request(
        self, pieces: Sequence[CsmPiece], heard: Sequence[Tensor], codes: CodeSampling, call: CsmCall
    ) -> FrameRequest:
        frames, drawable = max(piece.budget for piece in pieces), self.num_codes

        def model(network: CsmForConditionalGeneration, device: torch.device) -> CsmFrames:
            bring_in(network)
            prompts = [embed_csm_codes(network, piece.prompt.to(device), heard) for piece in pieces]
            return CsmFrames(network, prompts, frames, drawable)

        return self._frame_request(pieces, model, codes, call.speculate, call.layout)

    def _settle(self, pieces: Sequence[Piece], decoder: Decoder, progress: Progress) -> list[Tensor]:
        """Codes of the rows; one whose frame of end codes was its last did end by itself."""
        rows = super()._settle(pieces, decoder, progress)
        for row, frames in zip(decoder.stats.rows, rows, strict=True):
            if len(frames) < row.tokens // self.num_codebooks:
                row.finish_reason = "stop"
        return rows


def _check_parts(model: Any, processor: Any) -> None:
    """Raise ValueError unless model, codec and processor belong together."""
    if model.config.model_type != "csm":
        raise ValueError(f"CsmPipeline speaks with models of type 'csm', got {model.config.model_type!r}.")
    codec = model.codec_model.config
    if model.config.num_codebooks > codec.num_quantizers:
        raise ValueError(
            f"The model draws {model.config.num_codebooks} codes a frame, but its codec has {codec.num_quantizers} books."
        )
    check_causal(model.codec_model)
    if not getattr(processor, "chat_template", None):
        raise ValueError("The processor has no chat template, which says how CSM reads conversations.")
    if (rate := processor.feature_extractor.sampling_rate) != codec.sampling_rate:
        raise ValueError(f"The processor is made for {rate} Hz, but the codec for {codec.sampling_rate} Hz.")
