"""Videos to discrete tokens and back: the Cosmos-Tokenize1 DV family, built from diffusers' Cosmos networks.

NVIDIA, 2025, "Cosmos World Foundation Model Platform for Physical AI", section 4: a haar wavelet patching, a
factorised *causal* encoder, 1x1x1 convolution to few channels, finite scalar quantisation, and the mirror of it. Causal
means that frame f depends on frames up to f only, in both directions: the head of a clip has the same tokens as
the head of the whole, and decoding a prefix of the latent frames gives the head of the video. So generated frames can
be shown as soon as their latent frame is known.

Symbols of the shapes: B videos, F frames, h and w pixels, T latent frames, H and W rows and columns of codes, C channels.
"""

from __future__ import annotations

import torch
from diffusers import ConfigMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.autoencoder_kl_cosmos import CosmosDecoder3d, CosmosEncoder3d
from einops import rearrange
from torch import Tensor, nn

from mmspec.image.fsq import FiniteScalarQuantizer
from mmspec.models.strict import StrictModelMixin


class DiscreteVideoTokenizer(StrictModelMixin, ConfigMixin):
    """A causal video autoencoder whose latents are codes. The defaults are those of DV8x16x16.

    Args:
        encoder_channels, decoder_channels: Widths of the levels, finest first.
        layers_per_block: Residual blocks a level.
        latent_channels: Width before the quantiser's convolution.
        levels: Levels of the quantiser's channels; their product is the number of codes.
        attention_resolutions: Sides, in units of ``resolution`` after patching, at which blocks attend.
        resolution: Nominal side in pixels, which only places the attention.
        patch_size: Side of the wavelet patches in pixels and frames.
        spatial_compression, temporal_compression: Pixels per code and side, and frames per latent frame.
        chunk_frames: Frames that were encoded together in training; longer videos are cut into such clips.

    Raises:
        ValueError: If a number does not fit the others.
    """

    _supports_gradient_checkpointing = False

    @register_to_config
    def __init__(
        self,
        encoder_channels: tuple[int, ...] = (128, 256, 512, 512),
        decoder_channels: tuple[int, ...] = (256, 512, 512, 512),
        layers_per_block: int = 2,
        latent_channels: int = 16,
        levels: tuple[int, ...] = (8, 8, 8, 5, 5, 5),
        attention_resolutions: tuple[int, ...] = (32,),
        resolution: int = 1024,
        patch_size: int = 4,
        spatial_compression: int = 16,
        temporal_compression: int = 8,
        chunk_frames: int = 33,
    ) -> None:
        super().__init__()
        for name, value in (
            ("spatial_compression", spatial_compression),
            ("temporal_compression", temporal_compression),
        ):
            if value < patch_size or value & (value - 1) or patch_size < 2 or patch_size & (patch_size - 1):
                raise ValueError(
                    f"`{name}` ({value}) and `patch_size` ({patch_size}) must be powers of two, the patch at least 2 "
                    "and at most the compression."
                )
        if (chunk_frames - 1) % temporal_compression:
            raise ValueError(
                f"`chunk_frames` is {chunk_frames}; it must be 1 more than a multiple of {temporal_compression}."
            )
        shared = {
            "num_resnet_blocks": layers_per_block,
            "attention_resolutions": tuple(attention_resolutions),
            "resolution": resolution,
            "patch_size": patch_size,
            "spatial_compression_ratio": spatial_compression,
            "temporal_compression_ratio": temporal_compression,
        }
        self.encoder = CosmosEncoder3d(3, latent_channels, tuple(encoder_channels), **shared)
        self.quant_conv = nn.Conv3d(latent_channels, len(levels), 1)
        self.quantizer = FiniteScalarQuantizer(levels)
        self.post_quant_conv = nn.Conv3d(len(levels), latent_channels, 1)
        self.decoder = CosmosDecoder3d(latent_channels, 3, tuple(decoder_channels), **shared)

    @property
    def num_codes(self) -> int:
        """Number of codes."""
        return self.quantizer.num_codes

    def latent_frames(self, num_frames: int) -> int:
        """Latent frames T of a clip of ``num_frames`` F = 1 + temporal_compression (T - 1) frames.

        Raises:
            ValueError: If there is no such clip, with the next legal numbers.
        """
        step = self.config.temporal_compression
        if num_frames < 1 or (num_frames - 1) % step:
            lower = max(1, (max(num_frames, 1) - 1) // step * step + 1)
            raise ValueError(
                f"A clip of {num_frames} frames has no latent frames: give 1 more than a multiple of {step}, such as "
                f"{lower} or {lower + step}."
            )
        return 1 + (num_frames - 1) // step

    def pixel_frames(self, latent_frames: int) -> int:
        """Frames F of a clip of ``latent_frames`` T latent frames; 0 of none."""
        return 0 if latent_frames < 1 else 1 + self.config.temporal_compression * (latent_frames - 1)

    def check_frames(self, videos: Tensor) -> None:
        """Raise ValueError unless ``videos`` (B, 3, F, h, w) can be encoded."""
        side = self.config.spatial_compression
        if (
            videos.ndim != 5
            or videos.shape[1] != 3
            or not videos.numel()
            or videos.shape[-2] % side
            or videos.shape[-1] % side
        ):
            raise ValueError(
                f"`videos` has shape {tuple(videos.shape)}; it must be (videos, 3, frames, height, width) with sides that "
                f"are positive multiples of {side}."
            )
        self.latent_frames(videos.shape[2])

    def encode_latents(self, videos: Tensor) -> Tensor:
        """Latents before quantisation (B, T, H, W, C) of ``videos`` (B, 3, F, h, w) in [-1, 1]."""
        return rearrange(self.quant_conv(self.encoder(videos)), "b c t h w -> b t h w c")

    def decode_values(self, values: Tensor) -> Tensor:
        """Videos (B, 3, F, h, w), roughly in [-1, 1], of quantised ``values`` (B, T, H, W, C)."""
        return self.decoder(self.post_quant_conv(rearrange(values, "b t h w c -> b c t h w")))

    @torch.no_grad()
    def encode(self, videos: Tensor) -> Tensor:
        """Codes (B, T, H, W) of ``videos`` (B, 3, F, h, w) in [-1, 1].

        Raises:
            ValueError: For other shapes.
        """
        self.check_frames(videos)
        return self.quantizer.indices(self.encode_latents(videos.to(self.device, self.dtype)))

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Videos (B, 3, F, h, w), roughly in [-1, 1] and not clamped, of ``codes`` (B, T, H, W).

        Raises:
            ValueError: For another number of axes, or codes that there are not.
        """
        if codes.ndim != 4 or not codes.numel():
            raise ValueError(
                f"`codes` has shape {tuple(codes.shape)}; it must be (videos, latent frames, rows, columns)."
            )
        return self.decode_values(self.quantizer.values(codes.to(self.device)).to(self.dtype)).float()

    def forward(self, videos: Tensor) -> Tensor:
        """Reconstructions (B, 3, F, h, w) of ``videos`` (B, 3, F, h, w), differentiable through the rounding."""
        return self.decode_values(self.quantizer.quantize(self.encode_latents(videos)).to(videos.dtype))
