"""Blocks to learn from, and the losses of block drafters.

    loss     label of slot k behind the anchor                            weight of the slot
    ce       the corpus' token                                            exp(-(k - 1) / gamma)
    kd       the target's law after the corpus' tokens                    the same
    erase    the corpus' token                                            times the target's chance of the tokens before it
    alr      the target's law on its own continuation of the anchor       the same as ce, up to the end of the continuation
    alr-ira  as alr; half of the blocks begin inside continuations, with the target's states there as their context

DFlash (Chen et al., 2026) for ce; KD, Erase, ALR and IRA as in arXiv 2609.38795. Laws are learnt through their eight
likeliest tokens and one bucket for the rest.

Symbols: B rows, n blocks of a row, Q slots of a block, K = Q - 1 depths, S slots of the text, C rolled-out slots of an
anchor, T tapped layers, D hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.drafters.block import BlockDrafter
from mmspec.training.vlm_rollout import Reading, Rollout

LOSSES = ("alr", "alr-ira", "ce", "erase", "kd")
_KEPT = 8  # likeliest tokens of a law


@dataclass
class Blocks:
    """Blocks of a batch.

    Attributes:
        tokens: Anchor tokens (B, n).
        positions: Their positions in the stream (B, n).
        context: Joined states that blocks may read (B, S', T * D), with their positions (B, S').
        seen: What each block sees of them (B, n, S').
        labels: Tokens (B, n, K), or logits of laws (B, n, K, V).
        weights: Weight of each slot (B, n, K).
    """

    tokens: Tensor
    positions: Tensor
    context: tuple[Tensor, Tensor]
    seen: Tensor
    labels: Tensor
    weights: Tensor


def draw_anchors(reading: Reading, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Slots (B, n) inside the answers, each row's own, with at least one token behind; and which of them are real.

    At inference the first anchor is the answer's first token, so that is the first slot that may be drawn.
    """
    room = (reading.length - 1 - reading.begin).cpu()  # (B,) anchors to choose from
    draws = torch.rand(len(room), max(count, int(room.max())), generator=generator)
    place = torch.arange(draws.shape[1])
    order = draws.masked_fill(place >= room[:, None], 2.0).argsort(dim=1)[:, :count]
    real = torch.arange(order.shape[1]) < room[:, None]
    anchors = reading.begin.cpu()[:, None] + order.where(real, 0)
    device = reading.ids.device
    return anchors.to(device), real.to(device)


def decay(depth: int, gamma: float, device: torch.device) -> Tensor:
    """Weights (K,) of the slots."""
    return torch.exp(-torch.arange(depth, device=device) / gamma)


def corpus_blocks(reading: Reading, anchors: Tensor, real: Tensor, depth: int, loss: str, gamma: float) -> Blocks:
    """Blocks at ``anchors`` (B, n) with the labels of ``ce``, ``kd`` or ``erase``."""
    step = torch.arange(1, depth + 1, device=anchors.device)
    slots = anchors[..., None] + step  # (B, n, K) the tokens to predict
    inside = (slots < reading.length[:, None, None]) & real[..., None]
    flat = slots.clamp_max(reading.ids.shape[1] - 1).flatten(1)
    tokens = reading.ids.gather(1, flat).view_as(slots)
    weights = decay(depth, gamma, anchors.device) * inside
    labels = tokens
    if loss != "ce":
        laws = reading.laws(flat - 1).unflatten(1, slots.shape[1:])  # (B, n, K, V) of the very tokens
        if loss == "kd":
            labels = laws
        else:
            chance = laws.log_softmax(-1).gather(-1, tokens[..., None])[..., 0].exp()
            before = F.pad(chance, (1, 0), value=1.0)[..., :-1].cumprod(-1)
            weights = weights * before
    return Blocks(*_at_anchors(reading, anchors), labels, weights)


def _at_anchors(reading: Reading, anchors: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    place = torch.arange(reading.ids.shape[1], device=anchors.device)
    seen = place < anchors[..., None]  # the anchor's own state does not exist yet when a block is drafted
    context = reading.features, place.expand(len(anchors), -1)
    return reading.ids.gather(1, anchors), anchors, context, seen


def rollout_blocks(
    reading: Reading, rollout: Rollout, real: Tensor, gamma: float, secondary: tuple[Tensor, Tensor] | None = None
) -> Blocks:
    """Blocks at the anchors of ``rollout``, and further ones inside its continuations.

    Args:
        real: Which anchors are real (B, n).
        secondary: For each further block the anchor in whose continuation it begins, and how many tokens behind it, at
            least 2 and at most K - 1; both (B, m).
    """
    depth = rollout.tokens.shape[2]
    tokens, positions, context, seen = _at_anchors(reading, rollout.anchors)
    weights = decay(depth, gamma, tokens.device) * rollout.alive * real[..., None]
    labels = rollout.logits
    if secondary is not None:
        more = _secondary(reading, rollout, real, gamma, *secondary)
        count, rolled = rollout.features.shape[1:3]
        place = rollout.anchors[..., None] + torch.arange(1, rolled + 1, device=tokens.device)
        context = (
            torch.cat([context[0], rollout.features.flatten(1, 2)], dim=1),
            torch.cat([context[1], place.flatten(1)], dim=1),
        )
        seen = torch.cat([F.pad(seen, (0, count * rolled)), more.seen], dim=1)
        tokens, positions = torch.cat([tokens, more.tokens], dim=1), torch.cat([positions, more.positions], dim=1)
        labels, weights = torch.cat([labels, more.labels], dim=1), torch.cat([weights, more.weights], dim=1)
    return Blocks(tokens, positions, context, seen, labels, weights)


def _secondary(
    reading: Reading, rollout: Rollout, real: Tensor, gamma: float, parent: Tensor, offset: Tensor
) -> Blocks:
    depth, device = rollout.tokens.shape[2], parent.device
    rows, count, rolled = rollout.features.shape[:3]
    row = torch.arange(rows, device=device)[:, None]
    anchors = rollout.anchors[row, parent]  # (B, m)
    tokens = rollout.tokens[row, parent, offset - 1]
    text = torch.arange(reading.ids.shape[1], device=device) <= anchors[..., None]
    # of the continuation of its own parent, what lies before the block
    branch = torch.arange(count, device=device)[:, None].expand(-1, rolled).flatten()
    behind = torch.arange(1, rolled + 1, device=device).repeat(count)
    own = (branch == parent[..., None]) & (behind < offset[..., None])
    step = offset[..., None] + torch.arange(depth, device=device)  # (B, m, K) entry of the continuation
    known = step < depth
    entry = step.clamp_max(depth - 1)
    labels = rollout.logits[row[..., None], parent[..., None], entry]
    alive = rollout.alive[row[..., None], parent[..., None], entry] & known & real[row, parent][..., None]
    weights = decay(depth, gamma, device) * alive
    context = reading.features, torch.zeros(0, device=device)
    return Blocks(tokens, anchors + offset, context, torch.cat([text, own], dim=2), labels, weights)


def block_states(drafter: BlockDrafter, reading: Reading, blocks: Blocks) -> Tensor:
    """Normalised states (B, n, K, D) of the slots to predict; all blocks of a row run together, blind to one another."""
    size, device = drafter.config.block_size, blocks.tokens.device
    rows, count = blocks.tokens.shape
    tokens = torch.full((rows, count, size), drafter.config.mask_token_id, device=device)
    tokens[..., 0] = blocks.tokens
    with torch.no_grad():
        embeddings = reading.model.embed_tokens(tokens.flatten(1)).float()
    positions = (blocks.positions[..., None] + torch.arange(size, device=device)).flatten(1)
    same = torch.eye(count, dtype=torch.bool, device=device).repeat_interleave(size, 0).repeat_interleave(size, 1)
    read, place, seen = block_context(drafter, reading, blocks)
    mask = torch.cat([seen.repeat_interleave(size, 1), same.expand(rows, -1, -1)], dim=2)[:, None]
    states = drafter(embeddings, drafter.rotary(positions), mask, context=(read, drafter.rotary(place)))
    return states.unflatten(1, (count, size))[:, :, 1:]


def block_context(drafter: BlockDrafter, reading: Reading, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """Context (B, S', D) of ``blocks``, its positions (B, S'), and what each block sees of it (B, n, S'); with fewer slots of
    pictures where the drafter wants that."""
    read, (_, place), seen = drafter.read_context(blocks.context[0].float()), blocks.context, blocks.seen
    if drafter.compressor is None:
        return read, place, seen
    behind = read.shape[1] - reading.ids.shape[1]  # rolled-out slots
    visual = F.pad(reading.model.visual, (0, behind))
    shorter = drafter.compressor([read], visual, torch.full_like(reading.length, read.shape[1]))
    kept = shorter.places
    inside = torch.arange(kept.shape[1], device=kept.device) < shorter.count[:, None]
    seen = seen.gather(2, kept[:, None].expand(-1, seen.shape[1], -1)) & inside[:, None]
    return shorter.parts[0], place.gather(1, kept), seen


def block_loss(drafter: BlockDrafter, reading: Reading, blocks: Blocks) -> tuple[Tensor, dict[str, float]]:
    """Weighted loss of ``blocks``, the share of first slots whose likeliest token is the label's, and the expected number
    of drafts that such slots in a row are right."""
    logits = reading.model.logits(block_states(drafter, reading, blocks))
    wanted = blocks.labels if blocks.labels.dim() == 3 else blocks.labels.argmax(-1)
    each = _label_loss(logits, blocks.labels)
    if drafter.config.markov_rank:  # the slots alone choose the candidates, with the token before them the trees
        before = torch.cat([blocks.tokens[..., None], wanted[..., :-1]], dim=-1)
        logits = logits + drafter.correction(before)
        each = (each + _label_loss(logits, blocks.labels)) / 2
    loss = (each * blocks.weights).sum() / (blocks.weights.sum() + 1e-6)
    with torch.no_grad():
        judged = (blocks.weights > 0).float()
        right = (logits.argmax(-1) == wanted).float() * judged
        blocks_judged = judged[..., 0].sum().clamp_min(1)
        numbers = {
            "first": (right[..., 0].sum() / blocks_judged).item(),
            "length": (right.cumprod(-1).sum() / blocks_judged).item(),
        }
        if blocks.labels.dim() == 4:  # the loss cannot fall below the entropy of the laws
            floor = (bucket_loss(blocks.labels, blocks.labels) * blocks.weights).sum() / (blocks.weights.sum() + 1e-6)
            numbers["divergence"] = (loss - floor).item()
    return loss, numbers


def _label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss (B, n, K) of logits (B, n, K, V) against tokens or laws."""
    if labels.dim() == 4:
        return bucket_loss(logits, labels)
    return F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(labels)


def bucket_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy (...) from the law of the logits ``wanted`` (..., V) to that of ``logits`` (..., V), over the likeliest
    tokens of the first and one bucket for all others."""
    best = wanted.softmax(-1).topk(min(_KEPT, wanted.shape[-1]), dim=-1)
    log_q = logits.log_softmax(-1).gather(-1, best.indices)
    rest = (1 - best.values.sum(-1)).clamp_min(0)
    log_rest = (1 - log_q.exp().sum(-1).clamp_max(1 - 1e-6)).log()
    return -(best.values * log_q).sum(-1) - rest * log_rest
