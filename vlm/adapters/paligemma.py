"""PaliGemma (Beyer et al., 2024): positions begin at 1, and picture and prompt see one another in both directions."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mmspec.vlm.adapters.base import EncodedPrompt, VisionLanguageAdapter


class PaliGemmaAdapter(VisionLanguageAdapter):
    """PaliGemma over Gemma; over Gemma 2, which has sliding windows, it is refused."""

    first_position = 1
    bidirectional_prompt = True

    def encode(self, inputs: Mapping[str, Tensor]) -> EncodedPrompt:
        kinds = inputs.get("token_type_ids")
        if kinds is not None and bool(kinds.any()):
            raise ValueError("`token_type_ids` marks a part of the prompt as output to train on; leave `suffix` out.")
        return super().encode(inputs)
