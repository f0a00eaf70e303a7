"""First stage of the embedded voice: its codec.

Loss: absolute difference of log-mel spectra at four resolutions and of log magnitudes at one, of complex spectra with a small
weight, and 0.25 |z - sg(q)|^2. Codebooks follow moving averages of what is assigned to them (van den Oord et al., 2017, "Neural Discrete Representation Learning", appendix
A.1), unused codes restart; half of the rows use a random number of codebooks only (Zeghidour et al., 2021, "SoundStream"), so that the first ones matter most.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.speech.codec import SpeechCodec
from mmspec.speech.codec_stream import decode
from mmspec.speech.log_mel import mel_filters
from mmspec.training.loop import LoopConfig, fit, restore_average, step_generator
from mmspec.training.tts_data import Recording, read_recordings

logger = logging.getLogger(__name__)

RESOLUTIONS = ((256, 40), (512, 64), (1024, 80), (2048, 96))
"""Sizes of the transforms in samples and mel bands of the loss."""


@dataclass(frozen=True, kw_only=True)
class CodecConfig(LoopConfig):
    """Settings of the codec's training.

    Args:
        data: Folder of the recordings, the output of ``mmspec train tts data``.
        frames: Frames of codes in a sample.
        width, inner, num_codes, code_dim: Sizes, see :class:`mmspec.speech.codec.SpeechCodec`.
        code_decay, dead_code_usage: Decay of the averages of codes, and the count of vectors a step below which a
            code restarts.
        full_rows: Share of rows that use all codebooks.
    """

    data: Path
    frames: int = 28
    width: int = 192
    inner: int = 480
    num_codes: int = 256
    code_dim: int = 64
    code_decay: float = 0.98
    dead_code_usage: float = 0.03
    full_rows: float = 0.6
    batch_size: int = 12
    learning_rate: float = 1.5e-3


class CodecTrainer(nn.Module):
    """The codec with the running sums of its codebooks."""

    counts: Tensor
    sums: Tensor

    def __init__(self, codec: SpeechCodec, config: CodecConfig) -> None:
        super().__init__()
        self.codec, self.config = codec, config
        shape = codec.quantizer.codebooks.shape
        self.register_buffer("counts", torch.zeros(shape[:2]))
        self.register_buffer("sums", torch.zeros(shape))
        self.mels = nn.ParameterList(
            nn.Parameter(mel_filters(bands, size, 16_000, 30.0, 8000.0), requires_grad=False)
            for size, bands in RESOLUTIONS
        )

    def loss(self, waves: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, float], Tensor, Tensor]:
        """Loss of ``waves`` (B, n), numbers for the log, rests before each book (G, m, E) and codes (m, G)."""
        latents = self.codec.latents(waves)
        books = self.codec.quantizer.codebooks
        with torch.no_grad():
            rests, codes, sums = quantise(latents, books)
        used = torch.randint(1, len(books) + 1, (len(waves),), generator=generator)
        used = torch.where(torch.rand(len(waves), generator=generator) < self.config.full_rows, len(books), used)
        quantised = sums[used - 1, torch.arange(len(waves))]
        commitment = (latents - quantised).square().mean() + 0.5 * (latents - sums[0]).square().mean()
        output = self.codec.synthesise(latents + (quantised - latents).detach())
        mel, other = self.spectral_losses(output, waves)
        loss = mel + other + 0.25 * commitment
        numbers = {"mel": mel.item(), "commitment": commitment.item()}
        return loss, numbers, rests.flatten(1, 2), codes.flatten(0, 1)

    def spectral_losses(self, output: Tensor, waves: Tensor) -> tuple[Tensor, Tensor]:
        """Mean distance of log-mel spectra; weighted distance of magnitudes and of complex spectra."""
        mel, other = waves.new_zeros(()), waves.new_zeros(())
        for (size, _), filters in zip(RESOLUTIONS, self.mels, strict=True):
            window = torch.hann_window(size, device=waves.device)
            stft = torch.stft(
                torch.cat([output, waves]), size, size // 4, window=window, return_complex=True
            ).transpose(1, 2)
            ours, theirs = stft.chunk(2)
            magnitudes = [x.real.square().add(x.imag.square()).add(1e-8).sqrt() for x in (ours, theirs)]
            bands = [(x @ filters).clamp_min(1e-3).log() for x in magnitudes]
            mel = mel + (bands[0] - bands[1]).abs().mean() / len(RESOLUTIONS)
            if size == 512:
                logs = [x.clamp_min(1e-2).log() for x in magnitudes]
                difference = torch.view_as_real(ours - theirs).abs().mean() / magnitudes[1].mean()
                other = 0.3 * (logs[0] - logs[1]).abs().mean() + 0.15 * difference
        return mel, other

    @torch.no_grad()
    def update_codes(self, rests: Tensor, codes: Tensor, generator: torch.Generator) -> None:
        """Move the codes to the averages of the vectors (G, m, E) that ``codes`` (m, G) assigns; restart unused ones."""
        decay, books = self.config.code_decay, self.codec.quantizer.codebooks
        for index, (rest, chosen) in enumerate(zip(rests, codes.unbind(-1), strict=True)):
            counts, sums = self.counts[index], self.sums[index]
            counts.mul_(decay).index_add_(0, chosen, rest.new_full((len(rest),), 1 - decay))
            sums.mul_(decay).index_add_(0, chosen, rest, alpha=1 - decay)
            dead = (counts < self.config.dead_code_usage).nonzero().flatten()
            if len(dead):
                picks = torch.randint(len(rest), (len(dead),), generator=generator)
                counts[dead] = 0.5
                sums[dead] = 0.5 * rest[picks]
            books[index].copy_(sums / counts[:, None])


def quantise(latents: Tensor, books: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What each book quantises (G, B, T, E), codes (B, T, G), and the sums of the first 1 .. G books (G, B, T, E)."""
    rest, rests, codes, sums = latents, [], [], []
    for book in books:
        rests.append(rest)
        chosen = (book.square().sum(-1) / 2 - rest @ book.T).argmin(-1)
        codes.append(chosen)
        rest = rest - book[chosen]
        sums.append(latents - rest)
    return torch.stack(rests), torch.stack(codes, dim=-1), torch.stack(sums)


def build_codec(config: CodecConfig) -> SpeechCodec:
    """An untrained codec of the configured size."""
    return SpeechCodec(
        width=config.width, inner=config.inner, num_codes=config.num_codes, code_dim=config.code_dim
    )  # fmt: skip


def draw_pieces(waves: list[Tensor], count: int, length: int, generator: torch.Generator) -> Tensor:
    """Random pieces (count, length) of the recordings, each sample as likely as any other; short ones are padded."""
    sizes = torch.tensor([len(wave) for wave in waves], dtype=torch.double)
    rows = []
    for pick in torch.multinomial(sizes, count, replacement=True, generator=generator).tolist():
        wave = F.pad(waves[pick], (0, max(0, length - len(waves[pick]))))
        start = int(torch.randint(len(wave) - length + 1, (), generator=generator))
        gain = 0.6 + 0.6 * float(torch.rand((), generator=generator))
        rows.append(gain * wave[start : start + length])
    return torch.stack(rows)


def train(config: CodecConfig) -> Path:
    """Train the codec and save it, with its measurements, in ``config.output``; returns its folder.

    Raises:
        FileNotFoundError: If there are no recordings in ``config.data``.
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
    """
    torch.manual_seed(config.seed)
    recordings = read_recordings(config.data)
    waves = [recording.waveform for recording in recordings if not recording.held_out]
    trainer = CodecTrainer(build_codec(config), config)
    length = config.frames * trainer.codec.frame_samples
    assigned: list[Tensor] = []

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        batch = draw_pieces(waves, config.batch_size, length, generator)
        loss, numbers, *assigned[:] = trainer.loss(batch, generator)
        return loss, numbers

    def after_step(step: int) -> None:
        trainer.update_codes(assigned[0], assigned[1], step_generator(config.seed + 1, step))

    seconds = fit(trainer, loss_of, config, after_step)
    return save(trainer, recordings, config, seconds / 60)


def save(trainer: CodecTrainer, recordings: list[Recording], config: CodecConfig, minutes: float) -> Path:
    """Write the codec and ``report.json`` beside it; returns the codec's folder."""
    codec = trainer.codec.eval()
    report = {"minutes": minutes, "parameters": sum(p.numel() for p in codec.parameters())}
    for name, out in (("trained", False), ("held_out", True)):
        report |= {name: evaluate(trainer, [r.waveform for r in recordings if r.held_out == out][:40])}
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("codec: %s", report)
    codec.save_pretrained(config.output / "codec")
    return config.output / "codec"


@torch.no_grad()
def evaluate(trainer: CodecTrainer, waves: list[Tensor]) -> dict[str, float]:
    """Mean log-mel distance (nats), scale-invariant SDR in dB, and codes used of all books, over ``waves``."""
    codec, distances, ratios, used = trainer.codec, [], [], []
    for wave in waves:
        codes = codec.encode(wave)
        output = decode(codec, codes)
        wave = F.pad(wave, (0, len(output) - len(wave)))
        if len(wave) >= 2048:
            distances.append(trainer.spectral_losses(output[None], wave[None])[0].item())
        ratios.append(si_sdr(output, wave))
        used.append(codes)
    flat = torch.cat(used)
    return {
        "mel_distance": sum(distances) / len(distances),
        "si_sdr": sum(ratios) / len(ratios),
        "codes_used": sum(len(flat[:, g].unique()) for g in range(flat.shape[1])),
    }


def si_sdr(output: Tensor, wave: Tensor) -> float:
    """Scale-invariant signal-to-distortion ratio in dB (Le Roux et al., 2019)."""
    scaled = (output @ wave) / (wave @ wave) * wave
    return float(10 * torch.log10(scaled.square().sum() / (output - scaled).square().sum()))


def load_codec(config: CodecConfig) -> CodecTrainer:
    """The averaged codec of the checkpoint in ``config.output``, also in the midst of its training."""
    trainer = CodecTrainer(build_codec(config), config)
    restore_average(trainer, config.output)
    return trainer
