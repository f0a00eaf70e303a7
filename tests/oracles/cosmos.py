"""Tiny Cosmos weights under the names of the released files, by the formula of the golden vectors."""

from __future__ import annotations

import math

import torch

VOCAB, WIDTH, HEADS, KV_HEADS, INNER, CONTEXT = 64, 96, 4, 2, 64, 16
HEAD_DIM = WIDTH // HEADS
LATENT_SHAPE = (2, 3, 4)


def cosmos_shapes(by_text: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a two-layer decoder."""
    shapes = {
        "tok_embeddings.weight": (128 if by_text else VOCAB, WIDTH),
        "norm.weight": (WIDTH,),
        "output.weight": (VOCAB, WIDTH),
    }
    for layer in (0, 1):
        own = f"layers.{layer}."
        kinds = [("attention", WIDTH)] + [("cross_attention", CONTEXT)] * by_text
        for kind, source in kinds:
            shapes |= {
                f"{own}{kind}.wq.weight": (HEADS * HEAD_DIM, WIDTH),
                f"{own}{kind}.wk.weight": (KV_HEADS * HEAD_DIM, source),
                f"{own}{kind}.wv.weight": (KV_HEADS * HEAD_DIM, source),
                f"{own}{kind}.wo.weight": (WIDTH, HEADS * HEAD_DIM),
                f"{own}{kind}.q_norm.weight": (HEAD_DIM,),
                f"{own}{kind}.k_norm.weight": (HEAD_DIM,),
                f"{own}{kind}_norm.weight": (WIDTH,),
            }
        shapes |= {
            f"{own}feed_forward.w1.weight": (INNER, WIDTH),
            f"{own}feed_forward.w3.weight": (INNER, WIDTH),
            f"{own}feed_forward.w2.weight": (WIDTH, INNER),
            f"{own}ffn_norm.weight": (WIDTH,),
        }
    return shapes


def cosmos_state(by_text: bool) -> dict[str, torch.Tensor]:
    """The golden weights: sines of (rank of the name, flat index), scaled by what the tensor is."""
    state = {}
    for rank, (name, shape) in enumerate(sorted(cosmos_shapes(by_text).items())):
        index = torch.arange(math.prod(shape), dtype=torch.float64)
        value = torch.sin(0.7 * (index + 1) + 1.3 * rank).reshape(shape)
        if name.endswith("norm.weight"):
            value = 1 + 0.1 * value
        elif len(shape) == 1:
            value = 0.1 * value
        else:
            value = 1.2 * value / math.sqrt(shape[-1])
        state[name] = value.float()
    return state


def golden_tokens() -> torch.Tensor:
    """The codes of the golden clip (1, 24)."""
    return ((7 * torch.arange(math.prod(LATENT_SHAPE)) + 3) % VOCAB)[None]


def golden_context() -> torch.Tensor:
    """The text features of the golden clip (1, 5, 16)."""
    return torch.sin(0.3 * torch.arange(5 * CONTEXT, dtype=torch.float64)).float().reshape(1, 5, CONTEXT)
