"""What the frame models over transformers' classes share: a talker on the preallocated cache, a predictor on a cache that is cropped.

Prompts are right-padded, so positions start at 0 in every row and a row's padding is overwritten by its first frames.

Symbols: B rows, b rows of a call, L prompt slots, S visible slots, G codes a frame, V tokens, D talker width, E predictor width.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.models.hf import HFCache
from mmspec.runner.cache import SpecCache
from mmspec.speech.frame_model import InnerSession


def cache_argument(module: nn.Module) -> str:
    """Name of the argument that takes the cache; it was renamed within transformers 5."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


class CroppedInner:
    """A predictor's memory of the frame of one row.

    The cache is made without a configuration: the layers are then all full ones, which can be cropped whatever window the
    configuration states.

    Args:
        frames: Runs the predictor.
        state: Talker state (1, D) of the frame.
    """

    def __init__(self, frames: TransformersFrames, state: Tensor) -> None:
        self.frames, self.state = frames, state
        self.cache = DynamicCache()

    def extend(self, inputs: Tensor) -> Tensor:
        return self.frames.run_inner(inputs, self.state, self.cache)

    def keep(self, length: int) -> None:
        surplus = self.cache.get_seq_length() - length
        if surplus > 0:
            self.cache.crop(-surplus)


class TransformersFrames(ABC):
    """Base of the :class:`mmspec.speech.frame_model.FrameModel` over transformers' classes.

    Args:
        network: The whole model.
        trunk: The layers of its talker.
        num_layers: How many they are.
        prompts: Embedded prompt of each row (L_b, D).
        max_frames: Frames that a row may have.
    """

    num_codebooks: int
    vocab_size: int

    def __init__(
        self, network: Any, trunk: nn.Module, num_layers: int, prompts: Sequence[Tensor], max_frames: int
    ) -> None:
        self.network, self.trunk = network, trunk
        self.device: torch.device = network.device
        self._prompts = list(prompts)
        self._lengths = [len(prompt) for prompt in prompts]
        self.cache = SpecCache(len(prompts), max(self._lengths) + max_frames + 1, self.device)
        self._wrapped = HFCache(self.cache, num_layers)
        self._cache_argument = cache_argument(trunk)
        self._states: Tensor | None = None

    @abstractmethod
    def first_logits(self, hidden: Tensor) -> Tensor:
        """Raw logits (b, V) of code 0 from talker states (b, D)."""

    @abstractmethod
    def embed_frames(self, codes: Tensor, rows: Sequence[int]) -> Tensor:
        """Talker inputs (b, D) of finished frames ``codes`` (b, G) of ``rows``."""

    @abstractmethod
    def run_inner(self, inputs: Tensor, states: Tensor, cache: DynamicCache | None) -> Tensor:
        """Predictor outputs (b, n, E) for ``inputs`` (b, n, *) behind what ``cache`` holds."""

    @abstractmethod
    def head_weights(self) -> Tensor:
        """Output heads of the residual codes (G - 1, V', E)."""

    @abstractmethod
    def inner_inputs(self, states: Tensor | None, codes: Tensor, first: int) -> Tensor: ...

    def after(self, codes: Tensor, logits: Tensor) -> Tensor:
        """Logits of code 0 after frames ``codes``; families whose frames end the speech say so here."""
        return logits

    def positions(self, places: Tensor) -> Tensor:
        """Position ids of ``places`` (b, n) as the talker wants them."""
        return places

    def prefill(self) -> tuple[Tensor, Tensor]:
        longest = max(self._lengths)
        inputs = torch.nn.utils.rnn.pad_sequence(self._prompts, batch_first=True)
        lengths = torch.tensor(self._lengths, device=self.device)
        self.cache.plan(longest, longest)
        allowed = torch.ones(longest, longest, dtype=torch.bool, device=self.device).tril()
        places = torch.arange(longest, device=self.device).expand(len(inputs), -1)
        hidden = self._talk(inputs, places, allowed.expand(len(inputs), -1, -1))
        self.cache.lengths = lengths
        last = hidden[torch.arange(len(hidden), device=self.device), lengths - 1]
        self._states = last
        return self.first_logits(last).float(), last

    def advance(self, rows: Tensor | None, codes: Tensor) -> tuple[Tensor, Tensor]:
        called = list(range(len(self._lengths))) if rows is None else rows.tolist()
        inputs = self.embed_frames(codes, called)[:, None]
        for row in called:
            self._lengths[row] += 1
        lengths = self.cache.lengths if rows is None else self.cache.lengths[rows]
        longest = max(self._lengths[row] for row in called)
        self.cache.plan(1, longest, only=rows)
        allowed = (torch.arange(longest, device=self.device) <= lengths[:, None])[:, None]
        hidden = self._talk(inputs, lengths[:, None], allowed)[:, 0]
        index = torch.tensor(called, device=self.device)
        self.cache.lengths = self.cache.lengths.index_add(0, index, torch.ones_like(index))
        if rows is None:
            self._states = hidden
        return self.after(codes, self.first_logits(hidden).float()), hidden

    def _talk(self, inputs: Tensor, places: Tensor, allowed: Tensor) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=inputs.dtype, device=self.device)
        mask = mask.masked_fill_(~allowed, torch.finfo(inputs.dtype).min)[:, None]
        output = self.trunk(
            inputs_embeds=inputs, attention_mask=mask, position_ids=self.positions(places), use_cache=True,
            **{self._cache_argument: self._wrapped},
        )  # fmt: skip
        return output.last_hidden_state

    def inner(self, states: Tensor, codes: Tensor) -> Tensor:
        return self.run_inner(self.inner_inputs(states, codes, 0), states, None)

    def head(self, hidden: Tensor, books: Tensor) -> Tensor:
        heads = self.head_weights()[(books - 1).clamp(0, self.num_codebooks - 2)]
        pattern = "bne,nve->bnv" if books.ndim == 1 else "bne,bnve->bnv"
        logits = torch.einsum(pattern, hidden, heads).float()
        return torch.nn.functional.pad(logits, (0, self.vocab_size - logits.shape[-1]), value=-torch.inf)

    def open_inner(self) -> InnerSession:
        assert self._states is not None
        return CroppedInner(self, self._states)

    def select_rows(self, rows: Tensor) -> None:
        self.cache.select_rows(rows)
        self._lengths = [self._lengths[row] for row in rows.tolist()]
