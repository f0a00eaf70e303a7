"""Residual vector-quantised codec of speech: log-mel in, eight codes a frame, causal decoder with an inverse transform.

The encoder sees the whole recording, the decoder the past only, so that decoding can stream. Residual quantisation: Zeghidour et al.,
2021, "SoundStream"; convolution blocks: Liu et al., 2022, "A ConvNet for the 2020s"; magnitude and phase as output:
Siuzdak, 2023, "Vocos".

Symbols: B recordings, T frames of codes, G codebooks, K codes of a book, E width of a code vector, D width of the
network, S spectra a frame.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.speech.log_mel import mel_filters

SPECTRUM_HOP = 160
"""Samples between spectra, 10 ms."""
SPECTRUM_SIZE = 640
"""Samples of a spectrum's window; four overlap everywhere."""
LEAD = 240
"""Samples of a window before its own 10 ms: a sample is final once the spectrum 15 ms after it is there."""


class ResidualQuantizer(nn.Module):
    """G codebooks, each quantising what those before it left over."""

    codebooks: Tensor

    def __init__(self, num_codebooks: int, num_codes: int, code_dim: int) -> None:
        super().__init__()
        self.register_buffer("codebooks", torch.zeros(num_codebooks, num_codes, code_dim))

    def encode(self, latents: Tensor) -> Tensor:
        """Codes (..., G) of ``latents`` (..., E); of equally close codes the lowest."""
        rest, codes = latents, []
        for book in self.codebooks:
            chosen = (book.square().sum(-1) / 2 - rest @ book.T).argmin(-1)
            codes.append(chosen)
            rest = rest - book[chosen]
        return torch.stack(codes, dim=-1)

    def decode(self, codes: Tensor) -> Tensor:
        """Sums of code vectors (..., E) for ``codes`` (..., g) of the first g books."""
        vectors = [book[codes[..., index]] for index, book in enumerate(self.codebooks[: codes.shape[-1]])]
        return torch.stack(vectors).sum(0)


class ConvBlock(nn.Module):
    """Depthwise convolution over time, then a feed-forward layer, with a residual path.

    A causal block pads on the left with zeros, or with the frames that came before.
    """

    def __init__(self, width: int, inner: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.past = kernel - 1
        self.causal = causal
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor, history: Tensor | None = None) -> Tensor:
        """Map ``x`` (B, T, D); ``history`` (B, kernel - 1, D), read by causal blocks, is what came before."""
        if history is None:
            left = self.past if self.causal else self.past // 2
            padded = F.pad(x, (0, 0, left, self.past - left))
        else:
            padded = torch.cat([history, x], dim=1)
        mixed = self.depthwise(padded.transpose(1, 2)).transpose(1, 2)
        return x + self.scale * self.down(F.gelu(self.up(self.norm(mixed))))


class SpeechCodec(ModelMixin, ConfigMixin):
    """Turns speech into residual codes and back.

    Args:
        sample_rate: Samples a second; the transforms are laid out for 16 kHz.
        spectra_per_frame: Spectra (10 ms) joined into one frame of codes: 4 give 25 frames a second.
        num_mels: Mel bands that the encoder reads.
        width: Width of the network.
        inner: Width inside the feed-forward layers.
        kernel: Frames that a convolution sees, odd.
        encoder_fine, encoder_coarse, decoder_coarse, decoder_fine: Blocks at the rate of spectra and of frames.
        num_codebooks, num_codes, code_dim: Sizes of the quantiser.

    Raises:
        ValueError: If a size is not positive, or ``kernel`` is even.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        sample_rate: int = 16_000,
        spectra_per_frame: int = 4,
        num_mels: int = 80,
        width: int = 192,
        inner: int = 480,
        kernel: int = 7,
        encoder_fine: int = 2,
        encoder_coarse: int = 2,
        decoder_coarse: int = 2,
        decoder_fine: int = 4,
        num_codebooks: int = 8,
        num_codes: int = 256,
        code_dim: int = 64,
    ) -> None:
        super().__init__()
        for name in ("sample_rate", "spectra_per_frame", "num_mels", "width", "inner", "num_codebooks", "code_dim"):
            if getattr(self.config, name) <= 0:
                raise ValueError(f"`{name}` is {getattr(self.config, name)}; it must be positive.")
        if kernel < 1 or kernel % 2 == 0 or num_codes < 2:
            raise ValueError(f"`kernel` ({kernel}) must be odd and `num_codes` ({num_codes}) at least 2.")

        def blocks(count: int, causal: bool) -> nn.ModuleList:
            return nn.ModuleList(ConvBlock(width, inner, kernel, causal) for _ in range(count))

        bins = SPECTRUM_SIZE // 2 + 1
        self.read = nn.Linear(num_mels, width)
        self.fine_encoder = blocks(encoder_fine, causal=False)
        self.join = nn.Linear(width * spectra_per_frame, width)
        self.coarse_encoder = blocks(encoder_coarse, causal=False)
        self.to_latent = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, code_dim))
        self.quantizer = ResidualQuantizer(num_codebooks, num_codes, code_dim)
        self.from_latent = nn.Linear(code_dim, width)
        self.coarse_decoder = blocks(decoder_coarse, causal=True)
        self.split = nn.Linear(width, width * spectra_per_frame)
        self.fine_decoder = blocks(decoder_fine, causal=True)
        self.to_spectrum = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * bins))
        self.register_buffer("window", torch.hann_window(SPECTRUM_SIZE), persistent=False)
        self.register_buffer(
            "filters", mel_filters(num_mels, SPECTRUM_SIZE, sample_rate, 30.0, sample_rate / 2), persistent=False
        )

    window: Tensor
    filters: Tensor

    @property
    def frame_samples(self) -> int:
        """Samples of a frame."""
        return SPECTRUM_HOP * self.config.spectra_per_frame

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.config.sample_rate / self.frame_samples

    def log_mel(self, waveforms: Tensor) -> Tensor:
        """Log10 mel powers (B, S * T, num_mels), about -1 to 1, of ``waveforms`` (B, n), n a multiple of a frame."""
        padded = F.pad(waveforms, (LEAD, SPECTRUM_SIZE - SPECTRUM_HOP - LEAD))
        frames = padded.unfold(1, SPECTRUM_SIZE, SPECTRUM_HOP) * self.window
        power = torch.fft.rfft(frames).abs().square() @ self.filters
        return power.clamp_min(1e-6).log10() / 4 + 0.5

    def latents(self, waveforms: Tensor) -> Tensor:
        """Encoder output (B, T, E) of ``waveforms`` (B, n), n a multiple of a frame."""
        x = self.read(self.log_mel(waveforms))
        for block in self.fine_encoder:
            x = block(x)
        x = self.join(x.unflatten(1, (-1, self.config.spectra_per_frame)).flatten(2))
        for block in self.coarse_encoder:
            x = block(x)
        return self.to_latent(x)

    @torch.no_grad()
    def encode(self, waveform: Tensor) -> Tensor:
        """Codes (T, G) of one ``waveform`` (n,); a last frame that is not full is filled with silence.

        Raises:
            ValueError: If the waveform is empty, not mono, or not finite.
        """
        if waveform.ndim != 1 or not len(waveform):
            raise ValueError(f"`waveform` has shape {tuple(waveform.shape)}; it must be (n,) with n at least 1.")
        if not torch.isfinite(waveform).all():
            raise ValueError("`waveform` holds values that are not finite.")
        padded = F.pad(waveform, (0, -len(waveform) % self.frame_samples)).to(self.device, self.dtype)
        return self.quantizer.encode(self.latents(padded[None])[0])

    def spectra(self, latents: Tensor, histories: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Windowed pieces (B, S * T, SPECTRUM_SIZE) of waveform for quantised ``latents`` (B, T, E).

        ``histories`` are the inputs of the causal blocks that came before; the new ones are returned.
        """
        x, kept = self.from_latent(latents), []
        for number, block in enumerate([*self.coarse_decoder, *self.fine_decoder]):
            if number == len(self.coarse_decoder):
                x = self.split(x).unflatten(2, (self.config.spectra_per_frame, -1)).flatten(1, 2)
            if histories is not None:
                kept.append(torch.cat([histories[number], x], dim=1)[:, -block.past :])
            x = block(x, None if histories is None else histories[number])
        magnitude, phase = self.to_spectrum(x).chunk(2, dim=-1)
        spectrum = torch.polar(magnitude.float().clamp(max=5).exp(), phase.float())
        return torch.fft.irfft(spectrum, SPECTRUM_SIZE) * self.window, kept

    def synthesise(self, latents: Tensor) -> Tensor:
        """Waveforms (B, n) of quantised ``latents`` (B, T, E) in one piece, with gradients: for training."""
        pieces, _ = self.spectra(latents)
        return overlap_add(pieces)[:, LEAD : LEAD + pieces.shape[1] * SPECTRUM_HOP]


def overlap_add(pieces: Tensor) -> Tensor:
    """Sum pieces (B, m, SPECTRUM_SIZE), each SPECTRUM_HOP after the one before: (B, (m - 1) * hop + size).

    Squared Hann windows that overlap four times sum to 3/2; the pieces carry one window, the spectrum the other.
    """
    length = (pieces.shape[1] - 1) * SPECTRUM_HOP + SPECTRUM_SIZE
    folded = F.fold(
        pieces.transpose(1, 2), (1, length), kernel_size=(1, SPECTRUM_SIZE), stride=(1, SPECTRUM_HOP)
    )  # (B, 1, 1, length)
    return folded[:, 0, 0] / 1.5
