"""Residual vector-quantised codec of speech: log-mel in, eight codes a frame, causal decoder with an inverse transform.

The decoder sees the past only, so that decoding can stream. Residual quantisation: Juang and Gray, 1982, "Multiple stage vector
quantization for speech coding"; convolution blocks: Liu et al., 2022, "A ConvNet for the 2020s"; magnitude and phase as
output: Siuzdak, 2023, "Vocos".

Symbols: B recordings, T frames of codes, G codebooks, K codes of a book, E width of a code vector, D width of the
network, S spectra a frame.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.models.strict import StrictModelMixin
from mmspec.speech.log_mel import mel_filters

SPECTRUM_HOP = 160
"""Samples between spectra, 10 ms."""
SPECTRUM_SIZE = 640
"""Samples of a spectrum's window; four overlap everywhere."""
LEAD = 240
"""Samples of a window before its own 10 ms: a sample is final once the spectrum 15 ms after it is there."""


class FrameQuantizer(nn.Module):
    """Frames of log-mel spectra to codes: principal components, then G codebooks, each quantising what those before it left over.

    A code is chosen by its distance and by its price, which makes rare codes dear (Chou et al., 1989, "Entropy-constrained vector
    quantization"): late books then speak up only where they change something, and a language model can foresee them.

    Args:
        frame_size: Numbers of a frame, spectra times mel bands.
        num_codebooks, num_codes, code_dim: G, K and E.
    """

    mean: Tensor
    basis: Tensor
    codebooks: Tensor
    prices: Tensor

    def __init__(self, frame_size: int, num_codebooks: int, num_codes: int, code_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(frame_size))
        self.register_buffer("basis", torch.zeros(frame_size, code_dim))
        self.register_buffer("codebooks", torch.zeros(num_codebooks, num_codes, code_dim))
        self.register_buffer("prices", torch.zeros(num_codebooks, num_codes))

    def encode(self, frames: Tensor) -> Tensor:
        """Codes (..., G) of ``frames`` (..., frame_size); of equally good codes the lowest."""
        rest, codes = (frames - self.mean) @ self.basis, []
        for book, prices in zip(self.codebooks, self.prices, strict=True):
            chosen = cheapest(rest, book, prices)
            codes.append(chosen)
            rest = rest - book[chosen]
        return torch.stack(codes, dim=-1)

    def decode(self, codes: Tensor) -> Tensor:
        """Sums of code vectors (..., E) for ``codes`` (..., g) of the first g books."""
        vectors = [book[codes[..., index]] for index, book in enumerate(self.codebooks[: codes.shape[-1]])]
        return torch.stack(vectors).sum(0)


def cheapest(vectors: Tensor, book: Tensor, prices: Tensor) -> Tensor:
    """Rows (...) of ``book`` (K, E) with the least half squared distance to ``vectors`` (..., E) plus their ``prices`` (K,)."""
    return (book.square().sum(-1) / 2 + prices - vectors @ book.T).argmin(-1)


class ConvBlock(nn.Module):
    """Depthwise causal convolution over time, then a feed-forward layer, with a residual path."""

    def __init__(self, width: int, inner: int, kernel: int) -> None:
        super().__init__()
        self.past = kernel - 1
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor, history: Tensor | None = None) -> Tensor:
        """Map ``x`` (B, T, D); ``history`` (B, kernel - 1, D) is what came before, zeros by default."""
        padded = F.pad(x, (0, 0, self.past, 0)) if history is None else torch.cat([history, x], dim=1)
        mixed = self.depthwise(padded.transpose(1, 2)).transpose(1, 2)
        return x + self.scale * self.down(F.gelu(self.up(self.norm(mixed))))


class SpeechCodec(StrictModelMixin, ConfigMixin):
    """Turns speech into residual codes and back.

    Args:
        sample_rate: Samples a second; the transforms are laid out for 16 kHz.
        spectra_per_frame: Spectra (10 ms) joined into one frame of codes: 8 give 12.5 frames a second.
        num_mels: Mel bands that the encoder reads.
        width: Width of the decoder.
        inner: Width inside the feed-forward layers.
        kernel: Frames that a convolution sees.
        coarse_blocks, fine_blocks: Blocks of the decoder at the rate of frames and at that of spectra.
        num_codebooks, num_codes, code_dim: Sizes of the quantiser.

    Raises:
        ValueError: If a size is not positive, or the kernel or the codebook too small.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        sample_rate: int = 16_000,
        spectra_per_frame: int = 8,
        num_mels: int = 80,
        width: int = 192,
        inner: int = 480,
        kernel: int = 7,
        coarse_blocks: int = 2,
        fine_blocks: int = 4,
        num_codebooks: int = 8,
        num_codes: int = 256,
        code_dim: int = 96,
    ) -> None:
        super().__init__()
        for name in ("sample_rate", "spectra_per_frame", "num_mels", "width", "inner", "num_codebooks", "code_dim"):
            if getattr(self.config, name) <= 0:
                raise ValueError(f"`{name}` is {getattr(self.config, name)}; it must be positive.")
        if kernel < 2 or num_codes < 2:
            raise ValueError(f"`kernel` ({kernel}) and `num_codes` ({num_codes}) must be at least 2.")

        bins = SPECTRUM_SIZE // 2 + 1
        self.quantizer = FrameQuantizer(num_mels * spectra_per_frame, num_codebooks, num_codes, code_dim)
        self.from_latent = nn.Linear(code_dim, width)
        self.coarse = nn.ModuleList(ConvBlock(width, inner, kernel) for _ in range(coarse_blocks))
        self.split = nn.Linear(width, width * spectra_per_frame)
        self.fine = nn.ModuleList(ConvBlock(width, inner, kernel) for _ in range(fine_blocks))
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

    def frames(self, waveforms: Tensor) -> Tensor:
        """Stacked log-mel spectra (B, T, S * num_mels) of ``waveforms`` (B, n), n a multiple of a frame."""
        return self.log_mel(waveforms).unflatten(1, (-1, self.config.spectra_per_frame)).flatten(2)

    @torch.no_grad()
    def encode(self, waveform: Tensor, multiple: int = 1) -> Tensor:
        """Codes (T, G) of one ``waveform`` (n,); what it lacks to a ``multiple`` of whole frames is filled with silence.

        Raises:
            ValueError: If the waveform is empty, not mono, or not finite.
        """
        if waveform.ndim != 1 or not len(waveform):
            raise ValueError(f"`waveform` has shape {tuple(waveform.shape)}; it must be (n,) with n at least 1.")
        if not torch.isfinite(waveform).all():
            raise ValueError("`waveform` holds values that are not finite.")
        padded = F.pad(waveform, (0, -len(waveform) % (multiple * self.frame_samples))).to(self.device, self.dtype)
        return self.quantizer.encode(self.frames(padded[None])[0])

    def spectra(self, latents: Tensor, histories: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Windowed pieces (B, S * T, SPECTRUM_SIZE) of waveform for quantised ``latents`` (B, T, E).

        ``histories`` are the inputs of the causal blocks that came before; the new ones are returned.
        """
        x, kept = self.from_latent(latents), []
        for number, block in enumerate([*self.coarse, *self.fine]):
            if number == len(self.coarse):
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
