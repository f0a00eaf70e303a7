"""Janus and Janus-Pro behind the runner: the language model's trunk between an embedding and a head of the codes' own.

Wu et al., 2024, "Janus: Decoupling Visual Encoding for Unified Multimodal Understanding and Generation"; Chen et al.,
2025, "Janus-Pro". Codes are no tokens of the language model: they enter through the generation embeddings and their
aligner, and the generation head takes the place of the language model's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import JanusForConditionalGeneration

from mmspec.image.prompts import TokenPrompts
from mmspec.models.hf import TrunkModel


class JanusImageModel(TrunkModel):
    """A :class:`mmspec.runner.runner.DecoderModel` over Janus's image codes.

    Args:
        network: The whole model.
        prompts: Prompts in the language model's ids.
        guided: Whether to add the unconditional branch, B more rows.
        device: Where to run.
        forward: What to call for decoding steps.
    """

    def __init__(
        self,
        network: JanusForConditionalGeneration,
        prompts: TokenPrompts,
        guided: bool,
        device: torch.device,
        forward: Any = None,
    ) -> None:
        super().__init__(network, network.model.language_model, *prompts.padded(guided, device), device, forward)
        self.vocab_size: int = network.config.vq_config.num_embeddings

    def embed_prompt(self, input_ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(input_ids)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.prepare_embeddings_for_image_generation(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.model.generation_head(hidden)
