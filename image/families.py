"""The supported families of token-based image models, as data: one entry names checkpoints, needs and settings.

Nothing here reads weights or imports a framework; ``AutoImagePipeline`` and ``mmspec models`` both read this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageFamily:
    """One family.

    Attributes:
        name: Name of its page in the documentation.
        pipeline: Pipeline class.
        model_type: ``model_type`` of its transformers configuration; ``None`` for a model that only mmspec has.
        hub_ids: Released checkpoints.
        parameters: Of the first one, the picture tokenizer included.
        sizes: Pictures that it makes.
        guidance_scale, top_k: What its authors recommend.
        licence: Of the weights.
        needs: What a checkpoint does not hold.
    """

    name: str
    pipeline: str
    model_type: str | None
    hub_ids: tuple[str, ...]
    parameters: float
    sizes: str
    guidance_scale: float
    top_k: int
    licence: str
    needs: str = ""


IMAGE_FAMILIES: tuple[ImageFamily, ...] = (
    ImageFamily(
        "llamagen", "LlamaGenPipeline", None, ("FoundationVision/LlamaGen",), 111e6, "256, 384 or 512 pixels square",
        4.0, 2000, "MIT", "conversion: mmspec convert llamagen",
    ),
    ImageFamily(
        "emu3", "Emu3Pipeline", "emu3", ("BAAI/Emu3-Gen-hf",), 8.76e9, "about 720 x 720, any aspect ratio", 3.0, 2048,
        "Apache-2.0",
    ),
    ImageFamily(
        "janus", "JanusPipeline", "janus",
        ("deepseek-community/Janus-Pro-1B", "deepseek-community/Janus-Pro-7B", "deepseek-community/Janus-1.3B"),
        2.08e9, "384 x 384", 5.0, 0, "DeepSeek Model License",
    ),
    ImageFamily(
        "chameleon", "ChameleonPipeline", "chameleon",
        ("leloy/Anole-7b-v0.1-hf", "Alpha-VLLM/Lumina-mGPT-7B-512", "Alpha-VLLM/Lumina-mGPT-7B-768",
         "Alpha-VLLM/Lumina-mGPT-7B-768-Omni", "Alpha-VLLM/Lumina-mGPT-7B-1024"),
        7.08e9, "512 x 512 (Anole); the area of 512, 768 or 1024 square, up to 4:1 (Lumina-mGPT)", 3.0, 0,
        "Chameleon Research License", "Meta's picture decoder: mmspec convert chameleon-vq",
    ),
)  # fmt: skip


def model_types() -> dict[str, str]:
    """Pipeline class by the ``model_type`` of a transformers checkpoint."""
    return {family.model_type: family.pipeline for family in IMAGE_FAMILIES if family.model_type}
