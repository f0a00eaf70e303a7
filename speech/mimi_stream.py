"""Mimi's decoder in blocks of a fixed size, so that a streamed waveform is the whole one, bit for bit.

Défossez et al., 2024, "Moshi: a speech-text foundation model for real-time dialogue"; transformers' ``MimiModel``. The class decodes whole
utterances; its decoder is causal, though: a convolution needs the last inputs of the block before, a transposed one adds the end of its output to the
next, and the transformer keeps its keys and values. Each block runs the same operations whatever comes after it, so that nothing
that was given changes; against the class's own call only rounding differs.

Symbols: n frames, G codes a frame, C channels, t steps of a layer, m samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.speech.transformers_frames import cache_argument

BLOCK = 2
"""Frames decoded at a time."""

_PADDINGS = ("constant", "replicate")


class MimiStream:
    """Decodes one utterance piece by piece.

    Args:
        codec: A ``MimiModel`` with its decoder.
        block: Frames decoded at a time; other sizes round differently in the last bit.

    Raises:
        ValueError: If its decoder is not causal.
    """

    def __init__(self, codec: Any, block: int = BLOCK) -> None:
        check_causal(codec)
        self.codec, self.block = codec, block
        self._upsample, self._transformer, self._layers = _parts(codec)
        # without a limit of its own the cache would keep what the window has passed
        self._cache = DynamicCache(config=self._transformer.config)
        self._argument = cache_argument(self._transformer)
        self._histories: dict[nn.Module, Tensor] = {}
        self._pending: list[Tensor] = []

    @torch.no_grad()
    def push(self, codes: Tensor, last: bool = False) -> Tensor:
        """Take frames of ``codes`` (n, G), n at least 0, and return the samples (m,) that are final now, float32 on the CPU.

        With ``last`` everything that is left is returned; an utterance has :func:`samples_per_frame` samples for each frame.

        Raises:
            ValueError: If ``codes`` has another shape or holds values outside the codebooks.
        """
        _check_codes(self.codec, codes)
        self._pending += list(codes.unbind(0))
        parts = []
        while len(self._pending) >= self.block:
            parts.append(self._decode(torch.stack(self._pending[: self.block])))
            del self._pending[: self.block]
        if last and self._pending:
            filled = torch.stack(self._pending)
            filled = torch.cat([filled, filled.new_zeros(self.block - len(filled), filled.shape[1])])
            parts.append(self._decode(filled)[: len(self._pending) * samples_per_frame(self.codec)])
            self._pending = []
        return torch.cat(parts) if parts else torch.zeros(0)

    def _decode(self, codes: Tensor) -> Tensor:
        """Samples (m,) of a block (n, G)."""
        latents = self.codec.quantizer.decode(codes.T[None].to(self.codec.device))  # (1, C, n)
        hidden = self._transposed(self._upsample, latents)
        output = self._transformer(hidden.transpose(1, 2), use_cache=True, **{self._argument: self._cache})
        hidden = output.last_hidden_state.transpose(1, 2)
        for layer in self._layers:
            hidden = self._run(layer, hidden)
        return hidden[0, 0].float().cpu()

    def _run(self, layer: Any, hidden: Tensor) -> Tensor:
        """A layer of the decoder on the next steps (1, C, t)."""
        if hasattr(layer, "block"):
            residual = hidden
            for inner in layer.block:
                hidden = self._run(inner, hidden)
            return self._run(layer.shortcut, residual) + hidden
        convolution = getattr(layer, "conv", None)
        if convolution is None:
            output: Tensor = layer(hidden)  # it has no memory
            return output
        return (
            self._transposed(layer, hidden)
            if isinstance(convolution, nn.ConvTranspose1d)
            else self._convolved(layer, hidden)
        )

    def _convolved(self, layer: Any, hidden: Tensor) -> Tensor:
        """A causal convolution of stride 1, behind the inputs of the block before."""
        reach = (layer.conv.kernel_size[0] - 1) * layer.conv.dilation[0]
        before = self._histories.get(layer)
        if before is None:
            start = hidden[..., :1] if layer.pad_mode == "replicate" else torch.zeros_like(hidden[..., :1])
            before = start.expand(-1, -1, reach)
        hidden = torch.cat([before, hidden], dim=-1)
        self._histories[layer] = hidden[..., hidden.shape[-1] - reach :]
        output: Tensor = layer.conv(hidden)
        return output

    def _transposed(self, layer: Any, hidden: Tensor) -> Tensor:
        """A transposed convolution, whose last outputs are finished by the next block."""
        convolution = layer.conv
        stride, kernel = convolution.stride[0], convolution.kernel_size[0]
        spread = nn.functional.conv_transpose1d(
            hidden, convolution.weight, stride=stride, groups=convolution.groups
        )  # the bias comes once a sample, not once a block
        overlap = kernel - stride
        before = self._histories.get(layer)
        if before is not None:
            spread = torch.cat([spread[..., :overlap] + before, spread[..., overlap:]], dim=-1)
        ready = hidden.shape[-1] * stride
        self._histories[layer] = spread[..., ready:]
        output = spread[..., :ready]
        return output if convolution.bias is None else output + convolution.bias[:, None]


def samples_per_frame(codec: Any) -> int:
    """Samples of a frame."""
    upsample, _, layers = _parts(codec)
    factor: int = upsample.conv.stride[0]
    for layer in layers:
        if isinstance(getattr(layer, "conv", None), nn.ConvTranspose1d):
            factor *= layer.conv.stride[0]
    return factor


def check_causal(codec: Any) -> None:
    """Raise ValueError unless the decoder of ``codec`` can be run block by block."""
    config = codec.config
    if not config.use_causal_conv or config.trim_right_ratio != 1.0 or config.pad_mode not in _PADDINGS:
        raise ValueError(
            "This Mimi decoder is not causal, so it cannot be run block by block: `use_causal_conv` is "
            f"{config.use_causal_conv}, `trim_right_ratio` {config.trim_right_ratio}, `pad_mode` {config.pad_mode!r}; "
            f"needed are True, 1.0 and one of {', '.join(_PADDINGS)}."
        )


def _check_codes(codec: Any, codes: Tensor) -> None:
    config = codec.config
    if codes.ndim != 2 or codes.shape[1] > config.num_quantizers:
        raise ValueError(f"`codes` has shape {tuple(codes.shape)}; it must be (frames, {config.num_quantizers}).")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < config.codebook_size:
        raise ValueError(
            f"`codes` reach from {int(codes.min())} to {int(codes.max())}; a book has {config.codebook_size}."
        )


def _parts(codec: Any) -> tuple[Any, Any, Any]:
    """Upsampling, transformer and convolutions of the decoder, which transformers moved into a model of its own."""
    half = codec.decoder
    if hasattr(half, "decoder_seanet"):
        return half.upsample, half.decoder_transformer, half.decoder_seanet.layers
    return codec.upsample, codec.decoder_transformer, half.layers
