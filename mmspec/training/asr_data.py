"""The speech recogniser's corpus: which texts are held out, and features of people's and synthetic speech in shards.

A shard is a ``.npz`` of log-mel frames and texts, a function of the configuration alone; missing ones are made, so
an interrupted build goes on where it was.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.speech.log_mel import LogMelFeatureExtractor
from mmspec.training import asr_audio
from mmspec.training.asr_text import (
    Walker,
    kjv_clauses,
    normalise,
    phrase,
    read_prompts,
    sequence,
    wordnet_glosses,
    wordnet_sentences,
)

logger = logging.getLogger(__name__)

VOICES = ("piper-joe", "flite-slt", "flite-rms", "flite-awb", "flite-kal16", "espeak-ng")
UNSURE = frozenset({"spy-h323", "demo-moreinfo", "tt-monkeys"})
"""Prompts whose transcript isn't what is said, or that are no speech."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Contents of the corpus.

    Args:
        data: Folder of packages, shards and lists.
        shards: Shards of each synthetic voice.
        shard_size: Utterances a synthetic shard.
        held_out_prompts: Recorded sentences that are kept for evaluation, at least.
        held_out_synthetic: Sentences for synthetic evaluation.
        max_seconds: Longest recording used.
        workers: Processes.
        seed: Seed of every choice.
    """

    data: Path
    shards: dict[str, int] = field(
        default_factory=lambda: dict(zip(VOICES, (10, 8, 4, 4, 3, 5), strict=True))
    )  # fmt: skip
    shard_size: int = 300
    held_out_prompts: int = 50
    held_out_synthetic: int = 100
    max_seconds: float = 16.0
    workers: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Utterance:
    """Log-mel frames (t, num_mels) in half precision, the text said, and who said it in which language."""

    frames: Tensor
    text: str
    voice: str
    language: str = "en"
    name: str = ""


@dataclass(frozen=True)
class Texts:
    """All texts by use; no list shares a text with a held-out one.

    Attributes:
        prompts: Recorded English prompts for training: name to text.
        held_out: Recorded English prompts for evaluation: name to text.
        spoken: Sentences for synthesis, in random order.
        synthetic: Sentences for synthetic evaluation.
        written: Further texts for the language model.
    """

    prompts: dict[str, str]
    held_out: dict[str, str]
    spoken: list[str]
    synthetic: list[str]
    written: list[str]


@lru_cache(maxsize=2)
def _texts(data: Path, held_out_prompts: int, held_out_synthetic: int, seed: int) -> Texts:
    root = asr_audio.fetch(data)
    rng = random.Random(seed)
    entries = read_prompts(asr_audio.prompt_list(root, "en"))
    prompts = {name: normalise(text) for name, text in entries.items() if name not in UNSURE}
    prompts = {
        name: text for name, text in prompts.items() if text and asr_audio.recording(root, "en", name).is_file()
    }
    held_out = hold_out(prompts, held_out_prompts, rng)
    banned = set(held_out.values())
    kept = {name: text for name, text in prompts.items() if name not in held_out}
    wordnet, clauses = wordnet_sentences(root / "usr/share/wordnet"), kjv_clauses()
    rng.shuffle(wordnet)
    rng.shuffle(clauses)
    third = held_out_synthetic // 5
    phrases = [phrase(rng) for _ in range(held_out_synthetic - 3 * third)]
    synthetic = wordnet[: 2 * third] + clauses[:third] + phrases
    banned |= set(synthetic)
    walker = Walker(list(kept.values()))
    generated = [phrase(rng) for _ in range(40_000)] + [walker.phrase(rng) for _ in range(40_000)]
    spoken = wordnet[2 * third :] + clauses[third : third + 8000] + generated[:9000] + generated[40_000:48_000]
    spoken += [sequence(rng) for _ in range(3000)]
    written = clauses[third + 8000 :] + generated + wordnet_glosses(root / "usr/share/wordnet")
    spoken, written = ([text for text in some if text and text not in banned] for some in (spoken, written))
    rng.shuffle(spoken)
    return Texts(kept, held_out, spoken, synthetic, written)


def texts_of(config: CorpusConfig) -> Texts:
    """The texts of a corpus, a function of its configuration."""
    return _texts(config.data, config.held_out_prompts, config.held_out_synthetic, config.seed)


def hold_out(prompts: dict[str, str], count: int, rng: random.Random) -> dict[str, str]:
    """At least ``count`` prompts: sentences of four words or more, and everything that resembles or contains them."""
    names = [name for name, text in prompts.items() if text.count(" ") >= 3]
    rng.shuffle(names)
    chosen: dict[str, str] = {}
    for name in names:
        if len(chosen) >= count:
            break
        if name not in chosen:
            group = {other: text for other, text in prompts.items() if alike(prompts[name], text)}
            if len(group) <= 6:
                chosen |= group
    return chosen


def unlike(held_out: dict[str, str], prompts: dict[str, str]) -> dict[str, str]:
    """Those of ``held_out`` that none of ``prompts`` resembles or contains."""
    return {name: text for name, text in held_out.items() if not any(alike(text, other) for other in prompts.values())}


def alike(first: str, second: str) -> bool:
    """Whether ``second`` contains ``first``, or most of their words are the same in the same order."""
    if f" {first} " in f" {second} ":
        return True
    one, two = first.split(), second.split()
    return SequenceMatcher(None, one, two, autojunk=False).ratio() > 0.8


def extractor() -> LogMelFeatureExtractor:
    """The features that the recogniser is trained on."""
    return LogMelFeatureExtractor()


def build(config: CorpusConfig) -> Path:
    """Make all shards that are missing; returns their folder."""
    texts = texts_of(config)
    folder = config.data / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "held_out.json").write_text(
        json.dumps({"human": texts.held_out, "synthetic": texts.synthetic}, indent=1)
    )
    jobs: list[tuple[str, int]] = [(language, 0) for language in asr_audio.LANGUAGES]
    jobs += sorted(((v, k) for v, n in config.shards.items() for k in range(n)), key=lambda job: job[1])
    missing = [job for job in jobs if not shard_path(config, *job).is_file()]
    logger.info("%d of %d shards are missing", len(missing), len(jobs))
    with ProcessPoolExecutor(config.workers) as pool:
        for voice, number in pool.map(_build_shard, [config] * len(missing), missing):
            logger.info("made %s %d", voice, number)
    return folder


def shard_path(config: CorpusConfig, voice: str, number: int) -> Path:
    """The file of a shard; ``voice`` is a language for recordings."""
    return config.data / "shards" / f"{voice}-{number}.npz"


def _build_shard(config: CorpusConfig, job: tuple[str, int]) -> tuple[str, int]:
    torch.set_num_threads(1)
    voice, number = job
    made = _recorded(config, voice) if voice in asr_audio.LANGUAGES else _synthesised(config, voice, number)
    write_shard(shard_path(config, voice, number), list(made))
    return job


def _recorded(config: CorpusConfig, language: str) -> Iterator[Utterance]:
    root = asr_audio.fetch(config.data)
    features, texts = extractor(), texts_of(config)
    if language == "en":
        entries = texts.prompts
    else:
        listed = read_prompts(asr_audio.prompt_list(root, language))
        entries = {name: text.lower() for name, text in listed.items() if not text.startswith(("[", "<"))}
    for name, text in entries.items():
        path = asr_audio.recording(root, language, name)
        if path.is_file():
            waveform = asr_audio.trim(asr_audio.decode_g722(path))
            if 0.1 < len(waveform) / asr_audio.RATE <= config.max_seconds:
                yield Utterance(features.log_mel(waveform), text, asr_audio.LANGUAGES[language], language, name)


def make_voice(name: str) -> asr_audio.Voice:
    """A synthetic voice of :data:`VOICES`."""
    if name == "piper-joe":
        return asr_audio.piper_voice()
    return asr_audio.espeak_voice() if name == "espeak-ng" else asr_audio.flite_voice(name.removeprefix("flite-"))


def _synthesised(config: CorpusConfig, name: str, number: int) -> Iterator[Utterance]:
    texts, features, voice = texts_of(config), extractor(), make_voice(name)
    first = config.shard_size * (number + sum(config.shards[other] for other in VOICES[: VOICES.index(name)]))
    prompts = sorted(set(texts.prompts.values()))
    rng = random.Random(f"{config.seed}-{name}-{number}")
    for index in range(first, first + config.shard_size):
        text = rng.choice(prompts) if rng.random() < 0.1 else texts.spoken[index % len(texts.spoken)]
        waveform = asr_audio.trim(voice.say(text, rng))
        if 0.1 < len(waveform) / asr_audio.RATE <= config.max_seconds:
            yield Utterance(features.log_mel(waveform), text, name)


def write_shard(path: Path, utterances: Sequence[Utterance]) -> None:
    """Write utterances; a kill at any moment leaves no half shard."""
    about = [[u.text, u.voice, u.language, u.name] for u in utterances]
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        np.savez(
            file,
            frames=torch.cat([u.frames for u in utterances]).half().numpy(),
            lengths=np.array([len(u.frames) for u in utterances]),
            about=np.array(json.dumps(about)),
        )
        os.fsync(file.fileno())
    partial.replace(path)


def read_shard(path: Path) -> list[Utterance]:
    """The utterances of a shard."""
    with np.load(path, allow_pickle=False) as shard:
        parts = torch.from_numpy(shard["frames"]).split(shard["lengths"].tolist())
        return [
            Utterance(frames, *entry) for frames, entry in zip(parts, json.loads(str(shard["about"])), strict=True)
        ]


def read_corpus(config: CorpusConfig) -> list[Utterance]:
    """All utterances for training.

    Raises:
        FileNotFoundError: If a shard is missing; :func:`build` makes it.
    """
    jobs = [(language, 0) for language in asr_audio.LANGUAGES]
    jobs += [(voice, number) for voice, count in config.shards.items() for number in range(count)]
    return [utterance for job in jobs for utterance in read_shard(shard_path(config, *job))]
