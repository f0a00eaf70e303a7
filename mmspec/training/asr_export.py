"""Write the trained recogniser as the folder ``mmspec/tiny-asr`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmspec.pipelines.tiny_asr import TinyASRPipeline
from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.tiny_asr import PARTS
from mmspec.training.asr import AsrConfig, load_model
from mmspec.training.asr_audio import RATE
from mmspec.training.asr_card import LICENSE, NOTICE, model_card
from mmspec.training.asr_data import CorpusConfig, read_corpus
from mmspec.training.asr_eval import measure, transcribers
from mmspec.training.asr_language import character_model
from mmspec.training.asr_sets import SETS, TRANSCRIPTS, Sample, read_set
from mmspec.training.loop import read_progress

PRESETS_OF_THIS_MODEL: dict[str, list[float]] = {"fast": [1.2, 0.1]}
"""Largest entropy and least likelihood of presets that the published thresholds do not suit: those of ``fast`` are for
ten times as many labels and would take everything."""

MAX_SECONDS = 5.0
"""Longer recordings are split at a pause: most rows of the training were shorter."""

SAMPLES = {"human": 6, "sequence": 3, "synthetic": 3}
"""How many recordings of each set are shipped."""

SAMPLE_SECONDS = {"human": (1.2, 4.5), "sequence": (2.0, 5.0), "synthetic": (1.0, 3.5)}
"""Their shortest and longest duration."""


def export(config: AsrConfig, sets: Path, folder: str | Path, assessment: str = "", averaged: bool = True) -> Path:
    """Write the model of the newest checkpoint with its tokenizer, samples, measurements and card.

    Weights are stored in float16. What else is in ``folder`` is kept.

    Args:
        config: The last stage; its ``output``, ``reader`` and ``ctc`` hold the checkpoints.
        sets: Folder of the evaluation sets.
        folder: Where to write.
        assessment: Paragraph for the model card on what the recogniser gets right and wrong.
        averaged: The running average of the weights, or the last ones.

    Raises:
        FileNotFoundError: If a stage left nothing to export, or a set is missing.
    """
    folder = Path(folder)
    model, tokenizer, progress = load_model(config, averaged)
    pipe = TinyASRPipeline(
        model.encoder, model.projector, model.decoder, tokenizer, model.feature_extractor,
        drafter=drafter_of(config.data), presets=PRESETS_OF_THIS_MODEL, max_seconds=MAX_SECONDS,
    )  # fmt: skip
    stages = {"reader": read_progress(config.reader), "ctc": read_progress(config.ctc), "joint": progress}
    kinds = transcribers(pipe, pocketsphinx=True)
    measured = {name: measure(read_set(sets / name), kinds) for name in SETS}
    training: dict[str, Any] = {"stages": stages, "corpus": corpus_summary(config.data), "sets": measured}
    write_pipeline(pipe, folder)
    for name in SETS:
        write_samples(read_set(sets / name), name, folder / "samples")
    _write(folder / "training.json", training)
    (folder / "README.md").write_text(model_card(model, training, assessment))
    (folder / "NOTICE").write_text(NOTICE)
    (folder / "LICENSE").write_text(LICENSE)
    return folder


def drafter_of(data: Path) -> CTCDrafter:
    """The drafter that a recogniser trained on the corpus in ``data`` ships with."""
    return CTCDrafter(num_draft_tokens=32, language_weight=0.8, language=character_model(data))


def write_drafter(data: Path, folder: Path) -> Path:
    """Give the recogniser in ``folder`` a new drafter; nothing else of it changes.

    Raises:
        FileNotFoundError: If ``folder`` holds no recogniser.
    """
    if not (folder / "model_index.json").is_file():
        raise FileNotFoundError(f"{folder} holds no recogniser; give the folder that 'mmspec train asr export' wrote.")
    shutil.rmtree(folder / "drafter", ignore_errors=True)
    drafter_of(data).save_pretrained(folder / "drafter")
    return folder / "drafter"


def write_pipeline(pipe: TinyASRPipeline, folder: Path) -> None:
    """The pipeline with its networks in float16, to be run in float32."""
    for name in pipe.components:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in PARTS:
        getattr(pipe, name).to(torch.float16)
    pipe.save_pretrained(folder)
    for name in PARTS:
        getattr(pipe, name).to(torch.float32)
    for name in ("encoder", "decoder"):
        path = folder / name / "config.json"
        settings = json.loads(path.read_text())
        settings["dtype"] = "float32"
        settings.pop("_name_or_path", None)
        _write(path, settings)


def corpus_summary(data: Path) -> dict[str, dict[str, float]]:
    """Utterances and minutes of each voice."""
    summary: dict[str, dict[str, float]] = {}
    for utterance in read_corpus(CorpusConfig(data=data)):
        entry = summary.setdefault(utterance.voice, {"utterances": 0, "minutes": 0.0})
        entry["utterances"] += 1
        entry["minutes"] += len(utterance.frames) / 6000
    return {voice: {name: round(value, 1) for name, value in entry.items()} for voice, entry in summary.items()}


def write_samples(samples: Sequence[Sample], kind: str, folder: Path) -> None:
    """Some recordings of a set as FLAC files, spread over its voices, with one ``transcripts.json`` for all sets."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    low, high = SAMPLE_SECONDS[kind]
    fitting = [sample for sample in samples if low <= len(sample.waveform) / RATE <= high]
    unlike = list({sample.text: sample for sample in fitting}.values())
    chosen = unlike[:: max(1, len(unlike) // SAMPLES[kind])][: SAMPLES[kind]]
    path = folder / TRANSCRIPTS
    entries = [e for e in json.loads(path.read_text()) if e["set"] != kind] if path.is_file() else []
    for number, sample in enumerate(chosen):
        file = f"{kind}-{number}.flac"
        soundfile.write(folder / file, sample.waveform.numpy(), RATE, subtype="PCM_16")
        entries.append({"file": file, "text": sample.text, "voice": sample.voice, "name": sample.name, "set": kind})
    _write(path, entries)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
