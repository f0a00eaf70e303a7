"""The frozen target in the training of block drafters: its states and laws on a text, and on its own continuations of it.

At inference a block is judged against the target's own continuation from the block's first token, the anchor, not against
a corpus. So all anchors of a text are continued greedily at once, each as a branch of its own behind the text in one cache
(ALR: anchor-label relabelling, arXiv 2609.38795).

Symbols: B rows, S slots of the text, n anchors of a row, r steps, T tapped layers, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.runner.runner import Runner
from mmspec.vlm.adapters.base import EncodedPrompt, VisionLanguageAdapter


@dataclass
class Reading:
    """What the target made of a batch of texts.

    Attributes:
        features: Joined states of the tapped layers (B, S, T * D).
        states: Normalised last states (B, S, D).
        ids: Tokens (B, S), right-padded with 0.
        begin, length: First slot of each answer, and slots of each text (B,).
        runner: The session, whose cache holds the texts.
    """

    features: Tensor
    states: Tensor
    ids: Tensor
    begin: Tensor
    length: Tensor
    runner: Runner

    @property
    def model(self) -> Any:
        """The decoder model."""
        return self.runner.model

    def laws(self, slots: Tensor) -> Tensor:
        """Float32 logits (B, n, V) of what follows ``slots`` (B, n)."""
        return self.model.logits(_at(self.states, slots))


@torch.no_grad()
def read_texts(
    adapter: VisionLanguageAdapter, texts: Sequence[tuple[EncodedPrompt, int]], taps: Sequence[int], rollout: int = 0
) -> Reading:
    """Run the target over ``texts``, pairs of a text and the slot where its answer begins.

    Args:
        rollout: Slots to keep free behind the texts.
    """
    encoded = [text for text, _ in texts]
    device = encoded[0].embeddings.device
    model = adapter.decoder(adapter.network, encoded, device)
    model.taps = (*taps, model.num_layers)  # the last of transformers' states is the normalised one
    runner = Runner(model, Guidance(), max(1, rollout), 1)
    hidden = runner.prefill().hidden
    assert hidden is not None
    size = hidden.shape[-1] // len(model.taps)
    ids = torch.nn.utils.rnn.pad_sequence([text.ids.to(device) for text in encoded], batch_first=True)
    begin = torch.tensor([begin for _, begin in texts], device=device)
    return Reading(hidden[..., :-size], hidden[..., -size:], ids, begin, model.prompt.length.clone(), runner)


@dataclass
class Rollout:
    """Greedy continuations of anchors.

    Attributes:
        anchors: Their slots (B, n).
        tokens: Continuations (B, n, K): entry k - 1 is the token k places behind the anchor.
        logits: The target's logits that each was taken from (B, n, K, V).
        alive: Whether no earlier token of the continuation ended it (B, n, K).
        features: Joined states of the tapped layers at the first K - 1 of them (B, n, K - 1, T * D).
    """

    anchors: Tensor
    tokens: Tensor
    logits: Tensor
    alive: Tensor
    features: Tensor


@torch.no_grad()
def roll_out(reading: Reading, anchors: Tensor, depth: int, stop_tokens: Sequence[int]) -> Rollout:
    """Continue the text up to each of ``anchors`` (B, n) greedily by ``depth`` tokens.

    The first token follows from the text's own laws; each further one is a forward of all branches together. A branch sees
    the text up to its anchor, its own earlier tokens, and nothing of the others.
    """
    rows, count = anchors.shape
    cache, model = reading.runner.cache, reading.model
    width, device = reading.ids.shape[1], anchors.device
    logits = [reading.laws(anchors)]
    tokens, features = [logits[0].argmax(-1)], []
    text = torch.arange(width, device=device) <= anchors[..., None]  # (B, n, S)
    own = torch.eye(count, dtype=torch.bool, device=device).expand(rows, -1, -1)
    lengths = cache.lengths
    for step in range(1, depth):
        seen = torch.cat([text, *[own] * step], dim=2)
        cache.lengths = torch.full_like(lengths, width + (step - 1) * count)
        cache.plan(count, seen.shape[2])
        mask = torch.zeros(seen.shape, dtype=model.dtype, device=device).masked_fill_(~seen, -torch.inf)[:, None]
        positions = anchors + step - model.prompt.position_offset[:, None]
        output = model.decode(tokens[-1], cache, positions, mask)
        assert output.hidden is not None
        features.append(output.hidden[..., : reading.features.shape[-1]])
        logits.append(output.logits)
        tokens.append(output.logits.argmax(-1))
    cache.lengths = lengths
    joined = torch.stack(tokens, dim=2)
    ended = torch.isin(joined, torch.tensor(list(stop_tokens), device=device)).cumsum(-1)
    alive = torch.nn.functional.pad(ended, (1, 0))[..., :-1] == 0
    empty = reading.features.new_zeros(rows, count, 0, reading.features.shape[-1])
    read = torch.stack(features, dim=2) if features else empty
    return Rollout(anchors, joined, torch.stack(logits, dim=2), alive, read)


def rollout_slots(count: int, depth: int) -> int:
    """Cache slots that :func:`roll_out` needs behind the texts."""
    return count * max(0, depth - 1)


def _at(states: Tensor, slots: Tensor) -> Tensor:
    """``states`` (B, S, D) at ``slots`` (B, n)."""
    return states.gather(1, slots[..., None].expand(-1, -1, states.shape[-1]))
