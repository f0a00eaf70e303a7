"""What heads that draft step by step learn from: predictions of all steps at all places of a text, and their losses.

Row p reads the target's state of slot p and the embedding of slot p + 1, in step i that of slot p + 1 + i and its own
output; it learns what follows that slot.

    loss    label of a row                               source
    ce      the token that follows in the text           Cai et al., 2025, "FastMTP"
    kd      the target's law, on the drafted tokens      Li et al., 2025, "EAGLE-3"

Symbols: B rows, S slots of the longest text, P = S - 1 pairs, D hidden size, V' drafted part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.drafters.pairs import PairDrafter
from mmspec.training.unrolling import GrowingKeys, unrolled
from mmspec.training.vlm_rollout import Reading

STEP_LOSSES = ("ce", "kd")


def predicted_states(drafter: PairDrafter, reading: Reading, hidden: Tensor, steps: int) -> list[Tensor]:
    """States of the head at every pair (B, P, D), for each of ``steps`` steps of a draft.

    Args:
        hidden: States of the target that the head reads (B, S, ...).
    """
    embeddings = reading.model.embeddings.float()[:, 1:]
    rows, pairs, width = embeddings.shape
    features, first = drafter.read_states(hidden.float()[:, :-1]), embeddings
    place = torch.arange(pairs, device=embeddings.device).expand(rows, -1)
    shorter = drafter.shorten(features, embeddings, reading.model.visual, torch.full_like(reading.length, pairs))
    if shorter is not None:
        (features, first), place = shorter.parts, shorter.places
    # right padding lies behind all that is judged
    mask = torch.ones(place.shape[1], place.shape[1], dtype=torch.bool, device=embeddings.device).tril()
    no_offset = torch.zeros(1, dtype=torch.long, device=embeddings.device)

    def forward(step: int, features: Tensor, mask: Tensor, keys: GrowingKeys) -> Tensor:
        later = F.pad(embeddings, (0, 0, 0, step)).gather(1, (place + step)[..., None].expand(-1, -1, width))
        rotary = drafter.rotary(place + 1 + step, no_offset, reading.model)
        return drafter(first if step == 0 else later, features, rotary, mask, keys)

    predicted = unrolled(forward, features, mask.expand(rows, 1, -1, -1), steps)
    if shorter is None:
        return predicted
    inside = torch.arange(place.shape[1], device=place.device) < shorter.count[:, None]
    goal = place.where(inside, pairs)[..., None].expand_as(predicted[0])  # what pads a row goes behind the end
    return [
        states.new_zeros(rows, pairs + 1, states.shape[2]).scatter(1, goal, states)[:, :-1] for states in predicted
    ]


def step_losses(
    predicted: Sequence[Tensor],
    reading: Reading,
    decay: float,
    logits_of: Callable[[Tensor], Tensor],
    drafted: Tensor,
    loss: str = "kd",
) -> tuple[Tensor, dict[str, float]]:
    """The weighted mean of the steps' losses, the share of right tokens at some steps, and the expected number of right
    drafts in a row.

    Args:
        predicted: States (B, P, D) of every step.
        decay: Weight of each step relative to the one before it.
        logits_of: Float32 logits (n, V') of states (n, D).
        drafted: Tokens that the head writes (V',).
        loss: One of :data:`STEP_LOSSES`.
    """
    total, numbers = predicted[0].new_zeros(()), {}
    weights, run, length = 0.0, torch.ones(()), 0.0
    place = torch.arange(reading.ids.shape[1] - 1, device=reading.ids.device)
    for step, states in enumerate(predicted):
        # of what follows slot p + 1 + i, inside the answer, with the pair's own token in it as well
        slot = (place + 1 + step).expand(len(states), -1)
        judged = (place + 1 >= reading.begin[:, None]) & (slot < reading.length[:, None] - 1)
        if not bool(judged.any()):
            break
        logits = logits_of(states[judged])
        each, best = _step_loss(logits, reading, slot.clamp_max(place[-1] + 1), judged, drafted, loss)
        weight = decay**step
        total = total + weight * each
        weights += weight
        right = (drafted[logits.detach().argmax(-1)] == best).float().mean()
        run = run * right.cpu()
        length += run.item()
        if step in (0, len(predicted) - 1):
            numbers[f"right_{step + 1}"] = right.item()
    return total / max(weights, 1e-6), {**numbers, "length": length}


def _step_loss(
    logits: Tensor, reading: Reading, slot: Tensor, judged: Tensor, drafted: Tensor, loss: str
) -> tuple[Tensor, Tensor]:
    """Mean loss of ``logits`` (n, V') behind the slots ``slot`` (B, P) that are ``judged``, and the target's choices (n,)."""
    with torch.no_grad():
        laws = reading.laws(slot)[judged]
        best = laws.argmax(-1)
        following = reading.ids.gather(1, (slot + 1).clamp_max(reading.ids.shape[1] - 1))[judged]
        label = best if loss == "kd" else following
        known = (label[:, None] == drafted).any(-1)  # the others teach a law that the target has not
        law = laws[..., drafted].softmax(-1)
    if loss == "ce":
        place = (label[:, None] == drafted).int().argmax(-1)
        each = F.cross_entropy(logits, place, reduction="none")
    else:
        each = -(law * logits.log_softmax(-1)).sum(-1)
    return (each * known).sum() / known.sum().clamp_min(1), best
