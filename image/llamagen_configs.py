"""Published LlamaGen sizes and released files, as data.

Sun et al., 2024, "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation", table 1 and the
settings of the released sampling scripts. Nothing here reads weights; ``mmspec.checkpoints.llamagen`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Condition = Literal["class", "caption"]

CONDITIONS: tuple[Condition, ...] = ("class", "caption")
CODEBOOK_SIZE = 16384
NUM_CLASSES = 1000
CAPTION_LENGTH = 120  # caption slots before the image
CAPTION_DIM = 2048  # width of flan-t5-xl's encoder


@dataclass(frozen=True)
class LlamaGenSize:
    """Widths of one published decoder; ``parameters`` is the published count of the class-conditional model."""

    num_layers: int
    num_heads: int
    hidden_size: int
    intermediate_size: int
    parameters: float


@dataclass(frozen=True)
class LlamaGenCheckpoint:
    """One released decoder file with the sampling settings its authors use for pictures to look at.

    Scores (FID) are measured with weaker guidance and without ``top_k``; see ``fid_guidance_scale``.
    """

    file: str
    size: str
    image_size: int
    condition: Condition
    vq_file: str
    downsample: int
    guidance_scale: float
    top_k: int
    temperature: float = 1.0
    top_p: float = 1.0
    fid_guidance_scale: float | None = None


SIZES: dict[str, LlamaGenSize] = {
    "B": LlamaGenSize(12, 12, 768, 2048, 111e6),
    "L": LlamaGenSize(24, 16, 1024, 2816, 343e6),
    "XL": LlamaGenSize(36, 20, 1280, 3584, 775e6),
    "XXL": LlamaGenSize(48, 24, 1536, 4096, 1.41e9),
    "XXXL": LlamaGenSize(48, 40, 2560, 6912, 3.9e9),
    "1B": LlamaGenSize(22, 32, 2048, 5632, 1.2e9),
    "3B": LlamaGenSize(24, 32, 3200, 8704, 3.1e9),
    "7B": LlamaGenSize(32, 32, 4096, 11008, 6.6e9),
}


def _class_checkpoint(size: str, image_size: int, fid_guidance_scale: float) -> LlamaGenCheckpoint:
    return LlamaGenCheckpoint(
        file=f"c2i_{size}_{image_size}.pt",
        size=size,
        image_size=image_size,
        condition="class",
        vq_file="vq_ds16_c2i.pt",
        downsample=16,
        guidance_scale=4.0,
        top_k=2000,
        fid_guidance_scale=fid_guidance_scale,
    )


def _caption_checkpoint(file: str, image_size: int) -> LlamaGenCheckpoint:
    return LlamaGenCheckpoint(
        file=file,
        size="XL",
        image_size=image_size,
        condition="caption",
        vq_file="vq_ds16_t2i.pt",
        downsample=16,
        guidance_scale=7.5,
        top_k=1000,
    )


RELEASED: dict[str, LlamaGenCheckpoint] = {
    checkpoint.file.removesuffix(".pt"): checkpoint
    for checkpoint in (
        _class_checkpoint("B", 256, 2.0),
        _class_checkpoint("L", 256, 2.0),
        _class_checkpoint("B", 384, 2.0),
        _class_checkpoint("L", 384, 2.0),
        _class_checkpoint("XL", 384, 1.75),
        _class_checkpoint("XXL", 384, 1.75),
        _class_checkpoint("3B", 384, 1.65),
        _caption_checkpoint("t2i_XL_stage1_256.pt", 256),
        _caption_checkpoint("t2i_XL_stage2_512.pt", 512),
    )
}


def image_grid(image_size: int | tuple[int, int], downsample: int = 16) -> tuple[int, int]:
    """Rows and columns of image tokens of a picture of ``image_size`` pixels (a side, or height and width).

    Raises:
        ValueError: If a side is not a positive multiple of ``downsample``.
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(height, width) < 1 or height % downsample or width % downsample:
        raise ValueError(
            f"`image_size` is {image_size}; each side must be a positive multiple of {downsample} pixels."
        )
    return height // downsample, width // downsample


def llamagen_config(
    name: str, image_size: int | tuple[int, int], condition: str, *, downsample: int = 16
) -> dict[str, Any]:
    """Return the keyword arguments of :class:`~mmspec.image.llamagen.LlamaGenTransformer` for a published size.

    Args:
        name: A key of :data:`SIZES`, such as "XL"; the authors' "GPT-XL" means the same.
        image_size: Side, or height and width, of the picture in pixels.
        condition: "class" (1000 classes) or "caption" (120 slots of flan-t5-xl features).
        downsample: Pixels per image token and side, of the VQ model: 16 or 8.

    Raises:
        ValueError: For an unknown name or condition, or an image size that the VQ model cannot tile.
    """
    size = SIZES.get(name.removeprefix("GPT-"))
    if size is None:
        raise ValueError(f"`name` is {name!r}; the LlamaGen sizes are {', '.join(SIZES)}.")
    if condition not in CONDITIONS:
        raise ValueError(f"`condition` is {condition!r}; it must be one of {', '.join(CONDITIONS)}.")
    grid_height, grid_width = image_grid(image_size, downsample)
    by_caption = condition == "caption"
    return {
        "vocab_size": CODEBOOK_SIZE,
        "hidden_size": size.hidden_size,
        "num_layers": size.num_layers,
        "num_heads": size.num_heads,
        "intermediate_size": size.intermediate_size,
        "grid_height": grid_height,
        "grid_width": grid_width,
        "condition_length": CAPTION_LENGTH if by_caption else 1,
        "caption_dim": CAPTION_DIM if by_caption else None,
        "num_classes": None if by_caption else NUM_CLASSES,
    }
