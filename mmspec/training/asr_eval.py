"""Word error rates of the recogniser on the three evaluation sets, beside those of pocketsphinx."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.wer import error_rates
from mmspec.pipelines.tiny_asr import TinyASRPipeline
from mmspec.speech.presets import PRESETS
from mmspec.speech.tiny_asr import TinyAsrModel
from mmspec.training.asr_audio import RATE
from mmspec.training.asr_sets import SETS, Sample, read_set

Transcriber = Callable[[Sequence[Tensor]], list[str]]
"""Waveforms to texts."""

BATCH = 16


def ctc_transcriber(model: TinyAsrModel) -> Transcriber:
    """Best path of the CTC head alone."""

    def transcribe(waveforms: Sequence[Tensor]) -> list[str]:
        features, lengths = model.feature_extractor(waveforms, RATE)
        with torch.no_grad():
            _, log_probs, counts = model.encode(features, lengths)
        return [model.ctc_text(row[:count].argmax(-1)) for row, count in zip(log_probs, counts.tolist(), strict=True)]

    return transcribe


def plain_transcriber(pipe: TinyASRPipeline) -> Transcriber:
    """Greedy decoding with the language model, no draft."""

    def transcribe(waveforms: Sequence[Tensor]) -> list[str]:
        return pipe([(waveform.numpy(), RATE) for waveform in waveforms], speculate=False).texts

    return transcribe


def drafted_transcriber(pipe: TinyASRPipeline, preset: str) -> Transcriber:
    """Decoding drafted by CTC, as the preset says."""

    def transcribe(waveforms: Sequence[Tensor]) -> list[str]:
        return pipe([(waveform.numpy(), RATE) for waveform in waveforms], preset=preset).texts

    return transcribe


def pocketsphinx_transcriber() -> Transcriber:
    """Pocketsphinx (Huggins-Daines et al., 2006) with its English models.

    Raises:
        ImportError: Without the package pocketsphinx.
    """
    from pocketsphinx import Decoder

    decoder = Decoder(samprate=RATE, loglevel="FATAL")

    def transcribe(waveforms: Sequence[Tensor]) -> list[str]:
        texts = []
        for waveform in waveforms:
            raw = (waveform.clamp(-1, 1) * 32767).short().numpy().tobytes()
            decoder.start_utt()
            decoder.process_raw(raw, no_search=False, full_utt=True)
            decoder.end_utt()
            best = decoder.hyp()
            texts.append(best.hypstr if best is not None else "")
        return texts

    return transcribe


def measure(samples: Sequence[Sample], transcribers: dict[str, Transcriber]) -> dict[str, Any]:
    """Word error rate and speed (seconds of audio a second) of each transcriber, and the texts it wrote."""
    seconds = sum(len(sample.waveform) for sample in samples) / RATE
    result: dict[str, Any] = {"recordings": len(samples), "seconds": round(seconds, 1)}
    references = [sample.text for sample in samples]
    result["words"] = sum(len(text.split()) for text in references)
    ordered = sorted(range(len(samples)), key=lambda i: len(samples[i].waveform))
    for name, transcribe in transcribers.items():
        texts, start = [""] * len(samples), time.perf_counter()
        for first in range(0, len(ordered), BATCH):
            picked = ordered[first : first + BATCH]
            for index, text in zip(picked, transcribe([samples[i].waveform for i in picked]), strict=True):
                texts[index] = text
        result[name] = {
            "wer": round(error_rates(references, texts)["wer"], 4),
            "rtfx": round(seconds / (time.perf_counter() - start), 2),
            "texts": texts,
        }
    return result


def transcribers(pipe: TinyASRPipeline, pocketsphinx: bool = False) -> dict[str, Transcriber]:
    """CTC alone, plain decoding, every drafted preset, and pocketsphinx if wanted."""
    model = pipe.adapter.model
    kinds = {"ctc": ctc_transcriber(model), "plain": plain_transcriber(pipe)}
    kinds |= {preset: drafted_transcriber(pipe, preset) for preset in PRESETS}
    return kinds | ({"pocketsphinx": pocketsphinx_transcriber()} if pocketsphinx else {})


def measure_folder(model: Path | str, sets: Path, pocketsphinx: bool = False) -> dict[str, dict[str, Any]]:
    """:func:`measure` a saved recogniser on the sets in a folder."""
    kinds = transcribers(TinyASRPipeline.from_pretrained(model), pocketsphinx)
    return {name: measure(read_set(sets / name), kinds) for name in SETS}
