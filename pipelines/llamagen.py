"""LlamaGen (Sun et al., 2024) as a pipeline: captions or classes in, pictures out, several tokens per forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from diffusers import VQModel
from diffusers.image_processor import VaeImageProcessor
from einops import rearrange
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, T5EncoderModel

from mmspec.acceptance.base import Acceptance, TokenVectors
from mmspec.core.controllers import WIDTHS
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import merge_stats
from mmspec.core.stopping import Stopping
from mmspec.core.verify import AcceptanceRule
from mmspec.drafters.base import Drafter, check_positive
from mmspec.image.captions import clean_caption, encode_captions
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.image.llamagen_target import Condition, LlamaGenModel
from mmspec.image.vq import codebook, decode_codes, downsample_factor
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.image_call import ImageCall, ImageRun, as_captions
from mmspec.pipelines.outputs import ImageOutput, PartialImages
from mmspec.pipelines.seeds import row_seeds
from mmspec.schedules.base import Schedule


class LlamaGenPipeline(SpecPipeline):
    """Text- and class-to-image generation.

    Args:
        transformer: The decoder.
        vq: The picture tokenizer.
        text_encoder, tokenizer: T5 for captions; ``None`` for a model that knows classes only.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        schedule: An order of decoding such as :class:`ZipARSchedule`, which replaces drafter and rule as long as it is
            set; ``None`` decodes one cell after the other.
        guidance_scale, temperature, top_k, top_p: What the checkpoint recommends, the defaults of a call.
        class_names: Names of the classes, so that calls may use them instead of numbers.
        clean_captions: Whether captions go through LlamaGen's cleaner, as in its training.
    """

    model_cpu_offload_seq = "text_encoder->transformer->vq"
    _swappable_components = ["drafter", "acceptance", "schedule"]  # noqa: RUF012 - diffusers' form
    _optional_components = ["text_encoder", "tokenizer", "drafter", "acceptance", "schedule"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq: VQModel,
        text_encoder: T5EncoderModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        schedule: Schedule | None = None,
        guidance_scale: float = 7.5,
        temperature: float = 1.0,
        top_k: int = 1000,
        top_p: float = 1.0,
        class_names: list[str] | None = None,
        clean_captions: bool = True,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, vq=vq, text_encoder=text_encoder, tokenizer=tokenizer,
            drafter=drafter, acceptance=acceptance, schedule=schedule,
        )  # fmt: skip
        self.register_to_config(
            guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p,
            class_names=class_names, clean_captions=clean_captions,
        )  # fmt: skip
        if transformer.config.vocab_size != vq.config.num_vq_embeddings:
            raise ValueError(
                f"`transformer` knows {transformer.config.vocab_size} codes but `vq` has "
                f"{vq.config.num_vq_embeddings}; they belong to different checkpoints."
            )
        self.image_processor = VaeImageProcessor(vae_scale_factor=downsample_factor(vq))

    @property
    def grid(self) -> tuple[int, int]:
        """Token rows and columns of a picture."""
        return self.transformer.config.grid_height, self.transformer.config.grid_width

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a picture in pixels."""
        factor = downsample_factor(self.vq)
        return self.grid[0] * factor, self.grid[1] * factor

    def token_vectors(self) -> TokenVectors:
        """The codebook of ``vq``; code i is token i, and there are no structural tokens."""
        return TokenVectors(codebook(self.vq))

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | str | Sequence[int | str] | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        guided_until: int | None = None,
        truncate_prompt: bool = False,
        micro_batch_size: int | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> ImageOutput | tuple[Any, ...]:
        """Generate pictures.

        Args:
            prompt: One caption or several. Give either this or ``class_labels``.
            class_labels: Class numbers or names, one or several.
            negative_prompt: What to steer away from instead of the null caption; one for all or one per caption.
            height, width: Pixels; only the model's own size is legal.
            guidance_scale: At least 0; 1 switches guidance off and halves the work.
            temperature, top_k, top_p: See :class:`SamplingParams`; by default what the checkpoint recommends.
            num_images_per_prompt: Pictures per caption, at least 1; they follow one another in the output.
            generator, seed: Source of the row seeds, see :func:`mmspec.pipelines.seeds.row_seeds`.
            speculate: ``False`` decodes plainly, one token per forward; with a SAME_TOKENS rule the result is the same.
            guided_until: Last token index that is guided (LlamaGen's ``cfg_interval`` + 1); ``None`` guides all.
            truncate_prompt: Cut captions that are too long instead of raising.
            micro_batch_size: Decode at most this many pictures together; changes memory, never a picture.
            output_type: ``pil``, ``np`` (B, h, w, 3) or ``pt`` (B, 3, h, w) in [0, 1], or ``tokens`` (B, N).
            return_dict: ``False`` returns the tuple ``(images, tokens, stats)``.
            callback_on_step_end: Called as ``callback(pipe, step, tokens_of_slowest_row, tensors)`` after each round;
                it may set ``pipe._interrupt = True``.
            callback_on_step_end_tensor_inputs: Which of ``tokens`` and ``lengths`` the callback gets.

        Raises:
            TypeError, ValueError: For bad arguments, before the first forward.
            MemoryError: If the call would not fit, before the first forward.
        """
        call = ImageCall(
            prompt, class_labels, negative_prompt, height, width, guidance_scale, temperature, top_k, top_p,
            num_images_per_prompt, generator, seed, speculate, guided_until, truncate_prompt, micro_batch_size,
            output_type,
        )  # fmt: skip
        self.check_callback(callback_on_step_end_tensor_inputs)
        run = ImageRun(self._requests(call))
        for decoder, progress in self.run_decoders(
            run.requests, callback_on_step_end, callback_on_step_end_tensor_inputs
        ):
            run.see(decoder, progress)
        output = self._finish(run, call)
        self.maybe_free_model_hooks()
        return output if return_dict else (output.images, output.tokens, output.stats)

    @torch.no_grad()
    def stream(self, prompt: str | Sequence[str] | None = None, **arguments: Any) -> Iterator[PartialImages]:
        """Generate as ``__call__`` does and yield the pictures whenever a token row is committed.

        Args:
            prompt, arguments: As for ``__call__``, without callback and ``return_dict``.

        Yields:
            :class:`PartialImages`; the last one is ``finished`` and carries the complete output.
        """
        call = ImageCall(prompt, **arguments)
        run = ImageRun(self._requests(call))
        shown = -1
        for decoder, progress in self.run_decoders(run.requests):
            run.see(decoder, progress)
            if (rows := sum(run.rows(self.grid[1]))) > shown:
                shown = rows
                yield PartialImages(self._partial(run), run.rows(self.grid[1]))
        output = self._finish(run, call)
        self.maybe_free_model_hooks()
        yield PartialImages(self._partial(run), run.rows(self.grid[1]), finished=True, output=output)

    @torch.no_grad()
    def warm_up(self, batch_size: int = 1, guidance_scale: float | None = None) -> dict[int, float]:
        """Compile, capture and time the decoder's forward for ``batch_size`` pictures, so that the first call is fast.

        Returns:
            Seconds of a forward by draft width.
        """
        check_positive("batch_size", batch_size)
        arguments = {"seed": 0, "num_images_per_prompt": batch_size, "guidance_scale": guidance_scale}
        condition = {"class_labels": 0} if self.text_encoder is None else {"prompt": ""}
        [request] = self._requests(ImageCall(**arguments, **condition))  # type: ignore[arg-type]
        costs = self.measure_costs(request, largest=WIDTHS[-1])
        self.maybe_free_model_hooks()
        return costs

    def encode_prompt(
        self,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str] | None = None,
        *,
        truncate: bool = False,
    ) -> Condition:
        """Turn captions into the decoder's condition.

        Raises:
            ValueError: If the checkpoint takes no captions, or one is too long and ``truncate`` is False.
        """
        if self.text_encoder is None or self.tokenizer is None:
            raise ValueError("This checkpoint takes no captions; give `class_labels`.")
        prompts = as_captions("prompt", prompt)
        negatives = None if negative_prompt is None else as_captions("negative_prompt", negative_prompt)
        if negatives is not None and len(negatives) not in (1, len(prompts)):
            raise ValueError(f"`negative_prompt` has {len(negatives)} entries for {len(prompts)} prompts.")
        embeds, mask = self._encode(prompts, truncate)
        if negatives is None:
            return Condition(caption_embeds=embeds, caption_mask=mask)
        negative_embeds, negative_mask = self._encode(negatives * (len(prompts) // len(negatives)), truncate)
        return Condition(embeds, mask, negative_embeds=negative_embeds, negative_mask=negative_mask)

    def _encode(self, captions: list[str], truncate: bool) -> tuple[Tensor, Tensor]:
        if self.config.clean_captions:
            captions = [clean_caption(caption) for caption in captions]
        return encode_captions(
            captions,
            self.tokenizer,
            self.text_encoder,
            max_length=self.transformer.config.condition_length,
            device=self._execution_device,
            dtype=self.transformer.dtype,
            truncate=truncate,
        )

    def encode_classes(self, class_labels: int | str | Sequence[int | str]) -> Condition:
        """Turn class numbers or names into the decoder's condition; ValueError for unknown ones."""
        count = self.transformer.config.num_classes
        if count is None:
            raise ValueError("This checkpoint knows no classes; give `prompt`.")
        labels = [class_labels] if isinstance(class_labels, (int, str)) else list(class_labels)
        if not labels:
            raise ValueError("`class_labels` is empty; give at least one class.")
        names = self.config.class_names or []
        numbers = []
        for label in labels:
            if isinstance(label, str) and label in names:
                numbers.append(names.index(label))
            elif isinstance(label, int) and not isinstance(label, bool) and 0 <= label < count:
                numbers.append(label)
            else:
                known = f", or one of {', '.join(names)}" if names else ""
                raise ValueError(f"Unknown class {label!r}; give a number from 0 to {count - 1}{known}.")
        return Condition(class_labels=torch.tensor(numbers, device=self._execution_device))

    def _requests(self, call: ImageCall) -> list[DecodeRequest]:
        """Check everything about a call, encode its condition and split it into micro-batches."""
        if (call.prompt is None) == (call.class_labels is None):
            raise ValueError("Give exactly one of `prompt` and `class_labels`.")
        if (call.height or self.image_size[0], call.width or self.image_size[1]) != self.image_size:
            legal = "{} x {}".format(*self.image_size)
            raise ValueError(f"`height` x `width` must be {legal} for this model, got {call.height} x {call.width}.")
        sampling = SamplingParams(*call.sampling(self.config))
        sampling.check_vocabulary(self.transformer.config.vocab_size)
        if sampling.greedy:
            self.warn_once("Greedy decoding hurts autoregressive image models: `temperature` is 0, usual is 1.")
        scale = self.config.guidance_scale if call.guidance_scale is None else call.guidance_scale
        guidance = Guidance(scale, call.guided_until)
        schedule = self.schedule if call.speculate else None
        drafter, rule = self.choose_method(call.speculate and schedule is None, sampling)
        if drafter is not None:
            drafter.check_vocabulary(self.transformer.config.vocab_size)
            drafter.check_target(self.transformer)
        num_samples = call.num_images_per_prompt * call.num_conditions
        seeds = row_seeds(num_samples, call.generator, call.seed)
        if call.prompt is not None:
            condition = self.encode_prompt(call.prompt, call.negative_prompt, truncate=call.truncate_prompt)
        elif call.negative_prompt is not None:
            raise ValueError("`negative_prompt` needs `prompt`; classes have the null class.")
        else:
            assert call.class_labels is not None
            condition = self.encode_classes(call.class_labels)
        condition = condition.repeat(call.num_images_per_prompt)
        size = call.micro_batch_size or num_samples
        parts = [slice(start, start + size) for start in range(0, num_samples, size)]
        return [
            self._request(
                condition.rows(part.start, part.stop), seeds[part], sampling, guidance, drafter, rule, schedule
            )
            for part in parts
        ]

    def _request(
        self,
        condition: Condition,
        seeds: list[int],
        sampling: SamplingParams,
        guidance: Guidance,
        drafter: Drafter | None,
        rule: AcceptanceRule,
        schedule: Schedule | None,
    ) -> DecodeRequest:
        config = self.transformer.config
        rows, columns = self.grid
        return DecodeRequest(
            model=lambda network, device: LlamaGenModel(
                network, condition, guidance.branches > 1, device, forward=self.compiled(network)
            ),
            network=self.transformer,
            seeds=seeds,
            sampling=sampling,
            stopping=Stopping(rows * columns, fixed_length=True),
            guidance=guidance,
            drafter=drafter,
            rule=rule,
            schedule=schedule,
            row_length=columns,
            cache_bytes_per_slot=2 * config.num_layers * config.hidden_size * self.transformer.dtype.itemsize,
            decode_bytes=len(seeds)
            * self.image_size[0]
            * self.image_size[1]
            * 2
            * 4
            * max(self.vq.config.block_out_channels),
        )

    def _finish(self, run: ImageRun, call: ImageCall) -> ImageOutput:
        """Turn the tokens of a run into what the caller asked for."""
        stats = merge_stats([decoder.stats for decoder in run.decoders])
        tokens = run.tokens().cpu()
        if call.output_type == "tokens":
            return ImageOutput(images=tokens, tokens=tokens, stats=stats)
        with stats.timed("decode"):
            if min(run.lengths()) < tokens.shape[1]:  # interrupted
                pictures = self.image_processor.pil_to_numpy(self._partial(run))
                images = self.image_processor.numpy_to_pt(pictures) * 2 - 1
            else:
                images = self.decode_tokens(tokens)
            images = self.image_processor.postprocess(images, output_type=call.output_type)
        return ImageOutput(images=images, tokens=tokens, stats=stats)

    def decode_tokens(self, tokens: Tensor) -> Tensor:
        """Pictures (B, 3, h, w), roughly in [-1, 1], of complete token grids (B, N) in raster order."""
        codes = rearrange(tokens, "b (h w) -> b h w", w=self.grid[1])
        # one by one: convolutions of a batch round differently, so a picture's bytes would depend on its batch
        return decode_codes(self.vq, codes.to(self._execution_device), micro_batch=1).float()

    def _partial(self, run: ImageRun) -> list[Image.Image]:
        """The committed rows of every sample on a white canvas; samples that did not start yet are white."""
        height, width = self.image_size
        pictures = []
        for tokens, rows in zip(run.tokens().cpu(), run.rows(self.grid[1]), strict=True):
            canvas = Image.new("RGB", (width, height), "white")
            if rows:
                upper = tokens[None, : rows * self.grid[1]]
                [strip] = self.image_processor.postprocess(self.decode_tokens(upper), output_type="pil")
                canvas.paste(strip, (0, 0))
            pictures.append(canvas)
        return pictures
