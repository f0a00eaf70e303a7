"""The decoder of Whisper as the runner sees it: a cache that rolls back for its own tokens, a fixed one for the audio.

Symbols: R model rows, P forced tokens, N nodes, T encoder states, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from mmspec.core.target import TargetOutput
from mmspec.models.hf import HFCache
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt


class WhisperDecoderModel:
    """A :class:`mmspec.runner.runner.DecoderModel`.

    Args:
        model: ``WhisperForConditionalGeneration``.
        states: Encoder states (R, T, D).
        prompts: Forced first tokens of each row.
        device: Where to run.
    """

    def __init__(self, model: Any, states: Tensor, prompts: Sequence[Sequence[int]], device: torch.device) -> None:
        self.model, self.states = model, states.to(device)
        self.vocab_size: int = model.config.vocab_size
        self.device, self.dtype = device, model.dtype
        self.max_position: int = model.config.max_target_positions - 1
        width = max(len(tokens) for tokens in prompts)
        self.input_ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in prompts], device=device)
        length = torch.tensor([len(tokens) for tokens in prompts], device=device)
        zeros = torch.zeros_like(length)
        self.prompt = Prompt(width, start=zeros, length=length, position_offset=zeros)
        named = "cache" in inspect.signature(model.model.decoder.forward).parameters  # renamed within transformers 5
        self._cache_argument = "cache" if named else "past_key_values"
        self._cache: EncoderDecoderCache | None = None
        self._never = self._tokens("suppress_tokens")
        self._not_first = self._tokens("begin_suppress_tokens")

    def _tokens(self, name: str) -> Tensor:
        tokens = getattr(self.model.generation_config, name, None) or []
        return torch.tensor(list(tokens), dtype=torch.long, device=self.device)

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return self._prompts(self.input_ids, 0, cache, position_ids, mask)

    def prefill_drafted(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        joined = torch.nn.functional.pad(self.input_ids, (0, tokens.shape[1]))
        place = self.prompt.length[:, None] + torch.arange(tokens.shape[1], device=self.device)
        return self._prompts(joined.scatter(1, place, tokens), tokens.shape[1], cache, position_ids, mask)

    def _prompts(
        self, tokens: Tensor, drafted: int, cache: SpecCache, position_ids: Tensor, mask: Tensor
    ) -> TargetOutput:
        layers = self.model.config.decoder_layers
        self._cache = EncoderDecoderCache(HFCache(cache, layers), DynamicCache())
        logits = self._forward(tokens, position_ids, mask)
        place = self.prompt.length[:, None] - 1 + torch.arange(drafted + 1, device=self.device)
        logits = logits.gather(1, place[..., None].expand(-1, -1, logits.shape[-1]))
        first = logits[:, :1].index_fill(-1, self._not_first, -torch.inf)
        return TargetOutput(torch.cat([first, logits[:, 1:]], dim=1))

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self._forward(tokens, position_ids, mask))

    def _forward(self, tokens: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        output = self.model(
            encoder_outputs=(self.states,), decoder_input_ids=tokens, decoder_attention_mask=mask,
            decoder_position_ids=position_ids, use_cache=True, **{self._cache_argument: self._cache},
        )  # fmt: skip
        logits: Tensor = output.logits.float()
        return logits.index_fill(-1, self._never, -torch.inf)

    def select_rows(self, rows: Tensor) -> None:
        self.prompt, self.states = self.prompt.rows(rows), self.states[rows]
        assert self._cache is not None
        for layer in self._cache.cross_attention_cache.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
