"""A character n-gram with Witten-Bell interpolation (Bell, Cleary & Witten, 1990), small enough to ship with a drafter.

With c(h, x) how often x followed the history h, n(h) their sum, t(h) how many different x followed, h' the history
without its first character,

    p(x | h) = (c(h, x) + t(h) p(x | h')) / (n(h) + t(h)),   p(x | nothing) = 1 / number of characters

The counts of each order are two sorted arrays, of keys and of counts; the key of an n-gram is its number in base A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from mmspec.drafters.base import check_positive

_FILE = "ngrams.safetensors"
_MOST_CACHED = 50_000
Law = NDArray[np.float64]


class CharacterNGram(SchedulerMixin, ConfigMixin):
    """Laws of the next character of a text.

    Args:
        characters: What texts are made of, without repeats.
        order: Characters of the longest n-gram, history and next character together.

    Raises:
        ValueError: If a character repeats, or keys of that order would not fit into 63 bits.
    """

    config_name = "language_config.json"
    has_compatibles = False

    @register_to_config
    def __init__(self, characters: str, order: int = 5) -> None:
        check_positive("order", order)
        if len(set(characters)) != len(characters) or not characters:
            raise ValueError(f"`characters` must be different from one another and at least one, got {characters!r}.")
        self._base = len(characters) + 2  # 0 is the start, the last is the end
        if self._base**order >= 1 << 63:
            raise ValueError(f"`order` {order} is too long for {len(characters)} characters.")
        self._index = {character: place + 1 for place, character in enumerate(characters)}
        self._keys: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64) for _ in range(order)]
        self._counts: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64) for _ in range(order)]
        self._cache: dict[tuple[int, ...], Law] = {}
        self._log_cache: dict[tuple[int, ...], Law] = {}

    @classmethod
    def fit(cls, texts: Iterable[str], characters: str, order: int = 5, least: int = 1) -> CharacterNGram:
        """Count the n-grams of ``texts``.

        Args:
            texts: What is written; characters that are none of ``characters`` are left out.
            characters, order: See the class.
            least: Drop n-grams of the highest order that occur less often.
        """
        made = cls(characters, order)
        tables: list[Counter[int]] = [Counter() for _ in range(order)]
        for text in texts:
            symbols = [0, *made._symbols(text), made._base - 1]
            for place in range(1, len(symbols)):
                key = 0
                for size in range(min(order, place + 1)):  # history of `size` symbols
                    key += symbols[place - size] * made._base**size
                    tables[size][key] += 1
        for size, table in enumerate(tables):
            kept = sorted(k for k, count in table.items() if count >= least or size + 1 < order)
            made._keys[size] = np.array(kept, dtype=np.int64)
            made._counts[size] = np.array([table[k] for k in kept], dtype=np.int64)
        return made

    def _symbols(self, text: str) -> list[int]:
        return [self._index[character] for character in text if character in self._index]

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Write settings and counts to a folder."""
        super().save_pretrained(save_directory, **kwargs)
        tensors = {}
        for size, (keys, counts) in enumerate(zip(self._keys, self._counts, strict=True)):
            small = np.int32 if self._base ** (size + 1) < 1 << 31 else np.int64
            tensors[f"keys.{size}"] = keys.astype(small)
            tensors[f"counts.{size}"] = np.minimum(counts, 65_535).astype(np.uint16)
        save_file(tensors, Path(save_directory) / _FILE)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> CharacterNGram:
        """Load what :meth:`save_pretrained` wrote.

        Raises:
            ValueError: If a table is missing or damaged.
        """
        folder = Path(pretrained_model_name_or_path)
        made = super().from_pretrained(folder)
        tensors = load_file(folder / _FILE)
        names = {f"{kind}.{size}" for kind in ("keys", "counts") for size in range(made.config.order)}
        if names != tensors.keys():
            raise ValueError(f"{folder / _FILE} holds {sorted(tensors)} instead of {sorted(names)}.")
        for size in range(made.config.order):
            keys, counts = tensors[f"keys.{size}"], tensors[f"counts.{size}"]
            if len(keys) != len(counts):
                raise ValueError(f"{folder / _FILE} has {len(keys)} n-grams of {size + 1} but {len(counts)} counts.")
            made._keys[size], made._counts[size] = keys.astype(np.int64), counts.astype(np.int64)
        return made

    def log_law(self, text: str) -> Law:
        """Log-probabilities of what follows ``text``: of each of ``characters``, and last of the end."""
        size = self.config.order - 1
        recent = self._symbols(text[-4 * size :]) if size else []  # unknown characters are left out
        if len(recent) < size:
            recent = [0, *self._symbols(text)]
        history = tuple(recent[-size:]) if size else ()
        known = self._log_cache.get(history)
        if known is None:
            if len(self._log_cache) >= _MOST_CACHED:
                self._log_cache.clear()
            known = self._log_cache[history] = np.log(self._law(history)[1:])
        return known

    def _law(self, history: tuple[int, ...]) -> Law:
        known = self._cache.get(history)
        if known is not None:
            return known
        lower = self._law(history[1:]) if history else np.full(self._base, 1 / (self._base - 1))
        prefix = 0
        for symbol in history:
            prefix = prefix * self._base + symbol
        keys, size = self._keys[len(history)], len(history)
        first, last = np.searchsorted(keys, (prefix * self._base, (prefix + 1) * self._base))
        counts = np.zeros(self._base)
        counts[keys[first:last] - prefix * self._base] = self._counts[size][first:last]
        different = last - first
        law: Law = (counts + different * lower) / (counts.sum() + different) if different else lower
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[history] = law
        return law
