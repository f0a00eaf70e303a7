"""Recipe of the embedded video tokenizer: a small DiscreteVideoTokenizer on procedural clips.

Loss: |x - y| + (x - y)^2 + 0.5 |grad x - grad y|, the gradient in space and time; finite scalar quantisation needs no
codebook loss (Mentzer et al., 2023).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from mmspec.training.loop import LoopConfig, fit, read_progress, read_settings, restore_average, step_generator
from mmspec.training.video_clips import ClipConfig, ClipSet, load_clips, to_videos
from mmspec.training.vq import psnr

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class VideoTokenizerConfig(LoopConfig):
    """Settings of the tokenizer's training.

    Args:
        data: Folder of the emoji archives, see :class:`mmspec.training.emoji.EmojiConfig`.
        channels: Widths of encoder and decoder, finest level first.
        latent_channels: Width before the quantiser's convolution.
        levels: Levels of the quantiser's channels.
        layers_per_block: Residual blocks a level.
        num_frames: Frames of a clip.
        start_from: Output folder of an earlier training with the same network, whose averaged weights are the start.
        decoder_only: Train the decoder alone: codes stay what they are, so that a model of codes stays valid.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    channels: tuple[int, ...] = (24, 32, 48)
    latent_channels: int = 16
    levels: tuple[int, ...] = (8, 5, 5, 5)
    layers_per_block: int = 1
    num_frames: int = 9
    batch_size: int = 8
    start_from: Path | None = None
    decoder_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "data", Path(self.data))
        if self.decoder_only and self.start_from is None:
            raise ValueError("`decoder_only` needs `start_from`: the encoder of an untrained network says nothing.")
        if (self.num_frames - 1) % TEMPORAL_COMPRESSION:
            raise ValueError(
                f"`num_frames` is {self.num_frames}; it must be 1 more than a multiple of {TEMPORAL_COMPRESSION}."
            )

    @property
    def clips(self) -> ClipConfig:
        """The clips that are learnt."""
        return ClipConfig(data=self.data, num_frames=self.num_frames)


PATCH_SIZE = TEMPORAL_COMPRESSION = 2
SPATIAL_COMPRESSION = 4


def build_tokenizer(config: VideoTokenizerConfig) -> DiscreteVideoTokenizer:
    """An untrained tokenizer of the configured size."""
    return DiscreteVideoTokenizer(
        encoder_channels=config.channels,
        decoder_channels=config.channels,
        layers_per_block=config.layers_per_block,
        latent_channels=config.latent_channels,
        levels=config.levels,
        attention_resolutions=(),
        resolution=config.clips.frame_size,
        patch_size=PATCH_SIZE,
        spatial_compression=SPATIAL_COMPRESSION,
        temporal_compression=TEMPORAL_COMPRESSION,
        chunk_frames=config.num_frames,
    )


def reconstruction_loss(output: Tensor, videos: Tensor) -> tuple[Tensor, float]:
    """Loss of reconstructions ``output`` of ``videos``, both (B, 3, F, h, w), and the PSNR in dB."""
    error = output - videos
    squared = error.square().mean()
    edges = sum(error.diff(dim=axis).abs().mean() for axis in (2, 3, 4))
    return error.abs().mean() + squared + 0.5 * edges, psnr(squared.item())


def train(config: VideoTokenizerConfig) -> Path:
    """Train the tokenizer and save it, with its measurements, in ``config.output``; returns its folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
        FileNotFoundError: If the emoji archives are missing and cannot be fetched.
    """
    torch.manual_seed(config.seed)
    clips = load_clips(config.clips)
    model = build_tokenizer(config).to(config.device)
    if config.start_from is not None:
        restore_average(model, Path(config.start_from))
    for part in (model.encoder, model.quant_conv) if config.decoder_only else ():
        part.requires_grad_(False)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        picks = torch.randint(len(clips.trained), (config.batch_size,), generator=step_generator(config.seed, step))
        videos = to_videos(clips.render(clips.trained[picks.numpy()])).to(config.device)
        with config.autocast:
            output = model(videos)
        loss, quality = reconstruction_loss(output.float(), videos)
        return loss, {"psnr": quality}

    seconds = fit(model, loss_of, config)
    model.eval()
    report = {
        "minutes": seconds / 60,
        "steps": read_progress(config.output)["steps"],
        "parameters": model.num_parameters(),
        "held_out": evaluate(model, clips, clips.held_out[:128]),
    }
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("video tokenizer: %s", report)
    model.save_pretrained(config.output / "tokenizer")
    return config.output / "tokenizer"


def evaluate(model: DiscreteVideoTokenizer, clips: ClipSet, chosen: np.ndarray) -> dict[str, float]:
    """Mean PSNR in dB over the ``chosen`` clips, whole and where the sprite is; codes used, entropy of use in bits."""
    values, inside = [], []
    use = torch.zeros(model.num_codes, dtype=torch.double)
    for part in np.array_split(chosen, max(1, len(chosen) // 8)):
        videos = to_videos(clips.render(part))
        codes = model.encode(videos).cpu()
        errors = (model.decode(codes).cpu().clamp(-1, 1) - videos).square()
        drawn = (videos < 1).any(dim=1, keepdim=True).expand_as(errors)
        values += [psnr(float(e.mean())) for e in errors]
        inside += [psnr(float(e[d].mean())) for e, d in zip(errors, drawn, strict=True)]
        use += torch.bincount(codes.flatten(), minlength=model.num_codes)
    share = use[use > 0] / use.sum()
    return {
        "psnr": float(np.mean(values)),
        "sprite_psnr": float(np.mean(inside)),
        "codes_used": int((use > 0).sum()),
        "entropy_bits": float(-(share * share.log2()).sum()),
    }


def saved_config(output: Path) -> VideoTokenizerConfig:
    """The settings of the running or finished training in ``output``."""
    settings = read_settings(output)
    for name in ("channels", "levels"):
        settings[name] = tuple(settings[name])
    return VideoTokenizerConfig(output=output, minutes=1, **settings)


def load_checkpoint(config: VideoTokenizerConfig) -> tuple[DiscreteVideoTokenizer, dict[str, float]]:
    """The averaged tokenizer of the running or finished training in ``config.output``, its steps and minutes."""
    model = build_tokenizer(config)
    progress = restore_average(model, config.output)
    return model.eval(), progress
