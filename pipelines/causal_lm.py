"""Any decoder-only language model of transformers behind the same core: the proof that the core knows no modality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.utils import BaseOutput
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import Stopping
from mmspec.drafters.base import Drafter, check_positive
from mmspec.models.hf import CausalLMModel, cache_bytes_per_slot, check_rollback
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.seeds import row_seeds

OUTPUT_TYPES = ("text", "tokens")


@dataclass
class TextOutput(BaseOutput):
    """Generated text.

    Attributes:
        texts: One string per prompt, or ``None`` without a tokenizer or with ``output_type="tokens"``.
        tokens: New token ids of each row, the stop token included.
        stats: Forwards, seconds, guarantee and seeds of the call.
    """

    texts: list[str] | None
    tokens: list[list[int]]
    stats: DecodeStats


class CausalLMPipeline(SpecPipeline):
    """Text generation with any ``AutoModelForCausalLM`` whose layers all attend to the whole past.

    Args:
        model: The language model.
        tokenizer: Its tokenizer; ``None`` for calls with ``input_ids`` only.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.

    Raises:
        ValueError: If the model's cache cannot be rolled back (sliding windows, recurrent layers).
    """

    model_cpu_offload_seq = "model"
    _optional_components = ["tokenizer", "drafter", "acceptance"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        super().__init__()
        check_rollback(model)
        self.register_modules(model=model, tokenizer=tokenizer, drafter=drafter, acceptance=acceptance)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[Sequence[int]] | None = None,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop_tokens: Sequence[int] | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        output_type: str = "text",
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> TextOutput:
        """Continue prompts.

        Args:
            prompt: One text or several. Give either this or ``input_ids``.
            input_ids: Token ids of each prompt, of any lengths of at least 1.
            max_new_tokens: Exact budget of each row.
            temperature, top_k, top_p: See :class:`SamplingParams`.
            stop_tokens: Tokens that end a row; by default those of the model's generation config, if it has any.
            generator, seed: Source of the row seeds.
            speculate: ``False`` decodes plainly.
            output_type: ``text`` or ``tokens``.
            callback_on_step_end, callback_on_step_end_tensor_inputs: As for the image pipelines.

        Raises:
            TypeError, ValueError: For bad arguments, before the first forward.
        """
        self.check_callback(callback_on_step_end_tensor_inputs)
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}.")
        if output_type == "text" and self.tokenizer is None:
            raise ValueError("`output_type` 'text' needs a tokenizer; this pipeline has none, use 'tokens'.")
        check_positive("max_new_tokens", max_new_tokens)
        sampling = SamplingParams(temperature, top_k, top_p)
        sampling.check_vocabulary(self.model.config.get_text_config().vocab_size)
        rows = self._prompts(prompt, input_ids, max_new_tokens)
        request = self._request(
            rows, row_seeds(len(rows), generator, seed), sampling, max_new_tokens, stop_tokens, speculate
        )
        for current, latest in self.run_decoders([request], callback_on_step_end, callback_on_step_end_tensor_inputs):
            decoder, progress = current, latest
        tokens = [row[:length] for row, length in zip(progress.tokens.tolist(), progress.lengths, strict=True)]
        texts = None
        if output_type == "text":
            assert self.tokenizer is not None
            texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        self.maybe_free_model_hooks()
        return TextOutput(texts, tokens, decoder.stats)

    def _prompts(
        self, prompt: str | Sequence[str] | None, input_ids: Sequence[Sequence[int]] | None, max_new_tokens: int
    ) -> list[list[int]]:
        """Token ids of every prompt, checked."""
        if (prompt is None) == (input_ids is None):
            raise ValueError("Give exactly one of `prompt` and `input_ids`.")
        if prompt is not None:
            if self.tokenizer is None:
                raise ValueError("`prompt` needs a tokenizer; this pipeline has none, give `input_ids`.")
            texts = [prompt] if isinstance(prompt, str) else list(prompt)
            if any(not isinstance(text, str) for text in texts):
                raise TypeError(f"`prompt` must be a string or a list of strings, got {prompt!r}.")
            rows = [list(ids) for ids in self.tokenizer(texts)["input_ids"]] if texts else []
        else:
            assert input_ids is not None
            rows = [[int(token) for token in ids] for ids in input_ids]
        if not rows or min(len(row) for row in rows) == 0:
            raise ValueError("Every prompt needs at least one token, and there must be at least one prompt.")
        config = self.model.config.get_text_config()
        if not all(0 <= token < config.vocab_size for row in rows for token in row):
            raise ValueError(f"`input_ids` must lie in [0, {config.vocab_size}).")
        longest, limit = max(len(row) for row in rows), config.max_position_embeddings
        if longest + max_new_tokens > limit:
            raise ValueError(
                f"The longest prompt has {longest} tokens and `max_new_tokens` is {max_new_tokens}, but the model has "
                f"{limit} positions; shorten one of them."
            )
        return rows

    def _request(
        self,
        rows: list[list[int]],
        seeds: list[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_tokens: Sequence[int] | None,
        speculate: bool,
    ) -> DecodeRequest:
        device = self._execution_device
        lengths = torch.tensor([len(row) for row in rows], device=device)
        width = max(len(row) for row in rows)
        padded = torch.tensor([row + [-1] * (width - len(row)) for row in rows], device=device)
        drafter, rule = self.choose_method(speculate, sampling)
        return DecodeRequest(
            model=lambda network, device: CausalLMModel(network, padded.clamp_min(0).to(device), lengths.to(device)),
            network=self.model,
            seeds=seeds,
            sampling=sampling,
            stopping=Stopping(max_new_tokens, tuple(self._stop_tokens() if stop_tokens is None else stop_tokens)),
            guidance=Guidance(),
            drafter=drafter,
            rule=rule,
            prompt_ids=padded,
            cache_bytes_per_slot=cache_bytes_per_slot(self.model.config.get_text_config(), self.model.dtype),
        )

    def _stop_tokens(self) -> list[int]:
        stop: Any = getattr(self.model.generation_config, "eos_token_id", None)
        if stop is None:
            return []
        return [int(token) for token in (stop if isinstance(stop, (list, tuple, Tensor)) else [stop])]
