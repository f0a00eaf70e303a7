"""The talker of :mod:`mmspec.speech.talker` behind the target of residual codes.

Symbols: B rows, b rows of a call, L text tokens, G codes a step, D talker width, E predictor width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.runner.cache import SpecCache
from mmspec.speech.frame_model import MOST_BRANCHES
from mmspec.speech.talker import Reading, SpeechTalker


class TalkerInner:
    """Keys and values of the code predictor for the frame, or stack of frames, of one row."""

    def __init__(self, talker: SpeechTalker) -> None:
        self.talker = talker
        self.cache = SpecCache(1, 2 * talker.codes_per_step + MOST_BRANCHES, talker.device)
        self.length = 0

    def extend(self, inputs: Tensor) -> Tensor:
        count = inputs.shape[1]
        self.cache.lengths.fill_(self.length)
        self.cache.plan(count, self.length + count)
        positions = torch.arange(self.length, self.length + count, device=inputs.device)[None]
        mask = None
        if count > 1 and self.length:
            allowed = torch.ones(count, self.length + count, dtype=torch.bool, device=inputs.device)
            mask = allowed.tril(self.length)
        return self.talker.code_predictor(inputs, positions, mask, self.cache)

    def branch(self, inputs: Tensor, depth: Tensor, ancestors: Tensor) -> Tensor:
        count = inputs.shape[1]
        self.cache.lengths.fill_(self.length)
        self.cache.plan(count, self.length + count)
        mask = torch.nn.functional.pad(ancestors, (self.length, 0), value=True)
        return self.talker.code_predictor(inputs, (depth + self.length)[None], mask, self.cache)

    def keep(self, length: int) -> None:
        self.length = length

    def keep_path(self, path: Tensor, length: int) -> None:
        self.cache.commit(torch.zeros_like(self.cache.lengths), path[None])  # the lengths are this class's
        self.length = length


class TalkerModel:
    """A :class:`mmspec.speech.frame_model.FrameModel` over :class:`SpeechTalker`; a stack of frames is one frame to it.

    Args:
        talker: The network.
        readings: The text of each row, as ``talker.read`` makes it ready.
        max_steps: Steps of the talker that a row may have.
    """

    def __init__(self, talker: SpeechTalker, readings: Sequence[Reading], max_steps: int) -> None:
        self.network = talker
        self.num_codebooks: int = talker.codes_per_step
        self.vocab_size: int = talker.config.first_vocab_size
        self.device = talker.device
        self._prompts = [reading.prompt for reading in readings]
        self._lengths = [len(prompt) for prompt in self._prompts]
        self._beside = torch.stack([reading.beside(max_steps + 1) for reading in readings])  # (B, steps, D)
        self._spoken = torch.zeros(len(readings), dtype=torch.long, device=self.device)
        self.cache = SpecCache(len(readings), max(self._lengths) + max_steps + 1, self.device)

    def allowed(self) -> Tensor:
        config = self.network.config
        tokens = torch.arange(self.vocab_size, device=self.device)
        codes = tokens < config.num_codes
        return torch.stack([codes | (tokens == config.end_code), codes])

    def prefill(self) -> tuple[Tensor, Tensor]:
        longest = max(self._lengths)
        inputs = torch.nn.utils.rnn.pad_sequence(self._prompts, batch_first=True)
        lengths = torch.tensor(self._lengths, device=self.device)
        self.cache.plan(longest, longest)
        # right padding lies behind every real place, which causality hides
        mask = torch.ones(longest, longest, dtype=torch.bool, device=self.device).tril()
        hidden = self.network(inputs, torch.arange(longest, device=self.device)[None], mask, self.cache)
        self.cache.lengths = lengths
        last = hidden[torch.arange(len(hidden), device=self.device), lengths - 1]
        return self.network.codec_head(last).float(), last

    def advance(self, rows: Tensor | None, codes: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self.cache.lengths if rows is None else self.cache.lengths[rows]
        called = range(len(self._lengths)) if rows is None else rows.tolist()
        for row in called:
            self._lengths[row] += 1
        longest = max(self._lengths[row] for row in called)
        self.cache.plan(1, longest, only=rows)
        spoken = self._spoken if rows is None else self._spoken[rows]
        beside = self._beside[torch.arange(len(spoken), device=self.device) if rows is None else rows, spoken]
        inputs = self.network.frames(codes[:, None]) + beside[:, None]
        mask = None
        if len(codes) > 1:
            mask = (torch.arange(longest, device=self.device) <= lengths[:, None])[:, None, None]
        hidden = self.network(inputs, lengths[:, None], mask, self.cache)[:, 0]
        if rows is None:
            self.cache.lengths, self._spoken = self.cache.lengths + 1, self._spoken + 1
        else:
            once = torch.ones_like(rows)
            self.cache.lengths = self.cache.lengths.index_add(0, rows, once)
            self._spoken = self._spoken.index_add(0, rows, once)
        return self.network.codec_head(hidden).float(), hidden

    def inner_inputs(self, states: Tensor | None, codes: Tensor, first: int) -> Tensor:
        # a draft token that is no code is never accepted; it only needs some embedding
        embedded = self.network.embed_codes(codes.clamp_max(self.network.config.num_codes - 1), first)
        return embedded if states is None else torch.cat([states[:, None], embedded], dim=1)

    def level_inputs(self, states: Tensor | None, codes: Tensor, first: int, sizes: Sequence[int]) -> Tensor:
        network = self.network
        codes = codes.clamp_max(network.config.num_codes - 1)
        books = (network.codec_embedding, *network.code_predictor.codec_embedding)
        parts = [books[first + level](part) for level, part in enumerate(codes.split(list(sizes), dim=1))]
        return torch.cat(parts if states is None else [states[:, None], *parts], dim=1)

    def level_logits(self, hidden: Tensor, first: int, sizes: Sequence[int]) -> Tensor:
        heads = self.network.code_predictor.lm_head
        parts = [
            torch.nn.functional.linear(part, heads[first - 1 + level])
            for level, part in enumerate(hidden.split(list(sizes), dim=1))
        ]
        logits = torch.cat(parts, dim=1).float()
        return torch.nn.functional.pad(logits, (0, self.vocab_size - logits.shape[-1]), value=-torch.inf)

    def inner(self, states: Tensor, codes: Tensor) -> Tensor:
        inputs = self.inner_inputs(states, codes, 0)
        return self.network.code_predictor(inputs, torch.arange(inputs.shape[1], device=self.device)[None])

    def head(self, hidden: Tensor, books: Tensor) -> Tensor:
        logits = self.network.code_predictor.logits(hidden, books)
        return torch.nn.functional.pad(logits, (0, self.vocab_size - logits.shape[-1]), value=-torch.inf)

    def start_state(self, states: Tensor) -> Tensor:
        return self.network.code_predictor.start(states)

    def code_table(self) -> Tensor:
        predictor, codes = self.network.code_predictor, self.network.config.num_codes
        every = torch.arange(codes, device=self.device)
        tables = [self.network.codec_embedding(every), *(book(every) for book in predictor.codec_embedding)]
        return predictor.small_to_mtp_projection(torch.stack(tables))

    def open_inner(self) -> TalkerInner:
        return TalkerInner(self.network)

    def select_rows(self, rows: Tensor) -> None:
        self.cache.select_rows(rows)
        self._beside, self._spoken = self._beside[rows], self._spoken[rows]
        self._lengths = [self._lengths[row] for row in rows.tolist()]
