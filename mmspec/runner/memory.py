"""How much memory a call needs, checked before its first forward."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

GIB = 1 << 30


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a call allocates on top of the loaded weights.

    Attributes:
        cache: Keys and values of all layers.
        logits: Logits of a draft and the copies that sampling makes of them.
        noise: The table of target noise.
        decode: Activations of the codec that turns tokens into the output.
    """

    cache: int
    logits: int
    noise: int
    decode: int = 0

    @property
    def total(self) -> int:
        # the codec runs when the decoder's buffers are gone already
        return max(self.cache + self.logits + self.noise, self.decode)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {getattr(self, name) / GIB:.2f}" for name in ("cache", "logits", "noise", "decode"))
        return f"{self.total / GIB:.2f} GiB ({parts})"


def estimate_memory(
    *,
    rows: int,
    branches: int,
    capacity: int,
    max_nodes: int,
    vocab_size: int,
    cache_bytes_per_slot: int,
    decode: int = 0,
) -> MemoryEstimate:
    """Estimate a call of ``rows`` samples.

    Args:
        rows, branches: Samples, and model rows per sample.
        capacity: Cache slots of a row.
        max_nodes: Widest draft.
        vocab_size: Vocabulary V.
        cache_bytes_per_slot: Bytes of keys and values of one slot, all layers.
        decode: Bytes of the codec's activations.
    """
    logits = rows * max_nodes * vocab_size * 4 * (branches + 3)
    return MemoryEstimate(
        cache=rows * branches * capacity * cache_bytes_per_slot,
        logits=logits,
        noise=rows * (max_nodes + 64) * vocab_size * (4 + 3 * 8),  # hashing works on 64-bit words
        decode=decode,
    )


def available_memory(device: torch.device) -> int:
    """Free bytes on ``device``: what the driver and torch's own pool can still give, or the host's free memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available)


def check_memory(estimate: MemoryEstimate, device: torch.device, remedy: str) -> None:
    """Raise MemoryError with the figures and a ``remedy`` if ``estimate`` exceeds what ``device`` can give."""
    available = available_memory(device)
    if estimate.total > available:
        raise MemoryError(
            f"This call needs about {estimate}, but {device} has {available / GIB:.2f} GiB free. {remedy}"
        )
