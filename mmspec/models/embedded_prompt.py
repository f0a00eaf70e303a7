"""Language models that are prompted with embeddings: audio or pictures projected into their input space.

Prompts are right-padded, so that positions start at 0 in each row and a draft can follow every prompt at once.

Symbols: R rows, P prompt width, K draft tokens, D width, N nodes, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.core.target import TargetOutput
from mmspec.models.hf import HFCache, check_rollback
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt


class EmbeddedPromptModel:
    """A :class:`mmspec.runner.runner.DecoderModel` over a causal language model and prompts of embeddings.

    Args:
        model: A transformers model whose forward takes ``inputs_embeds`` and ``logits_to_keep``.
        prompts: Embeddings (P_r, D) of each row, of any lengths of at least 1.
        device: Where to run.
        divisor: What the model's logits must still be divided by.
        forbidden: Tokens that never are text.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Tensor],
        device: torch.device,
        divisor: float = 1.0,
        forbidden: Sequence[int] = (),
    ) -> None:
        check_rollback(model)
        config = model.config.get_text_config()
        self.model, self.divisor = model, divisor
        self.forbidden = torch.tensor(list(forbidden), dtype=torch.long, device=device)
        self.vocab_size: int = config.vocab_size
        self.device, self.dtype = device, model.dtype
        self.max_position: int = config.max_position_embeddings - 1
        self.embeddings = torch.nn.utils.rnn.pad_sequence(
            [prompt.to(device, self.dtype) for prompt in prompts], batch_first=True
        )  # (R, P, D)
        lengths = [len(prompt) for prompt in prompts]
        length = torch.tensor(lengths, device=device)
        self.shortest = min(lengths)
        zeros = torch.zeros_like(length)
        self.prompt = Prompt(max(lengths), start=zeros, length=length, position_offset=zeros)
        self._cache: HFCache | None = None
        # renamed within transformers 5
        named = "cache" in inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if named else "past_key_values"

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return self._prompts(self.embeddings, 0, cache, position_ids, mask)

    def prefill_drafted(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        rows, count = tokens.shape
        drafted = self.model.get_input_embeddings()(tokens).to(self.dtype)
        joined = torch.cat([self.embeddings, drafted.new_zeros(rows, count, drafted.shape[-1])], dim=1)
        place = self.prompt.length[:, None] + torch.arange(count, device=self.device)
        joined = joined.scatter(1, place[..., None].expand_as(drafted), drafted)
        return self._prompts(joined, count, cache, position_ids, mask)

    def _prompts(
        self, embeddings: Tensor, drafted: int, cache: SpecCache, position_ids: Tensor, mask: Tensor
    ) -> TargetOutput:
        """Run prompts, each followed by ``drafted`` tokens: logits from the last slot of each prompt on."""
        self._cache = HFCache(cache, self.model.config.get_text_config().num_hidden_layers)
        first = self.shortest - 1  # the logits before are nobody's
        logits = self._forward(
            {"inputs_embeds": embeddings, "logits_to_keep": embeddings.shape[1] - first}, position_ids, mask
        )
        place = self.prompt.length[:, None] - 1 - first + torch.arange(drafted + 1, device=self.device)
        return TargetOutput(logits.gather(1, place[..., None].expand(-1, -1, logits.shape[-1])))

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self._forward({"input_ids": tokens}, position_ids, mask))

    def _forward(self, inputs: dict[str, Any], position_ids: Tensor, mask: Tensor) -> Tensor:
        cache = {self._cache_argument: self._cache}
        output = self.model(attention_mask=mask, position_ids=position_ids, use_cache=True, **inputs, **cache)
        logits: Tensor = output.logits.float()
        if self.divisor != 1:
            logits = logits / self.divisor
        return logits.index_fill(-1, self.forbidden, -torch.inf) if len(self.forbidden) else logits

    def select_rows(self, rows: Tensor) -> None:
        self.prompt = self.prompt.rows(rows)
