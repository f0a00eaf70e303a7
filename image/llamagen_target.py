"""LlamaGen behind the runner: prefix of caption or class slots, then image codes on a grid.

Captions are left-padded to T slots, as in training. The unconditional branch sees the null caption under the same
padding as its conditional twin, or the null class. Symbols: B samples, R model rows, T condition slots, V codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.target import TargetOutput
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt


@dataclass(frozen=True)
class Condition:
    """What B samples are conditioned on: captions or classes.

    Attributes:
        caption_embeds: Text features (B, T, C), left-padded, pad rows zero.
        caption_mask: Real caption slots (B, T).
        class_labels: Class numbers (B,).
        negative_embeds: Text features (B, T, C) of negative prompts, under ``negative_mask``; ``None`` means null.
        negative_mask: Real slots of the negative prompts (B, T).
    """

    caption_embeds: Tensor | None = None
    caption_mask: Tensor | None = None
    class_labels: Tensor | None = None
    negative_embeds: Tensor | None = None
    negative_mask: Tensor | None = None

    def __len__(self) -> int:
        rows = self.caption_embeds if self.caption_embeds is not None else self.class_labels
        assert rows is not None
        return len(rows)

    def repeat(self, count: int) -> Condition:
        """Every sample ``count`` times in a row; features and masks alike."""
        return Condition(**{k: None if v is None else v.repeat_interleave(count, 0) for k, v in vars(self).items()})

    def rows(self, start: int, stop: int) -> Condition:
        """The samples ``start`` to ``stop``."""
        return Condition(**{k: None if v is None else v[start:stop] for k, v in vars(self).items()})


class LlamaGenModel:
    """A :class:`mmspec.runner.features.FeatureModel` over :class:`LlamaGenTransformer`.

    Args:
        transformer: The decoder.
        condition: Conditions of B samples.
        guided: Whether to add the unconditional branch, B more rows.
        device: Where to run; an offloaded transformer is elsewhere until its forward is called.
        forward: What to call for decoding steps, e.g. the compiled ``transformer``; the prefill runs uncompiled.
    """

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        condition: Condition,
        guided: bool,
        device: torch.device | None = None,
        forward: Any = None,
    ) -> None:
        config = transformer.config
        self.transformer = transformer
        self.forward = transformer if forward is None else forward
        self.vocab_size: int = config.vocab_size
        self.device, self.dtype = device or transformer.device, transformer.dtype
        self.slots: int = config.condition_length
        self.max_position: int = self.slots + config.grid_height * config.grid_width - 1
        self.embeds, self.labels, start = self._branches(condition, guided)
        self.prompt = Prompt(
            self.slots,
            start=start,
            length=torch.full_like(start, self.slots),
            position_offset=torch.zeros_like(start),
            first=0 if self.labels is None else self.slots - 1,  # a class fills the last slot alone
        )

    def _branches(self, condition: Condition, guided: bool) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Caption features (R, T, C) or class labels (R,), and the first real slot of each row (R,)."""
        if condition.class_labels is not None:
            labels = condition.class_labels.to(self.device)
            if guided:
                labels = torch.cat([labels, torch.full_like(labels, self.transformer.config.num_classes)])
            return None, labels, torch.full_like(labels, self.slots - 1)
        assert condition.caption_embeds is not None
        assert condition.caption_mask is not None
        embeds = condition.caption_embeds.to(self.device, self.dtype)
        start = self.slots - condition.caption_mask.to(self.device).sum(-1)
        if guided and condition.negative_embeds is not None:
            assert condition.negative_mask is not None
            embeds = torch.cat([embeds, condition.negative_embeds.to(embeds)])
            start = torch.cat([start, self.slots - condition.negative_mask.to(self.device).sum(-1)])
        elif guided:
            embeds = torch.cat([embeds, self.transformer.null_caption.to(embeds).expand_as(embeds)])
            start = start.repeat(2)
        return embeds, None, start

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        output = self.transformer(
            caption_embeds=self.embeds,
            class_labels=self.labels,
            position_ids=position_ids,
            attention_mask=mask,
            cache=cache,
            num_logits=1,
        )
        return TargetOutput(output.logits, output.hidden)

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        output = self.forward(tokens, position_ids=position_ids, attention_mask=mask, cache=cache)
        return TargetOutput(output.logits, output.hidden)

    def select_rows(self, rows: Tensor) -> None:
        self.prompt = self.prompt.rows(rows)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.transformer.token_embedding(tokens)

    def rotary_at(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.transformer.rotary_at(position_ids)

    def predict(self, hidden: Tensor) -> Tensor:
        return self.transformer.head(hidden.to(self.dtype)).float()

    def prompt_tokens(self) -> Tensor:
        # condition slots hold no codes; published drafters read code 0 there (LANTERN), and so do ours
        shape = len(self.prompt.start), self.slots - self.prompt.first
        return torch.zeros(shape, dtype=torch.long, device=self.device)
