"""Decoding of codec frames in blocks of a fixed size, so that a streamed waveform is the whole one, bit for bit.

Every block runs the same shapes whatever the length of the utterance, hence rounds alike. The decoder is causal: the
inputs of its convolutions and the overlap of its last spectra are all that a block needs of those before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.speech.codec import LEAD, SPECTRUM_HOP, SPECTRUM_SIZE, SpeechCodec, overlap_add

BLOCK = 2
"""Frames decoded at a time."""


class CodecStream:
    """Decodes one utterance piece by piece.

    Args:
        codec: The codec.
        block: Frames decoded at a time; other sizes round differently in the last bit.
    """

    def __init__(self, codec: SpeechCodec, block: int = BLOCK) -> None:
        self.codec, self.block = codec, block
        config = codec.config
        self._histories = [
            torch.zeros(1, config.kernel - 1, config.width, device=codec.device, dtype=codec.dtype)
            for _ in range(config.coarse_blocks + config.fine_blocks)
        ]
        self._overlap = torch.zeros(SPECTRUM_SIZE - SPECTRUM_HOP, device=codec.device)
        self._pending: list[Tensor] = []
        self._frames = self._sent = 0

    @torch.no_grad()
    def push(self, codes: Tensor, last: bool = False) -> Tensor:
        """Take frames of ``codes`` (n, G), n at least 0, and return the samples (m,) that are final now.

        With ``last`` everything that is left is returned, and the utterance has ``frame_samples`` for each frame.
        """
        self._pending += list(codes.unbind(0))
        self._frames += len(codes)
        parts = []
        while len(self._pending) >= self.block:
            parts.append(self._decode(torch.stack(self._pending[: self.block])))
            del self._pending[: self.block]
        if last:
            parts += self._flush()
        samples = torch.cat(parts) if parts else torch.zeros(0)
        # the first samples of the first window lie before the utterance
        total = self._frames * self.codec.frame_samples
        lead = LEAD if self._sent == 0 and len(samples) else 0
        samples = samples[lead:]
        if last:
            samples = samples[: total - self._sent]
        self._sent += len(samples)
        return samples

    def _flush(self) -> list[Tensor]:
        """Samples of the frames that fill no block, and of the last windows' ends."""
        parts = []
        if self._pending:
            filled = torch.stack(self._pending)
            filled = torch.cat([filled, filled.new_zeros(self.block - len(filled), filled.shape[1])])
            count = len(self._pending) * self.codec.config.spectra_per_frame
            parts.append(self._decode(filled, count))
            self._pending = []
        parts.append(self._overlap.cpu())
        return parts

    def _decode(self, codes: Tensor, count: int | None = None) -> Tensor:
        """Samples that the first ``count`` spectra of a block complete; all of them by default."""
        latents = self.codec.quantizer.decode(codes.to(self.codec.device))
        pieces, self._histories = self.codec.spectra(latents[None], self._histories)
        pieces = pieces[:, :count]
        summed = overlap_add(pieces)[0]
        overlap = len(self._overlap)
        summed[:overlap] += self._overlap
        self._overlap = summed[-overlap:]
        return summed[:-overlap].cpu()


def decode(codec: SpeechCodec, codes: Tensor) -> Tensor:
    """Waveform (T * frame_samples,) of ``codes`` (T, G), float32 on the CPU, about -1 to 1.

    Raises:
        ValueError: If ``codes`` has another shape or holds values outside the codebooks.
    """
    config = codec.config
    if codes.ndim != 2 or codes.shape[1] > config.num_codebooks:
        raise ValueError(f"`codes` has shape {tuple(codes.shape)}; it must be (frames, {config.num_codebooks}).")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < config.num_codes:
        raise ValueError(
            f"`codes` reach from {int(codes.min())} to {int(codes.max())}; a book has {config.num_codes}."
        )
    return CodecStream(codec).push(codes, last=True)
