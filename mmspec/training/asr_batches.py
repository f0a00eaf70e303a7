"""Batches of the speech recogniser: utterances are varied in the feature domain and joined into rows.

Time and frequency masks: Park et al., 2019, "SpecAugment". Warping the frequency axis imitates other vocal tracts
(Jaitly and Hinton, 2013, "Vocal Tract Length Perturbation"). Joining recordings gives word sequences that nobody said.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.training.asr_data import Utterance
from mmspec.training.asr_text import normalise, sequence

FRAMES_PER_SECOND = 100
GROUP = 8
"""Batches drawn together."""

SPEAKER = "en_US_f_Allison"


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How batches are drawn.

    Args:
        seconds: Audio a batch holds, padding included.
        row_seconds: Lengths that rows are filled to, as far as utterances fit.
        shares: Parts of the rows by kind: recorded English prompts, joined recordings of single words, synthetic
            speech, other languages.
        join: Probability that a row with room left gets another utterance of the same kind.
        augment: Whether features are varied.
        synthetic_strength: How much synthetic speech is varied, from 0 to 1, against recorded speech.
    """

    seconds: float = 60.0
    row_seconds: tuple[float, ...] = (2.0, 4.0, 8.0, 12.0)
    shares: tuple[float, float, float, float] = (0.2, 0.06, 0.62, 0.12)
    join: float = 0.6
    augment: bool = True
    synthetic_strength: float = 1.0


@dataclass(frozen=True)
class SpeechBatch:
    """Features (B, T, M), row lengths (B,), texts, and which rows are in another language (B,)."""

    features: Tensor
    lengths: Tensor
    texts: list[str]
    foreign: Tensor


@dataclass(frozen=True)
class Sources:
    """Utterances by kind.

    Attributes:
        prompts: Recorded English prompts.
        words: Word to its recordings by the English speaker.
        synthetic: Lists of synthetic utterances, one a voice.
        foreign: Recordings in other languages.
        banned: Joined sequences that are kept for evaluation.
    """

    prompts: list[Utterance]
    words: dict[str, list[Utterance]]
    synthetic: list[list[Utterance]]
    foreign: list[Utterance]
    banned: frozenset[str]


def single_words(prompts: Sequence[Utterance]) -> dict[str, list[Utterance]]:
    """Word to the recordings of the English speaker that say it and nothing else."""
    words: dict[str, list[Utterance]] = {}
    for utterance in prompts:
        if " " not in utterance.text and utterance.voice == SPEAKER:
            words.setdefault(utterance.text, []).append(utterance)
    return words


def sources(corpus: Sequence[Utterance], banned: frozenset[str]) -> Sources:
    """Sort the utterances of a corpus by kind."""
    prompts = [u for u in corpus if u.language == "en" and u.voice == SPEAKER]
    voices: dict[str, list[Utterance]] = {}
    for utterance in corpus:
        if utterance.language == "en" and utterance.voice != SPEAKER:
            voices.setdefault(utterance.voice, []).append(utterance)
    return Sources(
        prompts, single_words(prompts), list(voices.values()), [u for u in corpus if u.language != "en"], banned
    )  # fmt: skip


def draw_sequence(words: dict[str, list[Utterance]], rng: random.Random) -> str:
    """A sequence of words of which there are recordings; or one of any such words."""
    if rng.random() < 0.3:
        return " ".join(rng.choices(list(words), k=rng.randint(2, 6)))
    while True:
        text = normalise(sequence(rng))
        if all(word in words for word in text.split()):
            return text


def join_words(text: str, words: dict[str, list[Utterance]], rng: random.Random) -> list[Utterance]:
    """Recordings of the words of ``text`` with some of their silence cut off."""
    picked = [rng.choice(words[word]) for word in text.split()]
    return [
        Utterance(u.frames[rng.randint(0, 6) : len(u.frames) - rng.randint(0, 6)], u.text, u.voice) for u in picked
    ]  # fmt: skip


def draw_batch(sources: Sources, config: BatchConfig, seed: int, step: int, stack: int) -> SpeechBatch:
    """The batch of a step, a function of the seed and the step alone.

    Rows for several steps are drawn together and sorted by length, so that little of a batch is padding.
    """
    group, member = divmod(step, GROUP)
    rows = _draw_group(sources, config, seed, group)
    rng = random.Random(seed * 1_000_003 + step)
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    features, texts, foreign = [], [], []
    for kind, parts in rows[member]:
        strength = 0.0 if not config.augment else config.synthetic_strength if kind == 2 else 1.0
        frames = [vary(part.frames.float(), strength, rng, generator) for part in parts]
        row = join_frames(frames, rng, generator)
        row = mask(row, strength, rng)
        features.append(row[: len(row) // stack * stack].reshape(-1, stack * row.shape[1]))
        texts.append(" ".join(part.text for part in parts))
        foreign.append(kind == 3)
    lengths = torch.tensor([len(row) for row in features])
    return SpeechBatch(
        torch.nn.utils.rnn.pad_sequence(features, batch_first=True), lengths, texts, torch.tensor(foreign)
    )


def _draw_group(
    sources: Sources, config: BatchConfig, seed: int, group: int
) -> list[list[tuple[int, list[Utterance]]]]:
    """Rows of :data:`GROUP` batches: sorted by length, cut where a batch is full, and put in random order."""
    rng = random.Random(f"{seed}-{group}")
    rows: list[tuple[int, list[Utterance]]] = []
    total, wanted = 0.0, GROUP * config.seconds * FRAMES_PER_SECOND
    while total < wanted:
        kind = rng.choices(range(4), config.shares)[0]
        seconds = rng.choices(config.row_seconds, [s**-0.5 for s in config.row_seconds])[0]
        rows.append((kind, _draw_row(sources, kind, seconds, config, rng)))
        total += _size(rows[-1][1])
    rows.sort(key=lambda row: _size(row[1]))
    batches: list[list[tuple[int, list[Utterance]]]] = [[]]
    filled = 0.0
    for row in rows:
        if filled >= wanted / GROUP and len(batches) < GROUP:
            batches.append([])
            filled -= wanted / GROUP
        batches[-1].append(row)
        filled += _size(row[1])
    while len(batches) < GROUP:  # rounding left the last ones empty: they take what the longest has
        batches.append(list(batches[-1]))
    rng.shuffle(batches)
    return batches


def _size(parts: Sequence[Utterance]) -> int:
    return sum(len(part.frames) for part in parts)


def _draw_row(sources: Sources, kind: int, seconds: float, config: BatchConfig, rng: random.Random) -> list[Utterance]:
    room = seconds * FRAMES_PER_SECOND
    parts: list[Utterance] = []
    tries = 0
    while tries < 30 and (not parts or rng.random() < config.join):
        tries += 1
        drawn = _draw_parts(sources, kind, rng)
        size = _size(drawn)
        if size <= room or (not parts and tries == 30):
            parts += drawn
            room -= size
        elif parts:
            break
    return parts or [min((rng.choice(sources.prompts) for _ in range(20)), key=lambda u: len(u.frames))]


def _draw_parts(sources: Sources, kind: int, rng: random.Random) -> list[Utterance]:
    if kind == 0:
        return [rng.choice(sources.prompts)]
    if kind == 2:
        return [rng.choice(rng.choices(sources.synthetic, [len(voice) for voice in sources.synthetic])[0])]
    if kind == 3:
        return [rng.choice(sources.foreign)]
    while True:
        text = draw_sequence(sources.words, rng)
        if text not in sources.banned:
            return join_words(text, sources.words, rng)


def join_frames(parts: Sequence[Tensor], rng: random.Random, generator: torch.Generator) -> Tensor:
    """Frames (t, num_mels) of several recordings one after another, with short pauses of faint noise."""
    pieces: list[Tensor] = []
    for part in parts:
        if pieces:
            noise = torch.rand(rng.randint(0, 20), part.shape[1], generator=generator) * 0.1
            pieces.append((noise + part.min()).clamp(-1, 1))
        pieces.append(part)
    return torch.cat(pieces)


def vary(frames: Tensor, strength: float, rng: random.Random, generator: torch.Generator) -> Tensor:
    """Other tempo, vocal tract, colour, loudness and background; values stay in [-1, 1]."""
    if rng.random() < 0.8 * strength:
        bands = frames.shape[1]
        length = max(4, round(len(frames) * (1 + strength * rng.uniform(-0.13, 0.15))))
        # the kept part of the frequency axis is stretched or squeezed onto all bands
        warp = 1 + strength * rng.uniform(-0.1, 0.1)
        grid_f = (torch.linspace(0, 2, bands) * warp - 1).clamp(-1, 1)
        grid_t = torch.linspace(-1, 1, length)
        grid = torch.stack(torch.broadcast_tensors(grid_f[None, :], grid_t[:, None]), dim=-1)[None]
        frames = F.grid_sample(frames[None, None], grid, align_corners=True, padding_mode="border")[0, 0]
    tilt = torch.linspace(-1, 1, frames.shape[1]) * rng.uniform(-0.12, 0.12) * strength
    frames = frames + tilt - rng.choice((0.0, rng.uniform(0, 0.25))) * strength
    if rng.random() < 0.5 * strength:
        level = rng.uniform(-1.0, -0.25) + torch.linspace(-1, 1, frames.shape[1]) * rng.uniform(-0.3, 0.3)
        noise = level + 0.15 * torch.randn(frames.shape, generator=generator)
        frames = torch.logaddexp(frames * 6.9, noise * 6.9) / 6.9  # one unit is three decades of power
    return frames.clamp(-1, 1)


def mask(frames: Tensor, strength: float, rng: random.Random) -> Tensor:
    """Two bands and some stretches of time set to silence, their widths in proportion to ``strength``."""
    frames = frames.clone()
    for _ in range(2):
        width = rng.randint(0, round(14 * strength))
        low = rng.randint(0, frames.shape[1] - width)
        frames[:, low : low + width] = -1
    for _ in range(max(1, len(frames) // 150)):
        width = rng.randint(0, round(12 * strength))
        start = rng.randint(0, max(0, len(frames) - width))
        frames[start : start + width] = -1
    return frames
