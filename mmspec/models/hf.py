"""Every call into transformers' changing API: its cache class, its causal language models.

Works with any ``AutoModelForCausalLM`` whose layers all attend to the whole past. Prompts are right-padded, so that
positions start at 0 in each row; a row's padding is overwritten by its first new tokens.

Symbols: R model rows, P prompt width, N nodes, S slots, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.core.target import TargetOutput
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt


class _Layer(CacheLayerMixin):
    """One layer of a :class:`HFCache`."""

    is_compileable = True
    is_sliding = False

    def __init__(self, cache: SpecCache, index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass  # SpecCache allocates when a layer first writes

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.cache.update(key_states, value_states, self.index)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.cache.visible, 0

    def get_seq_length(self) -> int:
        return 0  # positions and masks are always passed explicitly

    def get_max_length(self) -> int:
        return self.cache.capacity


class HFCache(Cache):
    """A :class:`SpecCache` in the shape that transformers' models expect."""

    def __init__(self, cache: SpecCache, num_layers: int) -> None:
        super().__init__(layers=[_Layer(cache, index) for index in range(num_layers)])


def check_rollback(model: PreTrainedModel) -> None:
    """Raise ValueError if the model keeps state that cannot be rolled back by a length."""
    config = model.config.get_text_config()
    # families with one kind of layer (Mistral, Phi-3) state a window and no list of kinds
    one_kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    kinds = set(getattr(config, "layer_types", None) or [one_kind])
    if model.config.is_encoder_decoder or kinds != {"full_attention"}:
        raise ValueError(
            f"{type(model).__name__} has layers {sorted(kinds)}; speculative decoding here needs a decoder whose "
            "layers are all 'full_attention', since other caches cannot be rolled back to a length."
        )


class CausalLMModel:
    """A :class:`mmspec.runner.runner.DecoderModel` over a transformers causal language model.

    Args:
        model: Any decoder-only ``AutoModelForCausalLM``.
        input_ids: Prompts (R, P), right-padded.
        lengths: Real tokens of each prompt (R,), at least 1.
    """

    def __init__(self, model: PreTrainedModel, input_ids: Tensor, lengths: Tensor) -> None:
        check_rollback(model)
        config = model.config.get_text_config()
        self.model, self.input_ids = model, input_ids
        self.vocab_size: int = config.vocab_size
        self.device, self.dtype = model.device, model.dtype
        self.max_position: int = config.max_position_embeddings - 1
        zeros = torch.zeros_like(lengths)
        self.prompt = Prompt(input_ids.shape[1], start=zeros, length=lengths, position_offset=zeros)
        self._cache: HFCache | None = None
        # renamed within transformers 5
        named = "cache" in inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if named else "past_key_values"

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        self._cache = HFCache(cache, self.model.config.get_text_config().num_hidden_layers)
        logits = self._forward(self.input_ids, position_ids, mask)
        last = (self.prompt.length - 1)[:, None, None].expand(-1, 1, logits.shape[-1])
        return TargetOutput(logits.gather(1, last))

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self._forward(tokens, position_ids, mask))

    def _forward(self, tokens: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        cache = {self._cache_argument: self._cache}
        output = self.model(input_ids=tokens, attention_mask=mask, position_ids=position_ids, use_cache=True, **cache)
        return output.logits.float()

    def select_rows(self, rows: Tensor) -> None:
        self.prompt = self.prompt.rows(rows)
