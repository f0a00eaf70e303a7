"""Models whose image codes are tokens of the language model itself: Emu3, Chameleon, Anole, Lumina-mGPT.

The loop sees codes and the few structural tokens of a picture only, not the hundred thousand words beside them: a
picture's grammar forbids those everywhere, so the law is the same and each row of logits is a fraction of the size.
A structural token stands at forced slots alone, where its logit does not matter.

Symbols: R model rows, N nodes, K codes, V tokens of the loop, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.image.prompts import TokenPrompts
from mmspec.models.hf import PartialHead, TrunkModel


class JointVocabularyModel(TrunkModel):
    """A :class:`mmspec.runner.runner.DecoderModel` over codes and structural tokens of a joint vocabulary.

    Args:
        network: The whole model.
        trunk: Its decoder layers.
        prompts: Prompts in the model's own ids.
        token_ids: Own id of every token of the loop (V,), codes first.
        num_codes: Number of codes K.
        guided: Whether to add the unconditional branch, B more rows.
        device: Where to run.
        forward: What to call for decoding steps.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        trunk: nn.Module,
        prompts: TokenPrompts,
        token_ids: Tensor,
        num_codes: int,
        guided: bool,
        device: torch.device,
        forward: Any = None,
    ) -> None:
        super().__init__(network, trunk, *prompts.padded(guided, device), device, forward)
        self.vocab_size = len(token_ids)
        self.token_ids = token_ids.to(device)
        self.head = PartialHead(network.get_output_embeddings(), token_ids[:num_codes])
        self._num_structural = len(token_ids) - num_codes

    def embed_prompt(self, input_ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(input_ids)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embed_prompt(self.token_ids[tokens])

    def logits(self, hidden: Tensor) -> Tensor:
        return nn.functional.pad(self.head(hidden), (0, self._num_structural))
