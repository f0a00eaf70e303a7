"""Mimi block by block: the class's own sound, the same samples however frames arrive, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmspec.speech.mimi_stream import MimiStream, samples_per_frame
from tests.oracles.synthesis import BOOKS, tiny_csm

FRAMES = 21  # with the upsampling, more steps than the window of the tiny transformer


@pytest.fixture(scope="module")
def codec() -> Any:
    return tiny_csm().codec_model


@pytest.fixture(scope="module")
def codes(codec: Any) -> torch.Tensor:
    return torch.randint(codec.config.codebook_size, (FRAMES, BOOKS), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def own(codec: Any, codes: torch.Tensor) -> torch.Tensor:
    """What the class makes of ``codes`` in one call."""
    samples: torch.Tensor = codec.decode(codes.T[None]).audio_values[0, 0]
    return samples


def test_blocks_are_the_classes_own_sound(codec: Any, codes: torch.Tensor) -> None:
    assert codec.config.sliding_window < FRAMES * 2
    blocks = MimiStream(codec).push(codes, last=True)
    assert blocks.shape == (FRAMES * samples_per_frame(codec),)
    assert torch.allclose(blocks, own(codec, codes), atol=1e-5)
    assert blocks.std() > 0.1
    assert not torch.allclose(blocks[-64:], own(codec, codes[-1:]), atol=1e-2)  # what came before is heard


def test_arrival_changes_no_bit(codec: Any, codes: torch.Tensor) -> None:
    whole = MimiStream(codec).push(codes, last=True)
    sound, parts = MimiStream(codec), []
    for first, last in ((0, 1), (1, 2), (2, 2), (2, 9), (9, FRAMES)):
        parts.append(sound.push(codes[first:last]))
    parts.append(sound.push(codes[:0], last=True))
    assert len(parts[0]) == 0
    assert len(parts[1]) == 2 * samples_per_frame(codec)
    assert torch.equal(torch.cat(parts), whole)
    assert len(MimiStream(codec).push(codes[:0], last=True)) == 0


def test_refusals(codec: Any, codes: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a book has 16"):
        MimiStream(codec).push(codes + 16)
    with pytest.raises(ValueError, match="must be"):
        MimiStream(codec).push(codes.repeat(1, 2))
    codec.config.use_causal_conv = False
    try:
        with pytest.raises(ValueError, match="not causal"):
            MimiStream(codec)
    finally:
        codec.config.use_causal_conv = True
