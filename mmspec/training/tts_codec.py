"""Second stage of the embedded voice: the decoder of its codec.

Loss: absolute difference of log-mel spectra at four resolutions and of log magnitudes at one, and of complex spectra with a small weight (as in
Siuzdak, 2023, "Vocos", without its discriminators). A share of the rows uses a random number of codebooks only
(Zeghidour et al., 2021, "SoundStream"), so that the decoder is steady where late codes are odd.
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
from mmspec.training.tts_quantizer import load_quantizer

logger = logging.getLogger(__name__)

RESOLUTIONS = ((256, 40), (512, 64), (1024, 80), (2048, 96))
"""Sizes of the transforms in samples and mel bands of the loss."""


@dataclass(frozen=True, kw_only=True)
class CodecConfig(LoopConfig):
    """Settings of the codec's training.

    Args:
        data: Folder of the recordings, the output of ``mmspec train tts data``.
        quantizer: Output folder of ``mmspec train tts quantizer``.
        frames: Frames of codes in a sample.
        width, inner: Sizes, see :class:`mmspec.speech.codec.SpeechCodec`.
        full_rows: Share of rows that use all codebooks.
    """

    data: Path
    quantizer: Path
    frames: int = 16
    width: int = 192
    inner: int = 480
    full_rows: float = 0.75
    batch_size: int = 12
    learning_rate: float = 1.5e-3


class CodecTrainer(nn.Module):
    """The codec with the filters of its loss."""

    def __init__(self, codec: SpeechCodec, config: CodecConfig) -> None:
        super().__init__()
        self.codec, self.config = codec, config
        self.mels = nn.ParameterList(
            nn.Parameter(mel_filters(bands, size, 16_000, 30.0, 8000.0), requires_grad=False)
            for size, bands in RESOLUTIONS
        )

    def loss(self, waves: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Loss of ``waves`` (B, n) and numbers for the log."""
        quantizer = self.codec.quantizer
        with torch.no_grad():
            codes = quantizer.encode(self.codec.frames(waves))
            vectors = torch.stack([book[codes[..., i]] for i, book in enumerate(quantizer.codebooks)], dim=2)
        books = vectors.shape[2]
        used = torch.randint(1, books + 1, (len(waves),), generator=generator)
        used = torch.where(torch.rand(len(waves), generator=generator) < self.config.full_rows, books, used)
        kept = torch.arange(books) < used[:, None]  # (B, G)
        output = self.codec.synthesise((vectors * kept[:, None, :, None]).sum(2))
        mel, other = self.spectral_losses(output, waves)
        return mel + other, {"mel": mel.item()}

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


def build_codec(config: CodecConfig) -> SpeechCodec:
    """A codec of the configured size with fitted codes and an untrained decoder."""
    quantizer = load_quantizer(config.quantizer)
    books, codes, width = quantizer.codebooks.shape
    codec = SpeechCodec(
        width=config.width, inner=config.inner, num_codebooks=books, num_codes=codes, code_dim=width
    )  # fmt: skip
    codec.quantizer.load_state_dict(quantizer.state_dict())
    return codec


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

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        return trainer.loss(draw_pieces(waves, config.batch_size, length, generator), generator)

    seconds = fit(trainer, loss_of, config)
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
