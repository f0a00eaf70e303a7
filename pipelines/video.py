"""Cosmos-class video generation: a picture or a clip in, its continuation out, several tokens per forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, T5EncoderModel

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats, join_stretches, merge_stats
from mmspec.core.stopping import Stopping
from mmspec.core.verify import AcceptanceRule
from mmspec.drafters.base import Drafter
from mmspec.image.captions import encode_captions
from mmspec.image.video_ar import VideoARTransformer
from mmspec.image.video_grid import VideoGrid
from mmspec.image.video_target import VideoCondition, VideoModel
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.image_call import as_captions
from mmspec.pipelines.seeds import row_seeds, stretch_seed
from mmspec.pipelines.video_call import PartialVideos, Segment, VideoCall, VideoOutput
from mmspec.pipelines.video_frames import (
    ClipPlan,
    decode_stretch,
    encode_context,
    plan_clip,
    postprocess,
    read_inputs,
)


@dataclass(frozen=True)
class VideoJob:
    """A checked call: its lengths, what is continued, the row seeds, and how tokens are drawn and drafted."""

    plan: ClipPlan
    condition: VideoCondition
    seeds: list[int]
    sampling: SamplingParams
    guidance: Guidance
    drafter: Drafter | None
    rule: AcceptanceRule
    micro_batch_size: int


class VideoPipeline(SpecPipeline):
    """Image- and clip-conditioned video generation.

    Args:
        transformer: The decoder.
        video_tokenizer: Turns frames into codes and back.
        text_encoder, tokenizer: T5 for prompts, for decoders with cross-attention.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        guidance_scale, temperature, top_k, top_p: What the checkpoint recommends, the defaults of a call.
        fps: Frames per second of its clips.
        max_context: Most latent frames that a clip may continue (2 in the release).
        context_length: Text slots; what a prompt leaves free is zeros, and is attended to.

    Raises:
        ValueError: If the parts belong to different checkpoints.
    """

    model_cpu_offload_seq = "text_encoder->transformer->video_tokenizer"
    _optional_components = ["text_encoder", "tokenizer", "drafter", "acceptance"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        transformer: VideoARTransformer,
        video_tokenizer: DiscreteVideoTokenizer,
        text_encoder: T5EncoderModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        guidance_scale: float = 1.0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.8,
        fps: float = 25.0,
        max_context: int = 2,
        context_length: int = 512,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, video_tokenizer=video_tokenizer, text_encoder=text_encoder, tokenizer=tokenizer,
            drafter=drafter, acceptance=acceptance,
        )  # fmt: skip
        self.register_to_config(
            guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p, fps=fps,
            max_context=max_context, context_length=context_length,
        )  # fmt: skip
        if transformer.config.vocab_size != video_tokenizer.num_codes:
            raise ValueError(
                f"`transformer` knows {transformer.config.vocab_size} codes but `video_tokenizer` has "
                f"{video_tokenizer.num_codes}; they belong to different checkpoints."
            )

    @property
    def network(self) -> VideoARTransformer:
        """The model that is decoded."""
        return self.transformer

    @property
    def layout(self) -> VideoGrid:
        """Token layout of a clip of the decoder's own length."""
        frames, rows, columns = self.transformer.config.latent_shape
        return VideoGrid(frames, rows, columns, self.transformer.config.vocab_size)

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame in pixels."""
        side = self.video_tokenizer.config.spatial_compression
        return self.layout.rows * side, self.layout.columns * side

    @property
    def num_frames(self) -> int:
        """Frames of a clip of the decoder's own length."""
        return self.video_tokenizer.pixel_frames(self.layout.frames)

    @torch.no_grad()
    def __call__(
        self,
        image: Any = None,
        video: Any = None,
        prompt: str | Sequence[str] | None = None,
        *,
        num_frames: int | None = None,
        context_frames: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_videos_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        extend: bool = False,
        truncate_prompt: bool = False,
        micro_batch_size: int | None = None,
        fps: float | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> VideoOutput | tuple[Any, ...]:
        """Continue pictures or clips.

        Args:
            image: A picture (PIL image, array, tensor or path), or a list of them, to start from.
            video: A clip to go on from instead: PIL images, an array (F, h, w, 3), a tensor (F, 3, h, w), the path of
                an mp4 or gif; or a list of clips. Frames are resized until they cover the model's size, and cropped.
            prompt: One text or one per input, for models with cross-attention; ``None`` is no text.
            num_frames: Frames of the whole clip, context included; which are legal depends on the model, and an error
                lists them. By default the length of the model's training.
            context_frames: How many of the last frames of ``video`` are the context; by default as many as fit.
            guidance_scale: At least 0; 1 switches guidance off. Only with a prompt.
            temperature, top_k, top_p: See :class:`SamplingParams`; by default what the checkpoint recommends.
            num_videos_per_prompt: Clips per input, at least 1; they follow one another in the output.
            generator, seed: Source of the row seeds, see :func:`mmspec.pipelines.seeds.row_seeds`.
            speculate: ``False`` decodes plainly, one token per forward; with a SAME_TOKENS rule the result is the same.
            extend: Allow more frames than the model was trained for: a window that slides over the clip.
            truncate_prompt: Cut prompts that are too long instead of raising.
            micro_batch_size: Decode at most this many clips together; changes memory, never a clip.
            fps: Frames per second of mp4 and gif; by default the checkpoint's.
            output_type: ``pil``, ``np`` (B, F, h, w, 3) or ``pt`` (B, F, 3, h, w) in [0, 1], ``mp4`` or ``gif`` as
                bytes, or ``tokens`` (B, N).
            return_dict: ``False`` returns the tuple ``(frames, tokens, stats)``.
            callback_on_step_end: Called as ``callback(pipe, step, tokens_of_slowest_row, tensors)`` after each round;
                it may set ``pipe._interrupt = True``.
            callback_on_step_end_tensor_inputs: Which of ``tokens`` and ``lengths`` the callback gets.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad arguments, before the first forward.
            MemoryError: If the call would not fit, before the first forward.
        """
        call = VideoCall(
            image, video, prompt, num_frames, context_frames, guidance_scale, temperature, top_k, top_p,
            num_videos_per_prompt, generator, seed, speculate, extend, truncate_prompt, micro_batch_size, fps, output_type,
        )  # fmt: skip
        self.check_callback(callback_on_step_end_tensor_inputs)
        segments: list[Segment] = []
        for segment in self._segments(call, callback_on_step_end, callback_on_step_end_tensor_inputs):
            if not segments or segments[-1] is not segment:
                segments.append(segment)
        output = self._finish(segments, call)
        self.maybe_free_model_hooks()
        return output if return_dict else (output.frames, output.tokens, output.stats)

    @torch.no_grad()
    def stream(
        self, image: Any = None, video: Any = None, prompt: Any = None, **arguments: Any
    ) -> Iterator[PartialVideos]:
        """Generate as ``__call__`` does and yield frames whenever a latent frame is committed.

        Args:
            image, video, prompt, arguments: As for ``__call__``, without callback and ``return_dict``.

        Yields:
            :class:`PartialVideos`; the last one is ``finished`` and carries the complete output.
        """
        call = VideoCall(image, video, prompt, **arguments)
        segments: list[Segment] = []
        shown: list[int] = []
        counts: list[int] = []
        for segment in self._segments(call):
            if not segments or segments[-1] is not segment:
                segments.append(segment)
                shown = [0] * segment.num_rows
                counts = counts or [0] * segment.num_rows
            if (known := segment.frames()) != shown:
                fresh = self._fresh_frames(segment, shown, known, first=len(segments) == 1)
                counts = [count + len(new) for count, new in zip(counts, fresh, strict=True)]
                shown = known
                yield PartialVideos(fresh, list(counts), stats=self._stats(segments))
        output = self._finish(segments, call)
        self.maybe_free_model_hooks()
        yield PartialVideos([[] for _ in counts], counts, finished=True, output=output, stats=output.stats)

    def _fresh_frames(self, segment: Segment, shown: list[int], known: list[int], first: bool) -> list[list[Any]]:
        """Frames of the latent frames that every sample has committed since ``shown``."""
        tokens = segment.tokens()
        fresh: list[list[Any]] = []
        for row, (before, now) in enumerate(zip(shown, known, strict=True)):
            if now == before:
                fresh.append([])
                continue
            new = tokens[row : row + 1, : now * segment.grid.frame_length]
            frames = decode_stretch(
                segment.context[row : row + 1], new, segment.grid, self.video_tokenizer, self._execution_device, first
            )
            [pictures] = postprocess(frames, "pil", 1, self.video_tokenizer.config.spatial_compression)
            ahead = (now - before) * self.video_tokenizer.config.temporal_compression
            fresh.append(pictures if first and not before else pictures[-ahead:])
        return fresh

    def _segments(
        self, call: VideoCall, callback: Callable[..., Any] | None = None, tensor_inputs: Sequence[str] = ("tokens",)
    ) -> Iterator[Segment]:
        """Decode stretch after stretch; yield the running one after every round."""
        job = self._open(call)
        condition = job.condition
        for number, new_frames in enumerate(job.plan.stretches):
            grid = VideoGrid(new_frames, self.layout.rows, self.layout.columns, self.layout.num_codes)
            segment = Segment(condition.codes.cpu(), grid, len(job.seeds))
            requests = self._requests(job, condition, number, grid)
            for decoder, progress in self.run_decoders(requests, callback, tensor_inputs):
                segment.see(decoder, progress)
                yield segment
            if self.interrupt:
                return
            known = torch.cat([condition.codes.cpu(), segment.tokens()], dim=1)
            last = known[:, -job.plan.context * grid.frame_length :].to(condition.codes.device)
            condition = VideoCondition(last, condition.text)

    def _open(self, call: VideoCall) -> VideoJob:
        """Check everything about a call, read its inputs and encode them."""
        inputs = read_inputs(call)
        plan = self._plan(call, inputs)
        sampling, guidance = self._sampling(call)
        drafter, rule = self.choose_method(call.speculate, sampling)
        if drafter is not None:
            drafter.check_vocabulary(self.layout.num_codes)
            drafter.check_target(self.network)
        count = call.num_videos_per_prompt
        seeds = row_seeds(count * len(inputs), call.generator, call.seed)
        frames = self.video_tokenizer.pixel_frames(plan.context)
        codes = encode_context(inputs, frames, self.frame_size, self.video_tokenizer, self._execution_device)
        condition = VideoCondition(codes, self._text(call, len(inputs))).repeat(count)
        return VideoJob(plan, condition, seeds, sampling, guidance, drafter, rule, call.micro_batch_size or len(seeds))

    def first_requests(self, call: VideoCall) -> list[DecodeRequest]:
        """What the first stretch of ``call`` decodes, a request for each micro-batch; for measurements."""
        job = self._open(call)
        grid = VideoGrid(job.plan.stretches[0], self.layout.rows, self.layout.columns, self.layout.num_codes)
        return self._requests(job, job.condition, 0, grid)

    def _plan(self, call: VideoCall, inputs: Sequence[Any]) -> ClipPlan:
        given = min(len(frames) for frames in inputs)
        plan = plan_clip(call, self.video_tokenizer, self.layout.frames, self.config.max_context, given)
        if plan.total > plan.native:
            self.warn_once(
                f"Outside training: this model learnt clips of {self.num_frames} frames. Beyond them every stretch "
                "continues the last frames alone, and quality is not known."
            )
        return plan

    def _sampling(self, call: VideoCall) -> tuple[SamplingParams, Guidance]:
        sampling = SamplingParams(*call.sampling(self.config))
        sampling.check_vocabulary(self.layout.num_codes)
        by_text = self.transformer.config.context_dim is not None
        if call.prompt is not None and (not by_text or self.text_encoder is None or self.tokenizer is None):
            raise ValueError("This checkpoint takes no prompt; leave it out.")
        scale = call.guidance_scale
        if scale is None:
            scale = self.config.guidance_scale if call.prompt is not None else 1.0
        if scale != 1 and call.prompt is None:
            raise ValueError(f"`guidance_scale` is {scale}, but there is no prompt to guide by; give one, or 1.")
        return sampling, Guidance(scale)

    def _text(self, call: VideoCall, count: int) -> Tensor | None:
        """Text features (B, C, width) of the prompts, zeros without, ``None`` for models that take none."""
        if (width := self.transformer.config.context_dim) is None:
            return None
        length = self.config.context_length
        if call.prompt is None:
            return torch.zeros(count, length, width, device=self._execution_device, dtype=self.transformer.dtype)
        prompts = as_captions("prompt", call.prompt)
        if len(prompts) not in (1, count):
            raise ValueError(f"`prompt` has {len(prompts)} entries for {count} inputs; give one, or one each.")
        features, _ = encode_captions(
            prompts * (count // len(prompts)), self.tokenizer, self.text_encoder, max_length=length,
            device=self._execution_device, dtype=self.transformer.dtype, truncate=call.truncate_prompt, left=False,
        )  # fmt: skip
        return features

    def _requests(self, job: VideoJob, condition: VideoCondition, number: int, grid: VideoGrid) -> list[DecodeRequest]:
        """A request for each micro-batch of the ``number``-th stretch, which continues ``condition``."""
        cuts = range(0, len(job.seeds), job.micro_batch_size)
        parts = [slice(start, min(start + job.micro_batch_size, len(job.seeds))) for start in cuts]
        seeds = [stretch_seed(seed, number) for seed in job.seeds]
        return [self._request(job, condition.rows(p.start, p.stop), seeds[p], grid) for p in parts]

    def _request(self, job: VideoJob, condition: VideoCondition, seeds: list[int], grid: VideoGrid) -> DecodeRequest:
        config = self.transformer.config
        guided = job.guidance.branches > 1
        return DecodeRequest(
            model=lambda network, device: VideoModel(network, condition, guided, device, self.compiled(network)),
            network=self.network,
            seeds=seeds,
            sampling=job.sampling,
            stopping=Stopping(grid.num_tokens, fixed_length=True),
            guidance=job.guidance,
            drafter=job.drafter,
            rule=job.rule,
            row_length=grid.columns,
            frame_length=grid.frame_length,
            prompt_ids=condition.codes,
            cache_bytes_per_slot=2
            * config.num_layers
            * config.num_kv_heads
            * config.head_dim
            * self.transformer.dtype.itemsize,
            decode_bytes=self._decode_bytes(),
        )

    def _decode_bytes(self) -> int:
        """Bytes of the widest activations while one clip is decoded."""
        height, width = self.frame_size
        tokenizer = self.video_tokenizer.config
        cells = self.num_frames * height * width // tokenizer.patch_size**2
        return 3 * self.video_tokenizer.dtype.itemsize * cells * max(tokenizer.decoder_channels)

    def _finish(self, segments: list[Segment], call: VideoCall) -> VideoOutput:
        stats = self._stats(segments)
        tokens = torch.cat([segments[0].context, *(segment.tokens() for segment in segments)], dim=1)
        extended = len(segments) > 1
        if call.output_type == "tokens":
            return VideoOutput(tokens, tokens, stats, extended)
        with stats.timed("decode"):
            videos = [
                decode_stretch(
                    s.context, self._committed(s), s.grid, self.video_tokenizer, self._execution_device, not number
                )
                for number, s in enumerate(segments)
            ]
            frames = postprocess(
                torch.cat(videos, dim=2), call.output_type, call.fps or self.config.fps,
                self.video_tokenizer.config.spatial_compression,
            )  # fmt: skip
        return VideoOutput(frames, tokens, stats, extended)

    @staticmethod
    def _committed(segment: Segment) -> Tensor:
        """New codes (B, M), of an interrupted call those of the latent frames that all samples have."""
        return segment.tokens()[:, : min(segment.frames()) * segment.grid.frame_length]

    @staticmethod
    def _stats(segments: list[Segment]) -> DecodeStats:
        return join_stretches([merge_stats([d.stats for d in s.decoders]) for s in segments])

    @torch.no_grad()
    def decode_tokens(self, tokens: Tensor) -> Tensor:
        """Videos (B, 3, F, h, w), roughly in [-1, 1], of whole latent frames (B, T * H * W), of one stretch."""
        codes = self.layout.codes(tokens)
        return torch.cat([self.video_tokenizer.decode(one.to(self._execution_device)) for one in codes.split(1)])
