"""What the stages behind the talker share: the trained talker with its material, and its states, which are frozen now and computed once.

Symbols: M frames, V variants of the past, G codes a step, D talker width.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mmspec.speech.talker import SpeechTalker
from mmspec.training.loop import step_generator
from mmspec.training.tts_documents import Spoken, pack
from mmspec.training.tts_talker import (
    TalkerConfig,
    TalkerTrainer,
    corrupt,
    load_encoder,
    read_material,
    reader,
    specials,
)


def open_talker(data: Path, quantizer: Path, talker: Path) -> tuple[TalkerTrainer, list[Spoken], list[Spoken]]:
    """The trained talker with its losses, the recordings that it was trained on, and those held out.

    Args:
        data: Folder of the recordings.
        quantizer, talker: Output folders of the stages before.
    """
    network = SpeechTalker.from_pretrained(talker / "talker").eval()
    base = TalkerConfig(
        data=data, quantizer=quantizer, output=talker, steps=1, frame_stack=network.config.frame_stack
    )  # fmt: skip
    material, held_out = read_material(base, load_encoder(quantizer))
    return reader(network, base), material, held_out


@torch.no_grad()
def frozen_states(
    trainer: TalkerTrainer, material: list[Spoken], corrupted: tuple[float, ...], seed: int
) -> tuple[Tensor, Tensor]:
    """Talker states (V, M, D) before every frame, and the frames' codes (M, G).

    Args:
        trainer: The trained talker with its losses.
        material: Recordings.
        corrupted: Shares of the past codes that are replaced, one for each variant.
        seed: Of the replacements.
    """
    talker = trainer.talker
    states: list[list[Tensor]] = [[] for _ in corrupted]
    codes = []
    for start in range(0, len(material), 40):
        packed = pack(material[start : start + 40], trainer.config.row_width, specials(talker))
        before = packed.is_frame.flatten().nonzero()[:, 0] - 1
        codes.append(packed.codes.flatten(0, 1)[before + 1])
        for variant, share in enumerate(corrupted):
            generator = step_generator(seed + 1 + variant, start)
            past = corrupt(packed, share, talker.config.num_codes, generator)
            states[variant].append(trainer.states(packed, past).flatten(0, 1)[before])
    return torch.stack([torch.cat(parts) for parts in states]), torch.cat(codes)


def draw_states(states: Tensor, codes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` frames at random, of a random variant each: states (count, D) and codes (count, G)."""
    rows = torch.randint(len(codes), (count,), generator=generator)
    variants = torch.randint(len(states), (count,), generator=generator)
    return states[variants, rows], codes[rows]
