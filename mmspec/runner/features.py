"""The second runner: a feature network decoding beside its target, on the target's embedding, positions and head.

A feature network reads pairs (state of a token, the token after it) and predicts the state of the second one (Li et
al., 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"). The pair that ends in the token at
sequence slot s + 1 lies in cache slot s and has the position of slot s + 1. Both guidance branches have pairs of their
own; they share the tokens.

Symbols: B samples, G branches, R = G * B model rows, Q queued pairs, W drafted nodes of a level, M drafted nodes so
far, S visible slots, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.timing import NetworkClock
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import DecoderModel, Runner


class FeatureModel(DecoderModel, Protocol):
    """A decoder model that lends its parts to a feature network."""

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N)."""
        ...

    def rotary_at(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """What attention rotates by at ``position_ids`` (R, N): cosines and signed sines, each (R, N, 1, P)."""
        ...

    def predict(self, hidden: Tensor) -> Tensor:
        """Raw float32 logits (R, N, V) of last hidden states (R, N, D)."""
        ...

    def prompt_tokens(self) -> Tensor:
        """The token (R, P) that stands in each slot that the prefill runs."""
        ...


class ShorterPairs(Protocol):
    """Pairs of which some stand for several: states and embeddings ``parts``, each (R, N, D), the ``places`` (R, N) of the pairs
    that they stand for, and how many each row has (R,)."""

    parts: list[Tensor]
    places: Tensor
    count: Tensor


class FeatureNetwork(Protocol):
    """What predicts states from pairs."""

    device: torch.device
    dtype: torch.dtype
    mask_padding: bool

    def embed(self, tokens: Tensor, model: FeatureModel) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (R, N), the network's own or those of ``model``."""
        ...

    def embed_prompt(self, model: FeatureModel) -> Tensor:
        """Embeddings (R, P - 1, D) of what stands in the prompt's slots but the first."""
        ...

    def read_states(self, hidden: Tensor) -> Tensor:
        """What the network reads (R, N, D) of the target's states ``hidden`` (R, N, ...)."""
        ...

    def shorten(self, features: Tensor, embeddings: Tensor, visual: Tensor, count: Tensor) -> ShorterPairs | None:
        """The pairs of prompts with fewer of them inside pictures; ``None`` where all are kept."""
        ...

    def rotary(self, slots: Tensor, offset: Tensor, model: FeatureModel) -> tuple[Tensor, Tensor]:
        """What attention rotates by for tokens at ``slots`` (R, N); ``offset`` (R,) is slot minus the target's position."""
        ...

    def predict(self, states: Tensor, model: FeatureModel) -> Tensor:
        """Raw float32 logits (R, N, V) after ``states`` (R, N, D)."""
        ...

    def __call__(
        self, embeddings: Tensor, features: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: SpecCache
    ) -> Tensor:
        """States (R, N, D) of the tokens with ``embeddings`` (R, N, D), given the states before them (R, N, D)."""
        ...


class FeatureRunner:
    """One decoding session of a feature network.

    True pairs, whose states come from the target, are queued as tokens are committed and fed when the next draft
    begins. Drafted pairs lie behind them and are forgotten by the next feeding.

    Args:
        network: The feature network.
        target: The session of the target that it drafts for.
        max_new_tokens: Longest output of a row.
        max_pairs: Most drafted pairs of a round, and most pairs that one row may queue beyond another.
    """

    _features: Tensor  # (R, Q, D) states of the queued pairs
    _tokens: Tensor  # (B, Q) tokens of the queued pairs
    _queued: Tensor  # (B,) how many of them are real

    def __init__(self, network: FeatureNetwork, target: Runner, max_new_tokens: int, max_pairs: int) -> None:
        self.network, self.target, self.guidance = network, target, target.guidance
        self.model: FeatureModel = target.model  # type: ignore[assignment] # checked when the drafter was chosen
        prompt = self.model.prompt
        self.device = network.device
        self.forwards = 0
        self.clock = NetworkClock(self.device)
        self._room = max_new_tokens + max_pairs
        self._home = self.model.device  # of the target and of the drafts
        self._width, self._first = prompt.width, prompt.first
        self._prompt_lengths = prompt.length.to(self.device)
        self._offset = prompt.position_offset.to(self.device)
        self._removed = torch.zeros_like(self._offset)  # pairs of each prompt that others stand for
        self.cache = SpecCache(len(prompt.length), prompt.width + self._room, self.device)
        self.cache.start = prompt.start.to(self.device)
        if not network.mask_padding:
            self.cache.start = torch.full_like(self.cache.start, self._first)
        self._clear_queue()

    def start(self, hidden: Tensor, first: Tensor) -> None:
        """Read the prompts.

        Args:
            hidden: The target's states of the prompt slots that its prefill ran (R, P, D).
            first: First new token of each sample (B,).
        """
        features = self.network.read_states(self._here(hidden))
        self.cache.lengths = torch.full_like(self._prompt_lengths, self._first)
        if features.shape[1] > 1:
            self._read_prompts(features[:, :-1], self._here(self.network.embed_prompt(self.model)))
        # pairs of right padding are overwritten by the first ones of the output
        self.cache.lengths = self._prompt_lengths - 1 - self._removed
        last = (self._prompt_lengths - 1 - self._first)[:, None, None].expand(-1, 1, hidden.shape[2])
        self.queue(hidden.gather(1, last.to(hidden.device)), first[:, None], torch.ones_like(first))

    def _read_prompts(self, features: Tensor, embeddings: Tensor) -> None:
        """Run the pairs of the prompts, or the fewer ones that stand for them."""
        visual = getattr(self.model, "visual", None)
        shorter = None
        if visual is not None:
            shorter = self.network.shorten(features, embeddings, visual.to(self.device), self._prompt_lengths - 1)
        if shorter is None:
            self._forward(features, embeddings, self._width - 1)
            return
        size = shorter.places.shape[1]
        self._removed, self._width = self._prompt_lengths - 1 - shorter.count, size + 1
        self.cache = SpecCache(len(shorter.count), self._width + self._room, self.device)
        seen = torch.ones(size, size, dtype=torch.bool, device=self.device).tril().expand(len(shorter.count), -1, -1)
        self.cache.plan(size, size)
        features, embeddings = shorter.parts
        self._run(features, embeddings, shorter.places + 1, seen)

    def queue(self, features: Tensor, tokens: Tensor, count: Tensor) -> None:
        """Remember true pairs: the target's states ``features`` (R, Q, ...), tokens (B, Q), of which the first ``count`` (B,) are."""
        known = self._tokens.shape[1]
        place = self._queued[:, None] + torch.arange(tokens.shape[1], device=self._home)
        # what is beyond `count` is written behind the row's own pairs, where the next ones will overwrite it
        self._tokens = torch.nn.functional.pad(self._tokens, (0, tokens.shape[1])).scatter(1, place, tokens)
        place = place.repeat(self.guidance.branches, 1).to(self.device)
        features = self.network.read_states(self._here(features))
        if known == 0:
            self._features = features
        else:
            widened = torch.nn.functional.pad(self._features, (0, 0, 0, tokens.shape[1]))
            self._features = widened.scatter(1, place[..., None].expand_as(features), features)
        self._queued = self._queued + count

    def feed(self, order: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Run the queued pairs and keep them.

        Args:
            order: Order index (B,) of the token to draft, the number of new tokens so far.
            longest: The largest of ``order``, known on the host.

        Returns:
            The predicted state of each row's newest token (R, 1, D), and the logits after it (B, 1, V).
        """
        count = self._queued.repeat(self.guidance.branches).to(self.device)
        states = self._forward(self._features, self._embed(self._tokens), self._width - 1 + longest)
        self.cache.lengths = self.cache.lengths + count
        newest = (count - 1)[:, None, None].expand(-1, 1, states.shape[2])
        self._clear_queue()
        states = states.gather(1, newest)
        return states, self._predict(states, order[:, None])

    def grow(
        self, features: Tensor, tokens: Tensor, paths: Tensor, depth: int, order: Tensor, longest: int
    ) -> tuple[Tensor, Tensor]:
        """Run one level of drafted pairs behind those of this round, which ``paths`` (B, W, M) relates to them.

        Args:
            features: States of the parents (R, W, D).
            tokens: Drafted tokens (B, W).
            paths: Which of the M nodes run in this round, the new ones last, are each node's ancestors or itself.
            depth: Distance of the level from the newest token, at least 1.
            order, longest: As for :meth:`feed`.

        Returns:
            States (R, W, D) and logits (B, W, V) of the level.
        """
        branches = self.guidance.branches
        earlier = paths.shape[2] - tokens.shape[1]
        true = self.cache.lengths
        slots = torch.arange(self._width - 1 + longest + paths.shape[2], device=self.device)
        past = (slots < true[:, None]) & (slots >= self.cache.start[:, None])
        node = slots - true[:, None]  # (R, S) which node a slot holds
        inside = (node >= 0) & (node < paths.shape[2])
        index = node.clamp(0, paths.shape[2] - 1)[:, None].expand(-1, tokens.shape[1], -1)
        seen = past[:, None] | (self._here(paths).repeat(branches, 1, 1).gather(2, index) & inside[:, None])
        position = (true + self._removed + depth)[:, None].expand(-1, tokens.shape[1])
        self.cache.lengths = true + earlier
        self.cache.plan(tokens.shape[1], len(slots))
        self.cache.lengths = true
        states = self._run(features, self._embed(tokens), position, seen)
        return states, self._predict(states, order[:, None] + depth)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the samples listed in ``rows``."""
        samples = len(self._queued)
        model_rows = torch.cat([rows + branch * samples for branch in range(self.guidance.branches)]).to(self.device)
        self.cache.select_rows(model_rows)
        self._offset, self._features = self._offset[model_rows], self._features[model_rows]
        self._removed = self._removed[model_rows]
        self._tokens, self._queued = self._tokens[rows], self._queued[rows]

    def _clear_queue(self) -> None:
        rows = len(self.cache.lengths)
        samples = rows // self.guidance.branches
        self._features = torch.zeros(rows, 0, 1, device=self.device)
        self._tokens = torch.zeros(samples, 0, dtype=torch.long, device=self._home)
        self._queued = torch.zeros(samples, dtype=torch.long, device=self._home)

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embeddings (R, N, D) of ``tokens`` (B, N), which the branches share."""
        return self._here(self.network.embed(tokens.repeat(self.guidance.branches, 1), self.model))

    def _forward(self, features: Tensor, embeddings: Tensor, visible: int) -> Tensor:
        """Run consecutive pairs behind the cached ones: states (R, N, D)."""
        count = features.shape[1]
        lengths, start = self.cache.lengths, self.cache.start
        query = lengths[:, None] + torch.arange(count, device=self.device)  # (R, N) slots of the pairs
        key = torch.arange(visible, device=self.device)
        seen = (key <= query[..., None]) & (key >= start[:, None, None]) | (key == query[..., None])
        self.cache.plan(count, visible)
        return self._run(features, embeddings, query + self._removed[:, None] + 1, seen)

    def _run(self, features: Tensor, embeddings: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        self.forwards += 1
        rotary = self.network.rotary(position, self._offset, self.model)
        cosine, sine = (self._here(part, keep_type=True) for part in rotary)
        mask = torch.zeros(seen.shape, dtype=self.network.dtype, device=self.device)
        mask = mask.masked_fill_(~seen, -torch.inf)[:, None]
        with self.clock.running():
            return self.network(embeddings, features, (cosine, sine), mask, self.cache)

    def _predict(self, states: Tensor, order: Tensor) -> Tensor:
        """Logits (B, N, V), guided and masked as the target's, after pairs with ``states`` (R, N, D).

        ``order`` (B, 1) numbers what they predict.
        """
        with self.clock.running():
            logits = self.network.predict(states, self.model).to(self._home)
        return self.target.law(logits, order.expand(-1, states.shape[1]))

    def _here(self, tensor: Tensor, keep_type: bool = False) -> Tensor:
        """``tensor`` on the network's device, numbers in its type."""
        if keep_type or not tensor.is_floating_point():
            return tensor.to(self.device)
        return tensor.to(self.device, self.network.dtype)
