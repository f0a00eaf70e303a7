"""Nodes for ComfyUI: load a pipeline, make pictures. Copy or link this file to ``ComfyUI/custom_nodes``."""

from __future__ import annotations

from typing import Any, ClassVar

import comfy.model_management
import comfy.utils
from torch import Tensor

from mmspec import AutoImagePipeline


class LoadSpeculativePipeline:
    """The pipeline is an output of this node, which ComfyUI keeps; nothing lies in a global."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("MMSPEC_PIPELINE",), "load", "mmspec"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        return {"required": {"model": ("STRING", {"default": "mmspec/emoji-t2i"})}}

    def load(self, model: str) -> tuple[Any]:
        return (AutoImagePipeline.from_pretrained(model).to(comfy.model_management.get_torch_device()),)


class SpeculativeImage:
    """Pictures as ComfyUI's IMAGE (B, h, w, 3) in [0, 1], and the figures of the call as text."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("IMAGE", "STRING"), "generate", "mmspec"
    _WORDS: ClassVar[dict[str, Any]] = {"multiline": True, "default": "red apple, noto style"}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        seed = ("INT", {"default": 0, "min": 0, "max": 2**63 - 1, "control_after_generate": True})
        count = ("INT", {"default": 1, "min": 1, "max": 64})
        speculate = ("BOOLEAN", {"default": True})
        required = {"pipeline": ("MMSPEC_PIPELINE",), "prompt": ("STRING", cls._WORDS)}
        return {"required": required | {"seed": seed, "count": count, "speculate": speculate}}

    def generate(self, pipeline: Any, prompt: str, seed: int, count: int, speculate: bool) -> tuple[Tensor, str]:
        bar = comfy.utils.ProgressBar(pipeline.layout().num_tokens)

        def after_step(pipe: Any, step: int, tokens: int, tensors: dict[str, Any]) -> None:
            bar.update_absolute(tokens)
            comfy.model_management.throw_exception_if_processing_interrupted()

        output = pipeline(
            prompt, seed=seed, num_images_per_prompt=count, speculate=speculate, output_type="pt",
            callback_on_step_end=after_step,
        )  # fmt: skip
        return output.images.permute(0, 2, 3, 1).float().cpu(), str(output.stats)


NODE_CLASS_MAPPINGS = {"MmspecLoad": LoadSpeculativePipeline, "MmspecImage": SpeculativeImage}
NODE_DISPLAY_NAME_MAPPINGS = {"MmspecLoad": "Load mmspec pipeline", "MmspecImage": "mmspec image"}
