"""The talker of Qwen3-Omni behind the target of residual codes.

Xu et al., 2025, "Qwen3-Omni Technical Report"; transformers' ``Qwen3OmniMoeTalkerForConditionalGeneration``. The talker's input
of a frame is the sum of its codes' embeddings and of the next text embedding, or of the padding one when the text is over.

Traps of the class: ``code_predictor.forward`` applies one head to all positions of a block, so its ``model`` is called and heads are applied
here; embeddings of code 0 are the talker's own; all three rotary positions of speech are equal.

Symbols: B rows, b rows of a call, G codes a frame, V tokens of code 0, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.speech.transformers_frames import TransformersFrames, cache_argument

SUPPRESSED = 1024
"""Special ids at the end of the talker's vocabulary that are never spoken, but for the end."""


class Qwen3OmniFrames(TransformersFrames):
    """A :class:`mmspec.speech.frame_model.FrameModel` over the talker of Qwen3-Omni.

    Args:
        network: The talker.
        prompts: Embedded prompt of each row (L_b, D).
        trailing: Text embeddings of each row (k_b, D) that accompany its frames.
        pad: The embedding (D,) after them.
        max_frames: Frames that a row may have.
        suppressed: How many ids at the end of the vocabulary are not codes.
    """

    def __init__(
        self,
        network: Any,
        prompts: Sequence[Tensor],
        trailing: Sequence[Tensor],
        pad: Tensor,
        max_frames: int,
        suppressed: int = SUPPRESSED,
    ) -> None:
        text = network.config.text_config
        super().__init__(network, network.model, text.num_hidden_layers, prompts, max_frames)
        self.num_codebooks = network.config.num_code_groups
        self.vocab_size, self.end = text.vocab_size, network.config.codec_eos_token_id
        self.codes = network.config.code_predictor_config.vocab_size
        self.suppressed = suppressed
        self.trailing, self.pad = list(trailing), pad
        self._spoken = [0] * len(prompts)
        self.predictor = network.code_predictor
        self._inner_argument = cache_argument(self.predictor.model)

    def allowed(self) -> Tensor:
        tokens = torch.arange(self.vocab_size, device=self.device)
        first = (tokens < self.vocab_size - self.suppressed) | (tokens == self.end)
        return torch.stack([first, tokens < self.codes])

    def first_logits(self, hidden: Tensor) -> Tensor:
        return self.network.codec_head(hidden)

    def embed_frames(self, codes: Tensor, rows: Sequence[int]) -> Tensor:
        summed = self.network.get_input_embeddings()(codes[:, 0])
        for book, embedding in enumerate(self.predictor.model.codec_embedding, start=1):
            summed = summed + embedding(codes[:, book])
        text = []
        for row in rows:
            step = self._spoken[row]
            text.append(self.trailing[row][step] if step < len(self.trailing[row]) else self.pad)
            self._spoken[row] += 1
        return summed + torch.stack(text)

    def positions(self, places: Tensor) -> Tensor:
        return places.expand(3, -1, -1)

    def inner_inputs(self, states: Tensor | None, codes: Tensor, first: int) -> Tensor:
        parts = [] if states is None else [states]
        for place in range(codes.shape[1]):
            book = first + place
            if book == 0:
                parts.append(self.network.get_input_embeddings()(codes[:, place]))
            else:
                # a draft token that is no code is never accepted; it only needs some embedding
                parts.append(self.predictor.model.codec_embedding[book - 1](codes[:, place].clamp_max(self.codes - 1)))
        return torch.stack(parts, dim=1)

    def run_inner(self, inputs: Tensor, states: Tensor, cache: DynamicCache | None) -> Tensor:
        output = self.predictor.model(
            inputs_embeds=inputs, use_cache=cache is not None, **{self._inner_argument: cache}
        )  # fmt: skip
        return output.last_hidden_state

    def head_weights(self) -> Tensor:
        return torch.stack([head.weight for head in self.predictor.lm_head])

    def start_state(self, states: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(states, states.shape[-1:])

    def code_table(self) -> Tensor:
        first = self.network.get_input_embeddings().weight[: self.codes]
        return torch.stack([first, *(book.weight for book in self.predictor.model.codec_embedding)])

    def select_rows(self, rows: Tensor) -> None:
        super().select_rows(rows)
        kept = rows.tolist()
        self.trailing = [self.trailing[row] for row in kept]
        self._spoken = [self._spoken[row] for row in kept]
