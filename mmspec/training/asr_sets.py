"""The three evaluation sets of the speech recogniser, none of them trained on.

* ``human``: recorded sentences that were held out, with all that resemble them;
* ``sequence``: recordings of single words by the same speaker, joined to sequences that training never joins; the
  single recordings are part of the training;
* ``synthetic``: held-out sentences spoken by the synthetic voices of the training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.training import asr_audio
from mmspec.training.asr_data import VOICES, CorpusConfig, make_voice, texts_of, unlike
from mmspec.training.asr_text import normalise, sequence

SETS = ("human", "sequence", "synthetic")
SEQUENCES = 60
TRANSCRIPTS = "transcripts.json"


@dataclass(frozen=True)
class Sample:
    """A waveform (n,) at 16 kHz, what is said, a name and who says it."""

    waveform: Tensor
    text: str
    name: str
    voice: str


def sequence_texts(words: Iterable[str], seed: int = 1) -> list[str]:
    """The joined sequences of the evaluation, of at least four words."""
    known, rng = set(words), random.Random(f"evaluation-{seed}")
    found: dict[str, None] = {}
    while len(found) < SEQUENCES:
        text = normalise(sequence(rng))
        if text.count(" ") >= 3 and all(word in known for word in text.split()):
            found[text] = None
    return list(found)


def human_set(config: CorpusConfig) -> list[Sample]:
    """Held-out recordings of at most ``config.max_seconds`` that no prompt of the training resembles."""
    root, texts = asr_audio.fetch(config.data), texts_of(config)
    samples = []
    for name, text in unlike(texts.held_out, texts.prompts).items():
        waveform = asr_audio.decode_g722(asr_audio.recording(root, "en", name))
        if len(waveform) <= config.max_seconds * asr_audio.RATE:
            samples.append(Sample(waveform, text, name, asr_audio.LANGUAGES["en"]))
    return samples


def sequence_set(config: CorpusConfig) -> list[Sample]:
    """Joined recordings with pauses of up to a quarter of a second."""
    root, rng = asr_audio.fetch(config.data), random.Random("evaluation")
    files: dict[str, str] = {}
    for name, text in texts_of(config).prompts.items():
        if " " not in text:
            files.setdefault(text, name)
    waves = {
        text: asr_audio.trim(asr_audio.decode_g722(asr_audio.recording(root, "en", name)))
        for text, name in files.items()
    }
    samples = []
    for number, text in enumerate(sequence_texts(files)):
        parts = []
        for word in text.split():
            parts += [waves[word], torch.zeros(rng.randint(0, asr_audio.RATE // 4))]
        samples.append(Sample(torch.cat(parts[:-1]), text, f"sequence-{number}", asr_audio.LANGUAGES["en"]))
    return samples


def synthetic_set(config: CorpusConfig) -> list[Sample]:
    """Held-out sentences, each by a voice drawn in proportion to its part of the training."""
    rng = random.Random("evaluation")
    chosen = rng.choices(VOICES, [config.shards[voice] for voice in VOICES], k=len(texts_of(config).synthetic))
    voices = {name: make_voice(name) for name in sorted(set(chosen))}
    return [
        Sample(voices[name].say(text, rng), text, f"synthetic-{number}", name)
        for number, (name, text) in enumerate(zip(chosen, texts_of(config).synthetic, strict=True))
    ]


def evaluation_set(name: str, config: CorpusConfig) -> list[Sample]:
    """One of :data:`SETS`.

    Raises:
        ValueError: For another name.
    """
    makers = {"human": human_set, "sequence": sequence_set, "synthetic": synthetic_set}
    if name not in makers:
        raise ValueError(f"`name` is {name!r}; choose one of {', '.join(SETS)}.")
    return makers[name](config)


def write_sets(config: CorpusConfig, output: Path) -> list[Path]:
    """Write each set as FLAC files and a ``transcripts.json`` in a folder of its name; returns the folders."""
    import soundfile

    folders = []
    for name in SETS:
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, sample in enumerate(evaluation_set(name, config)):
            file = f"{number:03d}.flac"
            soundfile.write(folder / file, sample.waveform.numpy(), asr_audio.RATE, subtype="PCM_16")
            entries.append({"file": file, "text": sample.text, "name": sample.name, "voice": sample.voice})
        (folder / TRANSCRIPTS).write_text(json.dumps(entries, indent=1) + "\n")
        folders.append(folder)
    return folders


def read_set(folder: Path) -> list[Sample]:
    """The samples of a folder of recordings with their ``transcripts.json``.

    Raises:
        FileNotFoundError: If there are no transcripts.
    """
    import soundfile

    samples = []
    for entry in json.loads((folder / TRANSCRIPTS).read_text()):
        waveform, rate = soundfile.read(folder / entry["file"], dtype="float32")
        assert rate == asr_audio.RATE
        samples.append(Sample(torch.from_numpy(waveform), entry["text"], entry["name"], entry["voice"]))
    return samples
