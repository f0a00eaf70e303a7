"""Counter-based randomness: every number is a pure function of (row seed, stream, keys).

A sequential generator would make a row depend on its batch mates, on padding and on the number of rounds. A keyed
hash does not: plain and speculative decoding read the very same noise for a token, so they return the same token.
The hash is the 64-bit xor-shift-multiply finaliser of splitmix64 (Steele et al., 2014), applied once per key word.

Symbols: B rows, n positions, V vocabulary.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class Stream(IntEnum):
    """Independent streams. TARGET is keyed by the token's order index, all others by the row's round."""

    TARGET = 1
    DRAFT = 2
    ACCEPT = 3
    RESIDUAL = 4
    AUXILIARY = 5


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _shift_right(z: Tensor, bits: int) -> Tensor:
    # torch's >> is arithmetic on int64, the hash needs the logical shift
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)).mul_(_MULTIPLIERS[0])
    z = z.bitwise_xor_(_shift_right(z, 27)).mul_(_MULTIPLIERS[1])
    return z.bitwise_xor_(_shift_right(z, 31))


def hash_keys(seeds: Tensor, *keys: Tensor | int) -> Tensor:
    """Hash int64 ``seeds`` with each key in turn; all broadcast. Returns int64 words, uniform over 64 bits."""
    z = seeds
    for key in keys:
        step = _signed((key + 1) * _GOLDEN) if isinstance(key, int) else (key + 1) * _GOLDEN
        z = _mix(z + step)
    return z


def to_uniform(words: Tensor) -> Tensor:
    """Map 64-bit words to the open interval (0, 1), float64 (float32 on devices without it)."""
    if words.device.type == "mps":  # no float64 there; 23 bits keep the half step exact in float32
        return (_shift_right(words, 41).float() + 0.5) * 2.0**-23
    return _shift_right(words, 12).double().add_(0.5).mul_(2.0**-52)


def to_gumbel(words: Tensor) -> Tensor:
    """Map 64-bit words to standard Gumbel noise in float32: argmax(log p + gumbel) is a draw from p."""
    return to_uniform(words).log_().neg_().log_().neg_().float()


class RowNoise:
    """The noise of B rows.

    Args:
        seeds: One 64-bit seed per row, int64 (B,). A row's noise depends on its own seed only.
        vocab_size: Number of tokens V that races run over.
    """

    #: positions hashed at a time; the table of target noise grows by this much
    chunk = 64

    def __init__(self, seeds: Tensor, vocab_size: int) -> None:
        self.seeds = seeds
        self.vocab_size = vocab_size
        self._tokens = torch.arange(vocab_size, device=seeds.device)
        self._first = 0
        self._table = seeds.new_empty((len(seeds), 0, vocab_size), dtype=torch.float32)

    def gumbel(self, stream: Stream, keys: Tensor) -> Tensor:
        """Gumbel noise over the vocabulary for integer ``keys`` (B, n): (B, n, V)."""
        words = hash_keys(self.seeds[:, None], int(stream), keys)
        return to_gumbel(hash_keys(words[..., None], self._tokens))

    def uniform(self, stream: Stream, *keys: Tensor) -> Tensor:
        """Uniforms in (0, 1) for integer ``keys``, each (B, n) or (B, 1): (B, n)."""
        return to_uniform(hash_keys(self.seeds[:, None], int(stream), *keys))

    def target(self, first: Tensor, count: int, lowest: int, highest: int) -> Tensor:
        """Target noise of order indices ``first[b] .. first[b] + count - 1``: (B, count, V).

        The noise of a token is read once per round while it is drafted and verified, so it is hashed once and kept.
        ``lowest`` and ``highest`` are the smallest and the largest of ``first``, known on the host.
        """
        self._cover(lowest, highest + count)
        if lowest == highest:
            return self._table[:, lowest - self._first : lowest - self._first + count]
        index = first[:, None] - self._first + torch.arange(count, device=first.device)
        return self._table.gather(1, index[..., None].expand(-1, -1, self.vocab_size))

    def _cover(self, start: int, stop: int) -> None:
        end = self._first + self._table.shape[1]
        if self._first <= start and stop <= end:
            return
        if self._first <= start <= end:
            kept = self._table[:, start - self._first :]
        else:
            kept, end = self._table[:, :0], start
        positions = torch.arange(end, stop + self.chunk, device=self.seeds.device)
        fresh = self.gumbel(Stream.TARGET, positions.expand(len(self.seeds), -1))
        self._first, self._table = start, torch.cat([kept, fresh], dim=1)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows listed in ``rows``, in that order."""
        self.seeds, self._table = self.seeds[rows], self._table[rows]
