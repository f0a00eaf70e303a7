"""The depth decoder of Moshi behind the target of residual codes.

Défossez et al., 2024, "Moshi: a speech-text foundation model for real-time dialogue"; transformers' ``MoshiDepthDecoder``. All audio codes
are drawn here; what the main decoder draws is a text token, which stands for code 0 of a frame. Frames are given from outside, as states of
the main decoder with their text tokens, since its streams and delays are the dialogue loop's own.

Traps of the class: there is no position for the state, which is added at every position through weights of that
position; without a 2-D attention mask a block behind a cache is masked wrongly; ids are read for their number even if
embeddings are given.

Symbols: B rows, b rows of a call, T frames of a row, G codes a frame, the text token included, V tokens, D and E widths.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.moshi.modeling_moshi import MoshiDepthDecoder

from mmspec.speech.frame_model import InnerSession
from mmspec.speech.transformers_frames import cache_argument


class MoshiInner:
    """The depth decoder's memory of the frame of one row; its positions begin at the text token."""

    def __init__(self, frames: MoshiFrames, state: Tensor) -> None:
        self.frames, self.state = frames, state
        self.cache = DynamicCache()

    def extend(self, inputs: Tensor) -> Tensor:
        return self.frames.run_inner(inputs, self.state, self.cache)

    def keep(self, length: int) -> None:
        surplus = self.cache.get_seq_length() - max(0, length - 1)
        if surplus > 0:
            self.cache.crop(-surplus)


class MoshiFrames:
    """A :class:`mmspec.speech.frame_model.FrameModel` over the depth decoder of Moshi.

    Args:
        network: The depth decoder.
        states: States of the main decoder (B, T, D).
        text: Text tokens (B, T) of these frames.
    """

    def __init__(self, network: MoshiDepthDecoder, states: Tensor, text: Tensor) -> None:
        self.network = network
        self.device: torch.device = network.device
        self.num_codebooks: int = network.config.num_codebooks + 1
        self.codes: int = network.config.audio_vocab_size
        self.vocab_size: int = max(network.config.vocab_size + 1, self.codes)
        self._all, self._text = states, text
        self._step = torch.zeros(len(states), dtype=torch.long, device=self.device)
        self._argument = cache_argument(network)

    def allowed(self) -> Tensor:
        tokens = torch.arange(self.vocab_size, device=self.device)
        return torch.stack([tokens <= self.network.config.vocab_size, tokens < self.codes])

    def prefill(self) -> tuple[Tensor, Tensor]:
        return self._given(torch.arange(len(self._all), device=self.device))

    def advance(self, rows: Tensor | None, codes: Tensor) -> tuple[Tensor, Tensor]:
        called = torch.arange(len(self._all), device=self.device) if rows is None else rows
        self._step[called] = (self._step[called] + 1).clamp_max(self._all.shape[1] - 1)
        return self._given(called)

    def _given(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (b, V) that leave the given text token alone, and the state (b, D)."""
        token = self._text[rows, self._step[rows]]
        logits = torch.full((len(rows), self.vocab_size), -torch.inf, device=self.device)
        self._states = self._all[rows, self._step[rows]]
        return logits.scatter(1, token[:, None], 0.0), self._states

    def inner_inputs(self, states: Tensor | None, codes: Tensor, first: int) -> Tensor:
        parts = []
        for place in range(codes.shape[1]):
            book = first + place
            table = self.network.text_embed_tokens if book == 0 else self.network.embed_tokens[book - 1]
            # a draft token that is no code is never accepted; it only needs some embedding
            parts.append(table(codes[:, place].clamp_max(table.num_embeddings - 1)))
        return torch.stack(parts, dim=1)

    def inner(self, states: Tensor, codes: Tensor) -> Tensor:
        hidden = self.run_inner(self.inner_inputs(states, codes, 0), states, None)
        return torch.nn.functional.pad(hidden, (0, 0, 1, 0))  # the position of the state, which this model lacks

    def run_inner(self, inputs: Tensor, states: Tensor, cache: DynamicCache | None) -> Tensor:
        """Outputs of the last layer (b, n, E) for ``inputs`` (b, n, E) behind what ``cache`` holds."""
        rows, count = inputs.shape[:2]
        past = 0 if cache is None else cache.get_seq_length()
        output = self.network(
            input_ids=torch.zeros(rows, count, dtype=torch.long, device=self.device),
            inputs_embeds=inputs.clone(),  # the class adds to what it is given
            last_hidden_state=states[:, None].expand(-1, count, -1),
            attention_mask=torch.ones(rows, past + count, dtype=torch.long, device=self.device),
            use_cache=cache is not None, output_hidden_states=True, **{self._argument: cache},
        )  # fmt: skip
        return output.hidden_states[-1]

    def head(self, hidden: Tensor, books: Tensor) -> Tensor:
        heads = self.network.lm_heads.weight[(books - 1).clamp(0, self.num_codebooks - 2)]
        pattern = "bne,nve->bnv" if books.ndim == 1 else "bne,bnve->bnv"
        logits = torch.einsum(pattern, hidden, heads).float()
        return torch.nn.functional.pad(logits, (0, self.vocab_size - self.codes), value=-torch.inf)

    def start_state(self, states: Tensor) -> Tensor:
        projected = self.network.input_projections(
            states[:, None], torch.zeros(1, dtype=torch.long, device=self.device)
        )[:, 0]
        return torch.nn.functional.rms_norm(projected, projected.shape[-1:])

    def code_table(self) -> Tensor:
        rows = max(table.num_embeddings for table in (self.network.text_embed_tokens, *self.network.embed_tokens))
        tables = [self.network.text_embed_tokens, *self.network.embed_tokens]
        return torch.stack(
            [torch.nn.functional.pad(t.weight, (0, 0, 0, rows - t.num_embeddings)) for t in tables]
        )  # fmt: skip

    def open_inner(self) -> InnerSession:
        return MoshiInner(self, self._states)

    def select_rows(self, rows: Tensor) -> None:
        self._all, self._text, self._step = self._all[rows], self._text[rows], self._step[rows]
