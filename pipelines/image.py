"""What all token-based image pipelines are: a call, streaming by rows, and what a model family has to say for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from torch import Tensor

from mmspec.acceptance.base import TokenVectors
from mmspec.core.controllers import WIDTHS
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stopping import Stopping
from mmspec.core.verify import AcceptanceRule
from mmspec.drafters.base import Drafter, check_positive
from mmspec.image.grid import Grid
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.image_call import ImageCall, ImageRun
from mmspec.pipelines.outputs import ImageOutput, PartialImages
from mmspec.pipelines.seeds import row_seeds
from mmspec.runner.memory import MemoryEstimate
from mmspec.runner.runner import DecoderModel
from mmspec.schedules.base import Schedule


class SampleConditions(Protocol):
    """What the samples of a call are conditioned on, in whatever form the family needs."""

    def __len__(self) -> int: ...

    def repeat(self, count: int) -> Any:
        """Every sample ``count`` times in a row."""
        ...

    def rows(self, start: int, stop: int) -> Any:
        """The samples ``start`` to ``stop``."""
        ...


class ImagePipeline(SpecPipeline):
    """Base of the image pipelines. A family fills in the abstract members; everything else is shared.

    Its config holds ``guidance_scale``, ``temperature``, ``top_k`` and ``top_p``, the defaults of a call.
    """

    @property
    @abstractmethod
    def network(self) -> Any:
        """The model that is decoded."""

    @property
    @abstractmethod
    def pixels_per_code(self) -> int:
        """Pixels per code and side."""

    @property
    @abstractmethod
    def codebook(self) -> Tensor:
        """Vectors of the codes (K, E) as the picture tokenizer uses them; row k belongs to token k of the loop."""

    @abstractmethod
    def layout(self, height: int | None = None, width: int | None = None, aspect_ratio: str | None = None) -> Grid:
        """Token layout of a picture of that size in pixels, by default the model's own.

        Raises:
            ValueError: Naming the legal sizes, if the model does not make this one.
        """

    @abstractmethod
    def check_call(self, call: ImageCall) -> None:
        """Raise ValueError if this model cannot do what ``call`` asks; no forward has run."""

    @abstractmethod
    def encode_conditions(self, call: ImageCall, grid: Grid) -> SampleConditions:
        """The condition of each prompt or class of ``call``; runs a text encoder, if the family has one."""

    @abstractmethod
    def decoder_model(self, network: Any, conditions: Any, guidance: Guidance, device: torch.device) -> DecoderModel:
        """``network`` with its prompts, as the runner sees it; with guidance, unconditional rows follow."""

    @abstractmethod
    def decode_codes(self, codes: Tensor) -> Tensor:
        """Pictures (B, 3, h, w), roughly in [-1, 1], of codes (B, rows, columns)."""

    @abstractmethod
    def cache_bytes_per_slot(self) -> int:
        """Bytes of keys and values of one slot, all layers."""

    @abstractmethod
    def decode_bytes_per_pixel(self) -> int:
        """Bytes of the widest activations while a picture is decoded, per pixel."""

    def token_vectors(self) -> TokenVectors:
        """The codebook; code i is token i of the loop, and structural tokens have no vector."""
        return TokenVectors(self.codebook)

    def token_ids(self, grid: Grid) -> Tensor | None:
        """The model's own id of every token of the loop (V,); ``None`` where they are the same."""
        return None

    @property
    def grid(self) -> tuple[int, int]:
        """Token rows and columns of a picture of the default size."""
        grid = self.layout()
        return grid.rows, grid.columns

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a picture of the default size in pixels."""
        rows, columns = self.grid
        return rows * self.pixels_per_code, columns * self.pixels_per_code

    @property
    def image_processor(self) -> VaeImageProcessor:
        """Turns pictures in [-1, 1] into what ``output_type`` names."""
        return VaeImageProcessor(vae_scale_factor=self.pixels_per_code)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | str | Sequence[int | str] | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        aspect_ratio: str | None = None,
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
            prompt: One caption or several. Models that know classes take either this or ``class_labels``.
            class_labels: Class numbers or names, one or several.
            negative_prompt: What to steer away from instead of the null caption; one for all or one per caption.
            height, width: Pixels; which are legal depends on the model, and an error lists them.
            aspect_ratio: ``width:height`` such as ``16:9``, instead of ``height`` and ``width``.
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
            prompt, class_labels, negative_prompt, height, width, aspect_ratio, guidance_scale, temperature, top_k,
            top_p, num_images_per_prompt, generator, seed, speculate, guided_until, truncate_prompt, micro_batch_size,
            output_type,
        )  # fmt: skip
        output = self._generate(call, callback_on_step_end, callback_on_step_end_tensor_inputs)
        return output if return_dict else (output.images, output.tokens, output.stats)

    def _generate(
        self, call: ImageCall, callback: Callable[..., Any] | None, tensor_inputs: Sequence[str]
    ) -> ImageOutput:
        self.check_callback(tensor_inputs)
        run = self._open(call)
        for decoder, progress in self.run_decoders(run.requests, callback, tensor_inputs):
            run.see(decoder, progress)
        output = self._finish(run, call)
        self.maybe_free_model_hooks()
        return output

    @torch.no_grad()
    def stream(self, prompt: str | Sequence[str] | None = None, **arguments: Any) -> Iterator[PartialImages]:
        """Generate as ``__call__`` does and yield the pictures whenever a token row is committed.

        Args:
            prompt, arguments: As for ``__call__``, without callback and ``return_dict``.

        Yields:
            :class:`PartialImages`; the last one is ``finished`` and carries the complete output.
        """
        yield from self._stream(ImageCall(prompt, **arguments))

    def _stream(self, call: ImageCall) -> Iterator[PartialImages]:
        run = self._open(call)
        shown = -1
        for decoder, progress in self.run_decoders(run.requests):
            run.see(decoder, progress)
            if (known := run.shown()) > shown:
                shown = known
                yield PartialImages(self._partial(run), run.rows(), stats=run.stats())
        output = self._finish(run, call)
        self.maybe_free_model_hooks()
        yield PartialImages(self._partial(run), run.rows(), finished=True, output=output, stats=output.stats)

    @torch.no_grad()
    def memory_need(self, prompt: str | Sequence[str] | None = None, **arguments: Any) -> MemoryEstimate:
        """Bytes that a call would need on top of the weights for its first micro-batch; nothing is generated.

        Raises:
            TypeError, ValueError: As the call would.
        """
        request = self._requests(ImageCall(prompt, **arguments))[0]
        model = request.model(request.network, self._execution_device)
        return self.estimate(request, model.prompt.width, model.vocab_size)

    @torch.no_grad()
    def warm_up(self, batch_size: int = 1, guidance_scale: float | None = None) -> dict[int, float]:
        """Compile, capture and time the decoder's forward for ``batch_size`` pictures, so that the first call is fast.

        Returns:
            Seconds of a forward by draft width.
        """
        check_positive("batch_size", batch_size)
        [request] = self._requests(self._any_call(num_images_per_prompt=batch_size, guidance_scale=guidance_scale))
        costs = self.measure_costs(request, largest=WIDTHS[-1])
        self.maybe_free_model_hooks()
        return costs

    def _any_call(self, **arguments: Any) -> ImageCall:
        """A legal call, to be timed."""
        return ImageCall(prompt="", seed=0, **arguments)

    def _open(self, call: ImageCall) -> ImageRun:
        return ImageRun(self._requests(call), self.layout(call.height, call.width, call.aspect_ratio))

    def _requests(self, call: ImageCall) -> list[DecodeRequest]:
        """Check everything about a call, encode its conditions and split it into micro-batches."""
        self.check_call(call)
        grid = self.layout(call.height, call.width, call.aspect_ratio)
        sampling = SamplingParams(*call.sampling(self.config))
        sampling.check_vocabulary(grid.num_codes)
        if sampling.greedy:
            self.warn_once("Greedy decoding hurts autoregressive image models: `temperature` is 0, usual is 1.")
        scale = self.config.guidance_scale if call.guidance_scale is None else call.guidance_scale
        guidance = Guidance(scale, call.guided_until)
        schedule = getattr(self, "schedule", None) if call.speculate else None
        drafter, rule = self.choose_method(call.speculate and schedule is None, sampling)
        if drafter is not None:
            drafter.check_vocabulary(grid.vocab_size)
            drafter.check_target(self.network)
        num_samples = call.num_images_per_prompt * call.num_conditions
        seeds = row_seeds(num_samples, call.generator, call.seed)
        conditions = self.encode_conditions(call, grid).repeat(call.num_images_per_prompt)
        size = call.micro_batch_size or num_samples
        parts = [slice(start, start + size) for start in range(0, num_samples, size)]
        return [
            self._request(
                conditions.rows(part.start, part.stop), seeds[part], grid, sampling, guidance, drafter, rule, schedule
            )
            for part in parts
        ]

    def _request(
        self,
        conditions: Any,
        seeds: list[int],
        grid: Grid,
        sampling: SamplingParams,
        guidance: Guidance,
        drafter: Drafter | None,
        rule: AcceptanceRule,
        schedule: Schedule | None,
    ) -> DecodeRequest:
        pixels = grid.rows * grid.columns * self.pixels_per_code**2
        return DecodeRequest(
            model=lambda network, device: self.decoder_model(network, conditions, guidance, device),
            network=self.network,
            seeds=seeds,
            sampling=sampling,
            stopping=Stopping(grid.num_tokens, fixed_length=True),
            guidance=guidance,
            drafter=drafter,
            rule=rule,
            schedule=schedule,
            row_length=grid.row_length,
            row_start=grid.row_start,
            grammar=grid.grammar(),
            token_ids=self.token_ids(grid),
            cache_bytes_per_slot=self.cache_bytes_per_slot(),
            decode_bytes=pixels * self.decode_bytes_per_pixel(),  # pictures are decoded one by one
        )

    def _finish(self, run: ImageRun, call: ImageCall) -> ImageOutput:
        """Turn the tokens of a run into what the caller asked for."""
        stats = run.stats()
        tokens = run.own_ids()
        if call.output_type == "tokens":
            return ImageOutput(images=tokens, tokens=tokens, stats=stats)
        with stats.timed("decode"):
            if min(run.rows()) < run.grid.rows:  # interrupted
                pictures = self.image_processor.pil_to_numpy(self._partial(run))
                images = self.image_processor.numpy_to_pt(pictures) * 2 - 1
            else:
                images = self._decode(run.grid.codes(run.tokens()))
            images = self.image_processor.postprocess(images, output_type=call.output_type)
        return ImageOutput(images=images, tokens=tokens, stats=stats)

    def decode_tokens(self, tokens: Tensor) -> Tensor:
        """Pictures (B, 3, h, w), roughly in [-1, 1], of complete pictures (B, M) of the default size in the loop's ids."""
        return self._decode(self.layout().codes(tokens))

    def _decode(self, codes: Tensor) -> Tensor:
        # one by one: convolutions of a batch round differently, so a picture's bytes would depend on its batch
        there = codes.to(self._execution_device)
        return torch.cat([self.decode_codes(one).float() for one in there.split(1)])

    def _partial(self, run: ImageRun) -> list[Image.Image]:
        """The committed rows of every sample on a white canvas; samples that did not start yet are white."""
        size = run.grid.columns * self.pixels_per_code, run.grid.rows * self.pixels_per_code
        pictures = []
        for tokens, rows in zip(run.tokens(), run.rows(), strict=True):
            canvas = Image.new("RGB", size, "white")
            if rows:
                upper = self._decode(run.grid.codes(tokens[None], rows))
                [strip] = self.image_processor.postprocess(upper, output_type="pil")
                canvas.paste(strip, (0, 0))
            pictures.append(canvas)
        return pictures
