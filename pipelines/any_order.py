"""RandAR and ARPG as a pipeline: pictures of classes, cell after cell in any order, with known cells if there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from diffusers import VQModel
from PIL import Image
from torch import Tensor

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import Stopping
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import Drafter
from mmspec.image.any_order import ORDERS, AnyOrderModel, cell_order
from mmspec.image.any_order_inputs import AnyOrderCondition, known_cells, read_pictures
from mmspec.image.arpg import ARPGTransformer
from mmspec.image.grid import Grid
from mmspec.image.parallel_groups import ParallelDecoder
from mmspec.image.randar import RandARTransformer
from mmspec.image.sizes import check_only_size
from mmspec.image.vq import codebook, decode_codes, downsample_factor, encode_images
from mmspec.pipelines.any_order_call import AnyOrderCall, AnyOrderRequest, AnyOrderRun
from mmspec.pipelines.base import DecodeRequest
from mmspec.pipelines.image import ImagePipeline
from mmspec.pipelines.image_call import ImageCall, ImageRun
from mmspec.pipelines.outputs import ImageOutput, PartialImages
from mmspec.runner.memory import check_memory


class AnyOrderPipeline(ImagePipeline):
    """Class-to-image generation, inpainting and outpainting in any order of the cells.

    Args:
        transformer: A :class:`RandARTransformer` or :class:`ARPGTransformer`.
        vq: The picture tokenizer.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        guidance_scale, temperature, top_k, top_p, order: What the checkpoint recommends, the defaults of a call.
        class_names: Names of the classes, so that calls may use them instead of numbers.

    Raises:
        ValueError: If the parts do not fit one another.
    """

    model_cpu_offload_seq = "transformer->vq"

    def __init__(
        self,
        transformer: RandARTransformer | ARPGTransformer,
        vq: VQModel,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        guidance_scale: float = 4.0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        order: str = "random",
        class_names: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, vq=vq, drafter=drafter, acceptance=acceptance)
        self.register_to_config(
            guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p, order=order,
            class_names=class_names,
        )  # fmt: skip
        if order not in ORDERS:
            raise ValueError(f"Unknown `order` {order!r}; choose one of {', '.join(ORDERS)}.")
        config = transformer.config
        if config.vocab_size != vq.config.num_vq_embeddings:
            raise ValueError(
                f"`transformer` knows {config.vocab_size} codes but `vq` has {vq.config.num_vq_embeddings}; they belong "
                "to different checkpoints."
            )
        if class_names is not None and len(class_names) != config.num_classes:
            raise ValueError(f"`class_names` has {len(class_names)} names for {config.num_classes} classes.")

    @property
    def network(self) -> RandARTransformer | ARPGTransformer:
        return self.transformer

    @property
    def pixels_per_code(self) -> int:
        return downsample_factor(self.vq)

    @property
    def codebook(self) -> Tensor:
        return codebook(self.vq)

    def layout(self, height: int | None = None, width: int | None = None, aspect_ratio: str | None = None) -> Grid:
        config = self.transformer.config
        grid = Grid(config.grid_height, config.grid_width, config.vocab_size)
        check_only_size(grid, self.pixels_per_code, height, width, aspect_ratio)
        return grid

    def check_call(self, call: ImageCall) -> None:
        if call.prompt is not None or call.negative_prompt is not None:
            raise ValueError("This model knows classes only; give `class_labels` and no prompts.")
        if call.class_labels is None:
            raise ValueError("Give `class_labels`.")

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | str | Sequence[int | str] | None = None,
        image: Any = None,
        mask_image: Any = None,
        order: str | None = None,
        order_seed: int = 0,
        parallel_steps: int | None = None,
        return_dict: bool = True,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        **arguments: Any,
    ) -> ImageOutput | tuple[Any, ...]:
        """Generate pictures, or paint parts of given ones anew.

        Args:
            prompt: Must be ``None``; these models know classes only.
            class_labels: Class numbers or names, one or several.
            image: A picture to keep in parts: a path, PIL image, array or tensor; or a list of them, one per class. It is
                resized to the model's size.
            mask_image: What to paint anew: white pixels. A cell is kept if none of its pixels is white; a mask that is
                white around a box is outpainting.
            order: ``random`` or ``raster``; kept cells come first. By default what the checkpoint recommends.
            order_seed: Which random order, the same for all pictures of a call.
            parallel_steps: Draw the cells in so many groups instead, whose cells are independent of one another: the
                model's native sampler, with another law than that of one cell after the other.
            return_dict: ``False`` returns the tuple ``(images, tokens, stats)``.
            callback_on_step_end, callback_on_step_end_tensor_inputs, arguments: As for
                :meth:`ImagePipeline.__call__`.

        Raises:
            TypeError, ValueError: For bad arguments, before the first forward.
            MemoryError: If the call would not fit, before the first forward.
        """
        call = AnyOrderCall(
            prompt, class_labels, image=image, mask_image=mask_image, order=order, order_seed=order_seed,
            parallel_steps=parallel_steps, **arguments,
        )  # fmt: skip
        output = self._generate(call, callback_on_step_end, callback_on_step_end_tensor_inputs)
        return output if return_dict else (output.images, output.tokens, output.stats)

    @torch.no_grad()
    def stream(self, prompt: str | Sequence[str] | None = None, **arguments: Any) -> Iterator[PartialImages]:
        """Generate as ``__call__`` does and yield the pictures, open cells white, whenever cells are committed.

        Args:
            prompt, arguments: As for ``__call__``, without callback and ``return_dict``.

        Yields:
            :class:`PartialImages`; the last one is ``finished`` and carries the complete output.
        """
        yield from self._stream(AnyOrderCall(prompt, **arguments))

    def encode_conditions(self, call: ImageCall, grid: Grid) -> AnyOrderCondition:
        assert isinstance(call, AnyOrderCall)
        labels = self._labels(call)
        cells = torch.empty(0, dtype=torch.long)
        known = torch.empty(len(labels), 0, dtype=torch.long)
        if call.image is not None:
            cells = known_cells(call.mask_image, grid.rows, grid.columns)
            known = self._known_tokens(call.image, cells, len(labels))
        order = cell_order(call.order or self.config.order, grid.num_tokens, call.order_seed, cells)
        device = self._execution_device
        return AnyOrderCondition(labels.to(device), order, known.to(device))

    def _known_tokens(self, image: Any, cells: Tensor, count: int) -> Tensor:
        """Tokens (count, K) of ``cells`` (K,) of one picture or of one for each of ``count`` classes."""
        given = image if isinstance(image, (list, tuple)) else [image]
        if len(given) not in (1, count):
            raise ValueError(f"`image` has {len(given)} pictures for {count} classes; give one, or one each.")
        pictures = torch.cat([read_pictures(one, *self.image_size) for one in given])
        if len(pictures) != len(given):
            raise ValueError("`image` holds a clip; give a picture, or a list of pictures.")
        codes = encode_images(self.vq, pictures.to(self._execution_device), micro_batch=1).flatten(1)
        return codes[:, cells.to(codes.device)].repeat(count // len(given), 1)

    def _labels(self, call: ImageCall) -> Tensor:
        given, names = call.class_labels, self.config.class_names or []
        count = self.transformer.config.num_classes
        numbers = []
        for label in [given] if isinstance(given, (int, str)) else list(given or ()):
            if isinstance(label, str) and label in names:
                numbers.append(names.index(label))
            elif isinstance(label, int) and not isinstance(label, bool) and 0 <= label < count:
                numbers.append(label)
            else:
                known = f", or one of {', '.join(names)}" if names else ""
                raise ValueError(f"Unknown class {label!r}; give a number from 0 to {count - 1}{known}.")
        if not numbers:
            raise ValueError("`class_labels` is empty; give at least one class.")
        return torch.tensor(numbers)

    def _requests(self, call: ImageCall) -> list[DecodeRequest]:
        requests = super()._requests(call)
        assert isinstance(call, AnyOrderCall)
        if call.parallel_steps is None:
            return requests
        groups = self.network.parallel_groups(requests[0].stopping.max_new_tokens, call.parallel_steps)
        return [_with(request, groups=groups) for request in requests]

    def _request(self, conditions: AnyOrderCondition, *arguments: Any) -> DecodeRequest:
        request = super()._request(conditions, *arguments)
        left = len(conditions.order) - conditions.known.shape[1]
        # slots are no grid: what lies left of a cell or above it is somewhere else in the order
        return _with(request, stopping=Stopping(left, fixed_length=True), row_length=None, conditions=conditions)

    def _open(self, call: ImageCall) -> ImageRun:
        requests = self._requests(call)
        parts = [r.conditions for r in requests if isinstance(r, AnyOrderRequest) and r.conditions is not None]
        known = torch.cat([part.known for part in parts]).cpu()
        return AnyOrderRun(requests, self.layout(), order=parts[0].order, known=known)

    def _any_call(self, **arguments: Any) -> ImageCall:
        return AnyOrderCall(class_labels=0, seed=0, **arguments)

    def decoder_model(
        self, network: Any, conditions: AnyOrderCondition, guidance: Guidance, device: torch.device
    ) -> AnyOrderModel:
        return AnyOrderModel(
            network, conditions.labels, conditions.order, guidance.branches > 1, known=conditions.known
        )

    def open_decoder(self, request: DecodeRequest) -> Any:
        groups = request.groups if isinstance(request, AnyOrderRequest) else None
        if groups is None:
            return super().open_decoder(request)
        device = self._execution_device
        model = request.model(request.network, device)
        assert isinstance(model, AnyOrderModel)
        check_memory(
            self.estimate(request, model.prompt.width, model.vocab_size), device, "Use a smaller `micro_batch_size`."
        )
        one_by_one = max(groups) == 1
        stats = DecodeStats(
            method="plain" if one_by_one else "parallel",
            guarantee=Guarantee.SAME_TOKENS if one_by_one else Guarantee.LAW_OF_TRANSFORM,
            seeds=list(request.seeds),
        )
        noise = RowNoise(torch.tensor(request.seeds, device=device), model.vocab_size)
        return ParallelDecoder(model, groups, noise, request.sampling, request.guidance, stats)

    def decode_codes(self, codes: Tensor) -> Tensor:
        return decode_codes(self.vq, codes)

    def cache_bytes_per_slot(self) -> int:
        config = self.transformer.config
        # RandAR keeps a token and a query a slot; ARPG half of its layers, and keys and values that all others share
        return 4 * config.num_layers * config.hidden_size * self.transformer.dtype.itemsize

    def decode_bytes_per_pixel(self) -> int:
        return 2 * 4 * max(self.vq.config.block_out_channels)

    def _partial(self, run: ImageRun) -> list[Image.Image]:
        """The committed cells of every sample; the others are white."""
        assert isinstance(run, AnyOrderRun)
        images = self._decode(run.grid.codes(run.tokens()))
        pictures = self.image_processor.postprocess(images, output_type="np")
        side = self.pixels_per_code
        shown = run.filled().unflatten(1, (run.grid.rows, run.grid.columns)).numpy()
        shown = shown.repeat(side, axis=1).repeat(side, axis=2)[..., None]
        return self.image_processor.numpy_to_pil(np.where(shown, pictures, 1.0))


def _with(request: DecodeRequest, **changes: Any) -> AnyOrderRequest:
    """``request`` with some parts changed."""
    parts = {part.name: getattr(request, part.name) for part in fields(request)}
    return AnyOrderRequest(**parts | changes)
