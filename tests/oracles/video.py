"""Toy and tiny video models: a tabular law on a grid of frames, and random networks behind the real pipeline."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from mmspec.image.video_ar import VideoARTransformer
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from mmspec.pipelines.video import VideoPipeline
from tests.oracles.tiny import tiny_text_encoder, tiny_tokenizer

FRAMES, ROWS, COLUMNS, VOCAB = 2, 1, 2, 3
FRAME = ROWS * COLUMNS
LENGTH = FRAMES * FRAME


def grid_table(left: float = 1.0, up: float = 0.5, previous: float = 2.0, seed: int = 0) -> torch.Tensor:
    """Logits of every prefix of a 2 x 1 x 2 grid: base(v) + left, up and previous-frame terms + a small pair term."""
    generator = torch.Generator().manual_seed(seed)
    base, pair = torch.randn(LENGTH, VOCAB, generator=generator), torch.randn(VOCAB, VOCAB, generator=generator)
    rows = []
    for length in range(LENGTH):
        for prefix in itertools.product(range(VOCAB), repeat=length):
            logits = base[length].clone()
            for weight, offset, inside in (
                (left, 1, length % COLUMNS > 0),
                (up, COLUMNS, length % FRAME >= COLUMNS),
                (previous, FRAME, length >= FRAME),
            ):
                if inside:
                    logits[prefix[length - offset]] += weight
                    logits += 0.3 * pair[prefix[length - offset]]
            rows.append(logits)
    return torch.stack(rows)


def tiny_video_tokenizer(levels: tuple[int, ...] = (3, 3)) -> DiscreteVideoTokenizer:
    """Random weights; 4 pixels a code, 2 frames a latent frame."""
    torch.manual_seed(0)
    return DiscreteVideoTokenizer(
        encoder_channels=(8, 8, 8), decoder_channels=(8, 8, 8), layers_per_block=1, latent_channels=8, levels=levels,
        attention_resolutions=(), resolution=16, patch_size=2, spatial_compression=4, temporal_compression=2,
        chunk_frames=7,
    ).eval()  # fmt: skip


def tiny_video_transformer(std: float = 0.15, **changes: object) -> VideoARTransformer:
    """Random weights over clips of 4 latent frames of 3 x 4 codes."""
    torch.manual_seed(1)
    settings: dict = {
        "vocab_size": 9, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 12,
        "intermediate_size": 48, "latent_shape": (4, 3, 4),
    }  # fmt: skip
    model = VideoARTransformer(**{**settings, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    return model.eval()


BY_TEXT: dict = {"num_embeddings": 10, "begin_token": 9, "context_dim": 16, "absolute_positions": True}


def tiny_video_pipeline(by_text: bool = False, **changes: object) -> VideoPipeline:
    """The real pipeline over random networks; clips of 7 frames of 12 x 16 pixels."""
    settings: dict = {
        "transformer": tiny_video_transformer(**(BY_TEXT if by_text else {})),
        "video_tokenizer": tiny_video_tokenizer(), "top_p": 1.0, "fps": 8.0,
    }  # fmt: skip
    if by_text:
        settings |= {"text_encoder": tiny_text_encoder(), "tokenizer": tiny_tokenizer(), "context_length": 8}
    pipe = VideoPipeline(**{**settings, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def noise_clip(num_frames: int = 5, seed: int = 0) -> np.ndarray:
    """Random frames (F, 12, 16, 3), uint8."""
    return np.random.default_rng(seed).integers(0, 256, (num_frames, 12, 16, 3), dtype=np.uint8)
