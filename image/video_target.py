"""The Cosmos decoder behind the runner: a prompt of context frames, then the codes of the frames to come.

Symbols: B samples, R = G * B model rows, P prompt slots, C context slots, H and W rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.target import TargetOutput
from mmspec.image.video_ar import VideoARTransformer
from mmspec.image.video_layers import KeysValues
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt


@dataclass(frozen=True)
class VideoCondition:
    """What B clips continue.

    Attributes:
        codes: Codes of the context frames (B, c * H * W).
        text: Text features (B, C, width), zero behind the prompt, for models with cross-attention.
    """

    codes: Tensor
    text: Tensor | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def repeat(self, count: int) -> VideoCondition:
        """Every sample ``count`` times in a row."""
        text = None if self.text is None else self.text.repeat_interleave(count, 0)
        return VideoCondition(self.codes.repeat_interleave(count, 0), text)

    def rows(self, start: int, stop: int) -> VideoCondition:
        """The samples ``start`` to ``stop``."""
        return VideoCondition(self.codes[start:stop], None if self.text is None else self.text[start:stop])


class VideoModel:
    """A :class:`mmspec.runner.runner.DecoderModel` over :class:`VideoARTransformer`.

    Args:
        transformer: The decoder.
        condition: What B clips continue.
        guided: Whether to add the unconditional branch, B more rows with a context of zeros.
        device: Where to run; an offloaded transformer is elsewhere until its forward is called.
        forward: What to call for decoding steps, e.g. the compiled ``transformer``; the prefill runs uncompiled.
    """

    def __init__(
        self,
        transformer: VideoARTransformer,
        condition: VideoCondition,
        guided: bool,
        device: torch.device | None = None,
        forward: Any = None,
    ) -> None:
        self.transformer = transformer
        self.forward = transformer if forward is None else forward
        self.vocab_size: int = transformer.config.vocab_size
        self.device, self.dtype = device or transformer.device, transformer.dtype
        self.max_position: int = transformer.num_positions - 1
        codes = condition.codes.to(self.device)
        if (begin := transformer.config.begin_token) is not None:
            codes = torch.cat([codes.new_full((len(codes), 1), begin), codes], dim=1)
        text = None if condition.text is None else condition.text.to(self.device, self.dtype)
        if guided:
            assert text is not None  # the pipeline checks that there is something to guide by
            codes, text = codes.repeat(2, 1), torch.cat([text, torch.zeros_like(text)])
        self.codes = codes
        self.context: Tensor | Sequence[KeysValues] | None = text
        zeros = torch.zeros(len(codes), dtype=torch.long, device=self.device)
        width = codes.shape[1]
        self.prompt = Prompt(width, start=zeros, length=zeros + width, position_offset=zeros)

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        output = self.transformer(
            self.codes,
            position_ids=position_ids,
            context=self.context,
            attention_mask=mask,
            cache=cache,
            num_logits=1,
        )
        self.context = output.context  # read once; every later forward uses the keys and values
        return TargetOutput(output.logits, output.hidden)

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        output = self.forward(
            tokens, position_ids=position_ids, context=self.context, attention_mask=mask, cache=cache
        )
        return TargetOutput(output.logits, output.hidden)

    def select_rows(self, rows: Tensor) -> None:
        self.prompt = self.prompt.rows(rows)
        self.codes = self.codes[rows]
        if isinstance(self.context, Tensor):
            self.context = self.context[rows]
        elif self.context is not None:
            self.context = [(key[rows], value[rows]) for key, value in self.context]
