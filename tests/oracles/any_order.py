"""Tiny random any-order models, and what they must compute, written out in full without a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.image.any_order import AnyOrderModel
from mmspec.image.arpg import ARPGTransformer
from mmspec.image.randar import RandARTransformer
from mmspec.models.layers import apply_rotary
from mmspec.runner.runner import Runner

NETWORKS = {"randar": RandARTransformer, "arpg": ARPGTransformer}


def tiny_network(kind: str, vocab_size: int = 3, side: tuple[int, int] = (2, 2), std: float = 0.35):
    torch.manual_seed(0)
    height, width = side
    model = NETWORKS[kind](
        vocab_size=vocab_size, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, grid_height=height,
        grid_width=width, num_classes=4,
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name == "query_embedding":
                parameter.normal_(std=std)
    return model.eval()


def open_runner(
    network, labels: Tensor, order: Tensor, nodes: int = 8, scale: float = 1.0, known: Tensor | None = None
) -> Runner:
    model = AnyOrderModel(network, labels, order, guided=scale != 1, known=known)
    return Runner(model, Guidance(scale), len(order) - model.known.shape[1], nodes)


def _attend(block, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    return block(x, rotary, mask, None, 0)


@torch.no_grad()
def full_logits(network, label: int, tokens: Tensor, order: Tensor) -> Tensor:
    """Laws (M, V) of every slot in one pass over the whole sequence, as the papers state it."""
    cells = len(order)
    table = network.rotary
    rows = lambda places: (table[places][None, :, 0, None], table[places][None, :, 1, None])  # noqa: E731
    label_embed = network.embed_classes(torch.tensor([label]))
    token_embeds = network.embed_tokens(tokens)
    if isinstance(network, RandARTransformer):
        heads = network.config.num_heads
        sequence, places = [label_embed[0]], [0]
        for slot in range(cells):
            place = int(order[slot]) + 1
            cosine, sine = table[place, 0], table[place, 1]
            turned = apply_rotary(network.query_embedding.view(heads, -1), (cosine, sine)).flatten()
            sequence += [turned, token_embeds[slot]]
            places += [place, place]
        hidden = torch.stack(sequence)[None]
        mask = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
        for block in network.layers:
            hidden = _attend(block, hidden, rows(torch.tensor(places)), mask)
        return network.head(network.norm(hidden[0, 1::2]))
    content = torch.cat([label_embed, token_embeds[:-1]])[None]
    places = torch.cat([torch.zeros(1, dtype=torch.long), order[:-1] + 1])
    mask = torch.ones(cells, cells, dtype=torch.bool).tril()
    for block in network.content:
        content = _attend(block, content, rows(places), mask)
    content = network.content_norm(content)
    heads = network.config.num_heads
    key = apply_rotary(network.key(content).unflatten(-1, (heads, -1)), rows(places)).transpose(1, 2)
    value = network.value(content).unflatten(-1, (heads, -1)).transpose(1, 2)
    asked = network.embedding.weight[network.config.vocab_size].expand_as(content)
    for block in network.queries:
        asked = block(asked, key, value, rows(order + 1), mask)
    return network.head(network.norm(asked))[0]
