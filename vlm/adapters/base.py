"""From the inputs of a vision-language model of transformers to what its language model reads.

Every family works alike: the vision tower and its projector turn each picture into embeddings, which take the places of
the placeholder tokens in the prompt. A prompt is encoded alone, so what a row reads never depends on its neighbours.
The language model is then driven directly; nothing that the whole model keeps between calls is read.

Symbols: P prompt tokens, A axes of its positions, I embeddings of all pictures of a prompt, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.models.hf import bring_in, check_rollback
from mmspec.vlm.decoder import VisionLanguageModel

#: inputs of a processor that are no matter of the vision tower
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
#: what the vision tower reads of videos, and what else a processor says of them
VIDEO_INPUTS = ("pixel_values_videos", "video_grid_thw")
VIDEO_FACTS = ("second_per_grid_ts", "image_sizes_videos", "video_metadata")


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt as the language model reads it.

    Attributes:
        inputs: What it was made from, for a draft model that looks at the pictures itself.
        ids: Prompt tokens (P,), placeholders of pictures included.
        embeddings: What stands in their places (P, D).
        positions: Position of each slot on each axis (A, P).
        offset: Slot minus position of every token behind the prompt.
        visual: Which slots hold a picture (P,).
        deepstack: Features that the first layers add to the slots of pictures, each (I, D).
    """

    inputs: Mapping[str, Tensor]
    ids: Tensor
    embeddings: Tensor
    positions: Tensor
    offset: int
    visual: Tensor
    deepstack: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


class VisionLanguageAdapter:
    """A vision-language model whose positions count the slots from 0: LLaVA, LLaVA-NeXT, LLaVA-OneVision, Idefics3,
    SmolVLM, InternVL, GOT-OCR2.

    Args:
        model: ``...ForConditionalGeneration`` of transformers.

    Raises:
        ValueError: If the cache of its language model cannot be rolled back, as with sliding windows.
    """

    first_position = 0
    """Position of the first slot."""
    bidirectional_prompt = False
    """Whether the slots of a prompt see one another in both directions."""

    def __init__(self, model: PreTrainedModel) -> None:
        check_rollback(model)
        self.network = model
        config = model.config.get_text_config()
        self.max_positions: int = config.max_position_embeddings
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]

    @property
    def image_token(self) -> int:
        """Placeholder of one embedding of a picture."""
        config = self.network.config
        found = getattr(config, "image_token_id", None)
        return int(config.image_token_index if found is None else found)

    @property
    def video_token(self) -> int | None:
        """Placeholder of one embedding of a video; ``None`` where videos are pictures to the model, or nothing."""
        config = self.network.config
        found = getattr(config, "video_token_id", None)
        found = getattr(config, "video_token_index", None) if found is None else found
        return None if found is None else int(found)

    def encode(self, inputs: Mapping[str, Tensor]) -> EncodedPrompt:
        """Encode one prompt.

        Args:
            inputs: What the processor makes of one prompt with its pictures and videos: ``input_ids`` (1, P), for pictures
                ``pixel_values``, for videos ``pixel_values_videos``, and what else the family's vision tower reads.

        Raises:
            ValueError: If pictures or videos and placeholders do not agree.
        """
        ids = self._ids(inputs)
        network = self.network
        bring_in(network)
        device = network.get_input_embeddings().weight.device
        kinds = self.kinds(ids).to(device)
        visual = kinds > 0
        embedded = network.get_input_embeddings()(ids.to(device).masked_fill(visual, 0))
        parts: list[tuple[Tensor, ...]] = []
        for kind, look in ((1, self.look), (2, self.watch)):
            given = self._given(inputs, kind)
            features, deepstack = look(given) if given else (embedded[:0], ())
            self._check_count(int((kinds == kind).sum()), len(features), kind)
            if given:
                embedded = embedded.masked_scatter((kinds == kind)[:, None], features.to(device, embedded.dtype))
            parts.append(deepstack)
        levels = [[part[level] if part else None for part in parts] for level in range(max(map(len, parts)))]
        deepstack = tuple(self._in_order(level, kinds) for level in levels)
        positions, offset = self.positions(ids, inputs)
        return EncodedPrompt(dict(inputs), ids, embedded, positions.to(device), offset, visual, deepstack)

    def kinds(self, ids: Tensor) -> Tensor:
        """1 at the slots of pictures, 2 at those of videos, else 0; all (P,)."""
        kinds = (ids == self.image_token).int()
        return kinds if self.video_token is None else kinds.masked_fill(ids == self.video_token, 2)

    @staticmethod
    def _given(inputs: Mapping[str, Tensor], kind: int) -> dict[str, Tensor]:
        """Those of ``inputs`` that the vision tower reads for pictures (1) or videos (2)."""
        if kind == 2:
            return {name: inputs[name] for name in VIDEO_INPUTS if inputs.get(name) is not None}
        other = (*TEXT_INPUTS, *VIDEO_INPUTS, *VIDEO_FACTS)
        return {name: value for name, value in inputs.items() if name not in other and value is not None}

    @staticmethod
    def _in_order(parts: Sequence[Tensor | None], kinds: Tensor) -> Tensor:
        """Features (I, D) of one level in the order of their slots, from those of pictures and of videos."""
        known = next(part for part in parts if part is not None)
        whole = known.new_zeros(len(kinds), known.shape[-1])
        for kind, part in enumerate(parts, 1):
            if part is not None:
                whole[kinds == kind] = part
        return whole[kinds > 0]

    @staticmethod
    def _ids(inputs: Mapping[str, Tensor]) -> Tensor:
        ids = inputs["input_ids"]
        if ids.dim() != 2 or len(ids) != 1 or not ids.shape[1]:
            raise ValueError(f"`input_ids` must be one prompt (1, P) with at least one token, got {tuple(ids.shape)}.")
        mask = inputs.get("attention_mask")
        if mask is not None and not bool(mask.bool().all()):
            raise ValueError("`attention_mask` hides tokens of the prompt; give the prompt without padding.")
        return ids[0]

    def _check_count(self, places: int, features: int, kind: int) -> None:
        name, token = ("pictures", self.image_token) if kind == 1 else ("videos", self.video_token)
        if places != features:
            raise ValueError(
                f"The prompt has {places} places for {name} (token {token}), but its {name} have {features} embeddings; "
                f"give as many {name} as the prompt names, and the processor of this model."
            )

    def look(self, pictures: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the vision tower: embeddings (I, D) of all pictures in a row, and their deepstack features."""
        return self._seen(self.network.model.get_image_features, pictures)

    def watch(self, videos: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the vision tower on videos: embeddings (I, D) of all of them in a row, and their deepstack features.

        Raises:
            ValueError: If the model has no way to read videos.
        """
        find = getattr(self.network.model, "get_video_features", None)
        if find is None:
            raise ValueError(f"{type(self.network).__name__} reads no videos; give their frames as pictures.")
        return self._seen(find, videos)

    def _seen(self, find: Any, given: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        seen = find(**{name: self.place(value) for name, value in given.items()}, return_dict=True)
        levels = getattr(seen, "deepstack_features", None) or ()
        return _joined(seen.pooler_output), tuple(_joined(level) for level in levels)

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """Positions (A, P) of the prompt ``ids`` (P,), and slot minus position of what follows it."""
        return torch.arange(len(ids))[None] + self.first_position, -self.first_position

    def place(self, value: Tensor) -> Tensor:
        """``value`` where the weights are, in their precision."""
        weight = next(self.network.parameters())
        return value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)

    def decoder(self, network: Any, prompts: Sequence[EncodedPrompt], device: torch.device) -> VisionLanguageModel:
        """A decoding session of ``network`` over ``prompts``; a draft model of the same family looks for itself."""
        if network is not self.network:
            other = type(self)(network)
            prompts = [other.encode(prompt.inputs) for prompt in prompts]
        return VisionLanguageModel(network, prompts, device, self.bidirectional_prompt)


def _joined(parts: Tensor | Sequence[Tensor]) -> Tensor:
    """Embeddings (I, D) of all pictures, from one tensor (n, k, D) or a list of (k_i, D)."""
    if isinstance(parts, Tensor):
        return parts.reshape(-1, parts.shape[-1])
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
