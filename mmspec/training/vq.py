"""Recipe of the image tokenizer: a convolutional VQ autoencoder with an averaged codebook.

van den Oord et al., 2017, "Neural Discrete Representation Learning"; codes follow exponential moving averages of the
vectors assigned to them (appendix A.1 there), and codes that no vector chooses restart at a random encoder output.
Loss: |x - y| + (x - y)^2 + |grad x - grad y| + 0.25 |z - sg(code)|^2; the gradient term keeps outlines sharp.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import VQModel
from einops import rearrange
from torch import Tensor, nn

from mmspec.training.emoji import EmojiConfig, EmojiSet, class_of_names, load_emoji
from mmspec.training.loop import LoopConfig, fit, step_generator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class VQConfig(LoopConfig):
    """Settings of the tokenizer's training.

    Args:
        data: Folder of the emoji archives, see :class:`mmspec.training.emoji.EmojiConfig`.
        image_size: Side of the images in pixels.
        num_codes, code_dim: Size of the codebook and of one code.
        channels: Widths of the encoder's levels; each level after the first halves the side.
        code_decay: Decay of the codebook's moving averages.
        dead_code_usage: Codes whose averaged count of vectors a step falls below this restart.
        num_held_out: Drawings kept from training, to measure the reconstruction on.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    image_size: int = 48
    num_codes: int = 512
    code_dim: int = 8
    channels: tuple[int, ...] = (32, 48, 64)
    code_decay: float = 0.98
    dead_code_usage: float = 0.05
    num_held_out: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_codes < 2 or self.code_dim < 1:
            raise ValueError(f"`num_codes` ({self.num_codes}) must be at least 2 and `code_dim` ({self.code_dim}) 1.")
        if self.image_size <= 0 or self.image_size % 2 ** (len(self.channels) - 1):
            raise ValueError(
                f"`image_size` is {self.image_size}; {len(self.channels)} levels need a positive multiple of "
                f"{2 ** (len(self.channels) - 1)}."
            )


def build_vq(config: VQConfig) -> VQModel:
    """An untrained tokenizer of the configured size."""
    levels = len(config.channels)
    return VQModel(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=config.channels,
        layers_per_block=1,
        latent_channels=config.channels[-1],
        sample_size=config.image_size,
        num_vq_embeddings=config.num_codes,
        norm_num_groups=8,
        vq_embed_dim=config.code_dim,
        mid_block_add_attention=False,
        lookup_from_codebook=True,
    )


class VQTrainer(nn.Module):
    """A ``VQModel`` with the running sums of its codebook."""

    counts: Tensor
    sums: Tensor

    def __init__(self, vq: VQModel, config: VQConfig) -> None:
        super().__init__()
        self.vq, self.config = vq, config
        self.codebook = vq.quantize.embedding.weight
        self.codebook.requires_grad_(False)  # follows the averages below instead of a gradient
        self.register_buffer("counts", torch.zeros(config.num_codes))
        self.register_buffer("sums", torch.zeros(config.num_codes, config.code_dim))
        self.encode, self.decode = self._encode, self._decode
        if config.compile:
            self.encode, self.decode = torch.compile(self._encode), torch.compile(self._decode)

    def _encode(self, images: Tensor) -> Tensor:
        return self.vq.quant_conv(self.vq.encoder(images))

    def _decode(self, codes: Tensor) -> Tensor:
        return self.vq.decoder(self.vq.post_quant_conv(codes))

    def loss(self, images: Tensor) -> tuple[Tensor, dict[str, float], Tensor, Tensor]:
        """Loss of ``images`` (B, 3, S, S) in [-1, 1], numbers for the log, latents (n, C) and their codes (n,)."""
        with self.config.autocast:
            latents = self.encode(images).float()
        flat = rearrange(latents, "b c h w -> (b h w) c")
        chosen = torch.cdist(flat.detach(), self.codebook).argmin(dim=1)
        nearest = rearrange(
            self.codebook[chosen], "(b h w) c -> b c h w", b=latents.shape[0], h=latents.shape[2], w=latents.shape[3]
        )
        commitment = F.mse_loss(latents, nearest)
        with self.config.autocast:
            output = self.decode(latents + (nearest - latents).detach()).float()
        error = output - images
        squared = error.square().mean()
        edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
        loss = error.abs().mean() + squared + 0.5 * edges + 0.25 * commitment
        numbers = {"psnr": psnr(squared.item()), "commitment": commitment.item()}
        return loss, numbers, flat.detach(), chosen

    @torch.no_grad()
    def update_codes(self, flat: Tensor, chosen: Tensor, generator: torch.Generator) -> None:
        """Move the codes to the averages of the vectors (n, C) that ``chosen`` (n,) assigns; restart unused ones."""
        decay = self.config.code_decay
        self.counts.mul_(decay).index_add_(0, chosen, flat.new_full((len(flat),), 1 - decay))
        self.sums.mul_(decay).index_add_(0, chosen, flat, alpha=1 - decay)
        dead = (self.counts < self.config.dead_code_usage).nonzero().flatten()
        if len(dead):
            fresh = flat[torch.randint(len(flat), (len(dead),), generator=generator)]
            self.counts[dead] = 1.0
            self.sums[dead] = fresh
        self.codebook.copy_(self.sums / self.counts[:, None])


def psnr(squared_error: float) -> float:
    """Peak signal-to-noise ratio in dB of images in [-1, 1] from their mean squared error."""
    return 10 * math.log10(4 / max(squared_error, 1e-12))


def to_tensor(images: np.ndarray) -> Tensor:
    """uint8 images (n, S, S, 3) as floats in [-1, 1], (n, 3, S, S)."""
    return rearrange(torch.from_numpy(images).float() / 127.5 - 1, "n h w c -> n c h w").contiguous()


@torch.no_grad()
def encode_images(vq: VQModel, images: np.ndarray, batch_size: int = 64) -> Tensor:
    """Codes of uint8 images (n, S, S, 3) in raster order, (n, grid * grid)."""
    codes = []
    for start in range(0, len(images), batch_size):
        latents = vq.encode(to_tensor(images[start : start + batch_size]).to(vq.device)).latents
        flat = rearrange(latents, "b c h w -> b (h w) c")
        codes.append(torch.cdist(flat, vq.quantize.embedding.weight[None]).argmin(dim=-1))
    return torch.cat(codes)


@torch.no_grad()
def decode_codes(vq: VQModel, codes: Tensor) -> np.ndarray:
    """uint8 images (n, S, S, 3) of raster-order codes (n, grid * grid)."""
    side = math.isqrt(codes.shape[1])
    shape = (len(codes), side, side, vq.config.vq_embed_dim)
    sample = vq.decode(codes.flatten(), force_not_quantize=True, shape=shape).sample
    pixels = ((sample.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return rearrange(pixels, "n c h w -> n h w c").cpu().numpy()


def split_held_out(emoji: EmojiSet, config: VQConfig) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and to measure on.

    What is measured is never one of the listed emoji, in any style; those are drawn twice as often as the others.
    """
    listed = np.array([name in class_of_names() for name in emoji.names], dtype=bool)
    others = np.random.default_rng(config.seed).permutation(np.flatnonzero(~listed))
    held_out, rest = others[: config.num_held_out], others[config.num_held_out :]
    return np.concatenate([np.flatnonzero(listed), np.flatnonzero(listed), rest]), held_out


def evaluate(vq: VQModel, images: np.ndarray) -> dict[str, float]:
    """Mean PSNR in dB over uint8 ``images`` (n, S, S, 3), codes used and the entropy of their use in bits."""
    codes = encode_images(vq, images)
    errors = (decode_codes(vq, codes).astype(np.float32) - images.astype(np.float32)) / 127.5
    use = torch.bincount(codes.flatten(), minlength=vq.config.num_vq_embeddings).double()
    share = use[use > 0] / use.sum()
    return {
        "psnr": float(np.mean([psnr(float(value)) for value in (errors**2).mean(axis=(1, 2, 3))])),
        "codes_used": int((use > 0).sum()),
        "entropy_bits": float(-(share * share.log2()).sum()),
    }


def train(config: VQConfig) -> Path:
    """Train the tokenizer and save it, with its measurements, in ``config.output``; returns its folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
        FileNotFoundError: If the emoji archives are missing and cannot be fetched.
    """
    torch.manual_seed(config.seed)
    emoji = load_emoji(EmojiConfig(data=config.data, size=config.image_size))
    chosen, held_out = split_held_out(emoji, config)
    images = to_tensor(emoji.images)
    trainer = VQTrainer(build_vq(config), config).to(torch.device(config.device)).to(memory_format=torch.channels_last)
    assigned: list[Tensor] = []

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        picks = torch.from_numpy(chosen)[torch.randint(len(chosen), (config.batch_size,), generator=generator)]
        batch = images[picks]
        flipped = torch.rand(config.batch_size, generator=generator) < 0.5
        batch = torch.where(flipped[:, None, None, None], batch.flip(-1), batch).to(config.device)
        loss, numbers, *assigned[:] = trainer.loss(batch.contiguous(memory_format=torch.channels_last))
        return loss, numbers

    def after_step(step: int) -> None:
        trainer.update_codes(assigned[0], assigned[1], step_generator(config.seed + 1, step))

    seconds = fit(trainer, loss_of, config, after_step)
    vq = trainer.vq.eval()
    listed = np.array([name in class_of_names() for name in emoji.names], dtype=bool)
    report = {
        "minutes": seconds / 60,
        "parameters": sum(p.numel() for p in vq.parameters()),
        "listed": evaluate(vq, emoji.images[listed]),
    }
    if len(held_out):
        report["held_out"] = evaluate(vq, emoji.images[held_out])
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("tokenizer: %s", report)
    vq.save_pretrained(config.output / "vq")
    return config.output / "vq"
