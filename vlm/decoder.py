"""The language model inside a vision-language model, as the runner drives it.

Prompts are right-padded: every row starts at slot 0 and its new tokens follow its own last slot. Masks are additive: a
boolean mask is right for one attention kernel of transformers and silently wrong for another.

Symbols: R rows, P prompt width, N nodes, S slots, A axes of positions, D width, T tapped layers, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from mmspec.core.target import TargetOutput
from mmspec.models.hf import HFCache, bring_in, check_rollback
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt

if TYPE_CHECKING:
    from mmspec.vlm.adapters.base import EncodedPrompt


class VisionLanguageModel:
    """A :class:`mmspec.runner.runner.DecoderModel` over encoded prompts.

    Args:
        network: The whole model.
        prompts: One encoded prompt a row.
        device: Where to run.
        bidirectional_prompt: Whether the slots of a prompt see one another in both directions.

    Attributes:
        taps: Layers whose states are handed out, counted from 1, the first layer's output; a drafter sets them before
            the prefill. ``TargetOutput.hidden`` then holds their states side by side (R, N, T * D).
    """

    def __init__(
        self,
        network: PreTrainedModel,
        prompts: Sequence[EncodedPrompt],
        device: torch.device,
        bidirectional_prompt: bool = False,
    ) -> None:
        check_rollback(network)
        config = network.config.get_text_config()
        self.network, self.trunk, self.head = network, network.get_decoder(), network.get_output_embeddings()
        self.vocab_size: int = self.head.weight.shape[0]
        self.device, self.dtype = device, network.dtype
        self.max_position: int = config.max_position_embeddings - 1
        self.bidirectional_prompt = bidirectional_prompt
        self.taps: tuple[int, ...] = ()
        self.num_layers: int = config.num_hidden_layers
        self._read_prompts(prompts)
        self._cache: HFCache | None = None
        # renamed within transformers 5
        named = "cache" in inspect.signature(self.trunk.forward).parameters
        self._cache_argument = "cache" if named else "past_key_values"
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)

    def _read_prompts(self, prompts: Sequence[EncodedPrompt]) -> None:
        device = self.device
        embedded = [prompt.embeddings.to(device, self.dtype) for prompt in prompts]
        self.embeddings = pad_sequence(embedded, batch_first=True)  # (R, P, D)
        positions = [prompt.positions.T.to(device) for prompt in prompts]
        self.positions = pad_sequence(positions, batch_first=True).permute(2, 0, 1)  # (A, R, P)
        self.visual = pad_sequence([prompt.visual.to(device) for prompt in prompts], batch_first=True)  # (R, P)
        levels = {len(prompt.deepstack) for prompt in prompts if len(prompt.deepstack)}
        self.deepstack = [
            torch.cat([prompt.deepstack[level].to(device, self.dtype) for prompt in prompts if prompt.deepstack])
            for level in range(max(levels, default=0))
        ]
        length = torch.tensor([len(prompt) for prompt in prompts], device=device)
        offset = torch.tensor([prompt.offset for prompt in prompts], device=device)
        width = self.embeddings.shape[1]
        self.prompt = Prompt(width, start=torch.zeros_like(length), length=length, position_offset=offset)

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        bring_in(self.network)
        self._cache = HFCache(cache, self.num_layers)
        if self.bidirectional_prompt:
            mask = self._both_ways(mask)
        more: dict[str, Any] = {}
        if self.deepstack:
            more = {"visual_pos_masks": self.visual, "deepstack_visual_embeds": self.deepstack}
        last, tapped = self._run(self.embeddings, self.positions, mask, more)
        newest = (self.prompt.length - 1)[:, None, None].expand(-1, 1, last.shape[-1])
        return TargetOutput(self.logits(last.gather(1, newest)), tapped)

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        last, tapped = self._run(self.embed_tokens(tokens), position_ids.expand(len(self.positions), -1, -1), mask, {})
        return TargetOutput(self.logits(last), tapped)

    def positions_at(self, slots: Tensor) -> Tensor:
        """Positions (A, R, N) of ``slots`` (R, N), of the prompt or behind it."""
        known = self.positions.gather(
            2, slots.clamp(0, self.positions.shape[2] - 1).expand(len(self.positions), -1, -1)
        )
        behind = (slots - self.prompt.position_offset[:, None]).clamp(0, self.max_position)
        return torch.where(slots < self.prompt.length[:, None], known, behind)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N); by the module, since some families scale inside it."""
        return self.network.get_input_embeddings()(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Raw float32 logits (R, N, V) of normalised last states (R, N, D)."""
        logits = self.head(hidden).float()
        return logits if self._softcap is None else self._softcap * (logits / self._softcap).tanh()

    def select_rows(self, rows: Tensor) -> None:
        self.prompt, self.positions = self.prompt.rows(rows), self.positions[:, rows]

    def _both_ways(self, mask: Tensor) -> Tensor:
        """The mask (R, 1, P, P) in which the real slots of a prompt see all of them."""
        real = torch.arange(mask.shape[-1], device=mask.device) < self.prompt.length[:, None]  # (R, P)
        pairs = (real[:, :, None] & real[:, None, :])[:, None]
        return mask.masked_fill(pairs, 0.0)

    def _run(
        self, embeddings: Tensor, positions: Tensor, mask: Tensor, more: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Normalised last states (R, N, D), and those of the tapped layers (R, N, T * D) if there are any."""
        if not mask.is_floating_point():
            raise TypeError(f"Masks must be additive, 0 or -inf in the model's dtype, got {mask.dtype}.")
        place = positions if len(positions) > 1 else positions[0]
        output = self.trunk(
            inputs_embeds=embeddings, attention_mask=mask, position_ids=place, use_cache=True,
            output_hidden_states=bool(self.taps), **{self._cache_argument: self._cache}, **more,
        )  # fmt: skip
        last: Tensor = output.last_hidden_state
        if not self.taps:
            return last, None
        return last, torch.cat([output.hidden_states[tap] for tap in self.taps], dim=-1)
