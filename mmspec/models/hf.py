"""Every call into transformers' changing API: its cache class, its causal language models, the trunks inside them.

Works with any decoder whose layers all attend to the whole past. Prompts are right-padded, so that positions start at
0 in each row; a row's padding is overwritten by its first new tokens.

Symbols: R model rows, P prompt width, N nodes, S slots, D hidden size, V vocabulary.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.core.target import TargetOutput
from mmspec.models.strict import list_names
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


def cache_bytes_per_slot(config: Any, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one slot, all layers, of a transformers text ``config``."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_dim * dtype.itemsize


class _PromptedModel:
    """The part of a :class:`mmspec.runner.runner.DecoderModel` that all models with token prompts share.

    Args:
        network: The whole model.
        decoder: What is called with the cache: the model, or the trunk inside it.
        input_ids: Prompts (R, P), right-padded.
        lengths: Real tokens of each prompt (R,), at least 1.
        device: Where to run; an offloaded model is elsewhere until its forward is called.
    """

    vocab_size: int

    def __init__(
        self, network: PreTrainedModel, decoder: nn.Module, input_ids: Tensor, lengths: Tensor, device: torch.device
    ) -> None:
        check_rollback(network)
        config = network.config.get_text_config()
        self.model, self.input_ids = network, input_ids
        self.device, self.dtype = device, network.dtype
        self.max_position: int = config.max_position_embeddings - 1
        zeros = torch.zeros_like(lengths)
        self.prompt = Prompt(input_ids.shape[1], start=zeros, length=lengths, position_offset=zeros)
        self._num_layers: int = config.num_hidden_layers
        self._cache: HFCache | None = None
        # renamed within transformers 5
        named = "cache" in inspect.signature(decoder.forward).parameters
        self._cache_argument = "cache" if named else "past_key_values"

    def _arguments(self, position_ids: Tensor, mask: Tensor) -> dict[str, Any]:
        cache = {self._cache_argument: self._cache}
        return {"attention_mask": mask, "position_ids": position_ids, "use_cache": True, **cache}

    def _last(self, states: Tensor) -> Tensor:
        """The states (R, 1, D) of each prompt's last token."""
        last = (self.prompt.length - 1)[:, None, None].expand(-1, 1, states.shape[-1])
        return states.gather(1, last)

    def select_rows(self, rows: Tensor) -> None:
        self.prompt = self.prompt.rows(rows)


class CausalLMModel(_PromptedModel):
    """A :class:`mmspec.runner.runner.DecoderModel` over a transformers causal language model.

    Args:
        model: Any decoder-only ``AutoModelForCausalLM``.
        input_ids: Prompts (R, P), right-padded.
        lengths: Real tokens of each prompt (R,), at least 1.
    """

    def __init__(self, model: PreTrainedModel, input_ids: Tensor, lengths: Tensor) -> None:
        super().__init__(model, model, input_ids, lengths, model.device)
        self.vocab_size: int = model.config.get_text_config().vocab_size

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        self._cache = HFCache(cache, self._num_layers)
        return TargetOutput(self._last(self._forward(self.input_ids, position_ids, mask)))

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self._forward(tokens, position_ids, mask))

    def _forward(self, tokens: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=tokens, **self._arguments(position_ids, mask)).logits.float()


class TrunkModel(_PromptedModel, ABC):
    """A :class:`mmspec.runner.runner.DecoderModel` over the trunk of a model: its layers, without embedding and head.

    The tokens of the loop need not be those of the prompts; a subclass says how each is embedded and how hidden states
    become logits.

    Args:
        network: The whole model, as it is moved and offloaded.
        trunk: The decoder layers with the last norm.
        input_ids: Prompts (R, P), right-padded.
        lengths: Real tokens of each prompt (R,), at least 1.
        device: Where to run.
        forward: What to call for decoding steps, e.g. the compiled ``trunk``; the prefill runs uncompiled.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        trunk: nn.Module,
        input_ids: Tensor,
        lengths: Tensor,
        device: torch.device,
        forward: Any = None,
    ) -> None:
        super().__init__(network, trunk, input_ids, lengths, device)
        self.trunk, self.forward = trunk, trunk if forward is None else forward

    @abstractmethod
    def embed_prompt(self, input_ids: Tensor) -> Tensor:
        """Embeddings (R, P, D) of prompt tokens."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of the loop's tokens."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (R, N, V) over the loop's tokens, from normalised hidden states (R, N, D)."""

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        bring_in(self.model)
        self._cache = HFCache(cache, self._num_layers)
        embeds = self.embed_prompt(self.input_ids)
        hidden = self._last(self._run(self.trunk, embeds, position_ids, mask))
        return TargetOutput(self.logits(hidden).float(), hidden)

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        hidden = self._run(self.forward, self.embed(tokens), position_ids, mask)
        return TargetOutput(self.logits(hidden).float(), hidden)

    def _run(self, trunk: Any, embeds: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        return trunk(inputs_embeds=embeds, **self._arguments(position_ids, mask)).last_hidden_state


def bring_in(network: nn.Module) -> None:
    """Run an offloading hook, which listens to the forward of the whole model only."""
    hook = getattr(network, "_hf_hook", None)
    if hook is not None:
        hook.pre_forward(network)


class PartialHead:
    """Some rows of a language model's output layer: the logits of a part of the vocabulary.

    Args:
        head: The output layer, without bias.
        ids: Wanted token ids (K,).
    """

    def __init__(self, head: nn.Module, ids: Tensor) -> None:
        self.head, self.ids = head, ids
        # a quantised, adapted or offloaded layer must be called as it is
        self.plain = type(head) is nn.Linear and head.bias is None and not hasattr(head, "_hf_hook")
        first, last = int(ids[0]), int(ids[-1])
        contiguous = bool((ids == torch.arange(first, first + len(ids), device=ids.device)).all())
        self.range = slice(first, last + 1) if contiguous else None
        self._copied: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits (..., K) of ``hidden`` (..., D)."""
        if not self.plain:
            full = self.head(hidden)
            return full[..., self.range] if self.range else full[..., self.ids.to(full.device)]
        weight: Tensor = self.head.weight  # type: ignore[assignment]
        if self.range:
            return nn.functional.linear(hidden, weight[self.range])
        if self._copied is None:
            self._copied = weight[self.ids.to(weight.device)]
        return nn.functional.linear(hidden, self._copied)


def load_strictly(model_class: type, name: str, unused: tuple[str, ...] = (), **options: Any) -> Any:
    """``model_class.from_pretrained(name, **options)``, from safetensors and only if every tensor is there.

    Args:
        model_class: A transformers model class.
        name: Folder or hub id.
        unused: Beginnings of names of tensors that the class has no use for.

    Raises:
        ValueError: Naming the missing, unexpected and misshapen tensors, or if there is no safetensors file.
    """
    try:
        model, info = model_class.from_pretrained(  # type: ignore[attr-defined]
            name, output_loading_info=True, use_safetensors=True, ignore_mismatched_sizes=True, **options
        )
    except OSError as error:
        raise ValueError(f"{name} cannot be loaded as {model_class.__name__}: {error}") from error
    raise_for_names(name, model_class, info, unused)
    return model.eval()


def raise_for_names(name: object, model_class: type, info: dict[str, Any], unused: tuple[str, ...] = ()) -> None:
    """Raise ValueError if the loading ``info`` of transformers has missing, unexpected or misshapen tensors."""
    wrong = {
        "missing": info["missing_keys"],
        "unexpected": [key for key in info["unexpected_keys"] if not key.startswith(unused)] if unused else info["unexpected_keys"],
        "misshapen": [f"{key} {tuple(got)} instead of {tuple(want)}" for key, got, want in info["mismatched_keys"]],
    }  # fmt: skip
    found = [f"{len(names)} {kind}: {list_names(names)}" for kind, names in wrong.items() if names]
    if found:
        raise ValueError(f"The weights in {name} do not fit {model_class.__name__}; {'; '.join(found)}.")


def check_by_loading(folder: Path, model_class: type) -> None:
    """Check the tensors of a saved model by transformers' own rules of renaming, without memory for weights.

    Raises:
        ValueError: As :func:`load_strictly`.
    """
    _, info = model_class.from_pretrained(  # type: ignore[attr-defined]
        folder, device_map="meta", output_loading_info=True, use_safetensors=True, ignore_mismatched_sizes=True
    )
    raise_for_names(folder, model_class, info)
