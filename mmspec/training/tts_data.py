"""Speech synthesis's corpus: one speaker's recordings of the Asterisk prompts and what she says in them.

The Debian packages ``asterisk-core-sounds-en`` and ``-en-g722`` hold the transcripts and the recordings
(CC-BY-SA-3.0, spoken by Allison Smith).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.speech.speakable import speakable
from mmspec.training import asr_audio
from mmspec.training.asr_data import UNSURE, hold_out
from mmspec.training.asr_text import CORRECTIONS, SPELT, normalise, read_prompts

PACKAGES = ("asterisk-core-sounds-en", "asterisk-core-sounds-en-g722")


@dataclass(frozen=True, kw_only=True)
class TtsCorpusConfig:
    """Contents of the corpus.

    Args:
        data: Folder of packages and recordings.
        held_out: Sentences that are kept from training, at least.
        max_seconds: Longest recording used.
        seed: Seed of the choice.
    """

    data: Path
    held_out: int = 25
    max_seconds: float = 16.0
    seed: int = 0


@dataclass(frozen=True)
class Recording:
    """A prompt: its name, text in the model's alphabet, waveform (n,) at 16 kHz, and whether it is held out."""

    name: str
    text: str
    waveform: Tensor
    held_out: bool


def build(config: TtsCorpusConfig) -> Path:
    """Fetch and decode the recordings once; returns the file that holds them.

    Raises:
        subprocess.CalledProcessError: If apt-get or dpkg fails.
    """
    path = config.data / "recordings.npz"
    if path.is_file():
        return path
    root = _fetch(config.data)
    listed = read_prompts(asr_audio.prompt_list(root, "en"))
    texts = {name: transcript(text) for name, text in listed.items() if name not in UNSURE}
    texts = {name: text for name, text in texts.items() if text}
    waves = {name: _read(root, name) for name in texts}
    kept = {name: wave for name, wave in waves.items() if wave is not None and len(wave) <= _most(config)}
    words = {name: normalise(listed[name]) for name in kept}
    held_out = hold_out(words, config.held_out, random.Random(config.seed))
    about = [[name, texts[name], name in held_out] for name in kept]
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        np.savez(
            file,
            samples=(torch.cat(list(kept.values())) * 32767).round().short().numpy(),
            lengths=np.array([len(wave) for wave in kept.values()]),
            about=np.array(json.dumps(about)),
        )
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def transcript(text: str) -> str:
    """A prompt's text as the model reads it; empty where there are no words."""
    if not normalise(text):
        return ""
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>", " ", text)
    words = [CORRECTIONS.get(word.lower(), word) for word in text.split()]
    words = [" ".join(word) if word.lower().strip(".,") in SPELT else word for word in words]
    return speakable(" ".join(words), strict=False)


def _most(config: TtsCorpusConfig) -> int:
    return int(config.max_seconds * asr_audio.RATE)


def _fetch(data: Path) -> Path:
    root = data / "root"
    for package in PACKAGES:
        mark = data / "packages" / f"{package}.done"
        if not mark.is_file():
            mark.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["apt-get", "download", package], cwd=mark.parent, check=True, capture_output=True)
            (archive,) = mark.parent.glob(f"{package}_*.deb")
            subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
            mark.touch()
    return root


def _read(root: Path, name: str) -> Tensor | None:
    path = asr_audio.recording(root, "en", name)
    return asr_audio.trim(asr_audio.decode_g722(path), keep=800) if path.is_file() else None


def read_recordings(data: Path) -> list[Recording]:
    """All recordings.

    Raises:
        FileNotFoundError: If they were not fetched yet.
    """
    path = data / "recordings.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; run 'mmspec train tts data --data {data}' first.")
    with np.load(path, allow_pickle=False) as stored:
        waves = torch.from_numpy(stored["samples"].astype(np.float32) / 32767).split(stored["lengths"].tolist())
        about = json.loads(str(stored["about"]))
    return [Recording(name, text, wave, out) for (name, text, out), wave in zip(about, waves, strict=True)]
