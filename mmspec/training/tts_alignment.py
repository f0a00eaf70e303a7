"""How long each character of a recording lasts, found with the embedded recogniser.

Its CTC head says where the letters are (forced alignment; Graves et al., 2006). Spikes say little about edges, so letters meet half-way
between theirs, and a gap that holds a pause belongs to the pause but for its edges.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from tqdm import tqdm

from mmspec.pipelines.tiny_asr import TinyASRPipeline
from mmspec.speech.adapters.base import SpeechTask
from mmspec.speech.ctc import align
from mmspec.training.tts_data import Recording, read_recordings

logger = logging.getLogger(__name__)

TAIL, HEAD = 0.09, 0.06
"""Seconds of a gap that belong to the letter before it and to the one behind it, at most."""
FILE = "durations.json"


def build(data: Path) -> Path:
    """Align all recordings in ``data``; returns the file of durations.

    Raises:
        FileNotFoundError: If the recordings were not fetched yet.
    """
    pipe = TinyASRPipeline.from_pretrained("mmspec/tiny-asr")
    found, missed = {}, []
    for recording in tqdm(read_recordings(data), desc="alignment"):
        durations = durations_of(recording, pipe)
        if durations is None:
            missed.append(recording.name)
        else:
            found[recording.name] = durations
    logger.info("aligned %d recordings; too short for their texts: %s", len(found), missed or "none")
    path = data / FILE
    path.write_text(json.dumps(found))
    return path


def read_durations(data: Path) -> dict[str, list[float]]:
    """Seconds of silence before the first character, of each character, and of silence behind, of each recording.

    Raises:
        FileNotFoundError: If there is no alignment yet.
    """
    path = data / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; run 'mmspec train tts alignment --data {data}' first.")
    durations: dict[str, list[float]] = json.loads(path.read_text())
    return durations


def durations_of(recording: Recording, pipe: TinyASRPipeline) -> list[float] | None:
    """Seconds as :func:`read_durations` gives them; ``None`` if the recording is too short for its text."""
    adapter = pipe.adapter
    posterior = adapter.encode(recording.waveform, SpeechTask("transcribe")).posterior
    assert posterior is not None
    labels = {text: label for label, text in enumerate(pipe.config.ctc_vocabulary)}
    letters = [place for place, character in enumerate(recording.text) if character.isalpha() or character == "'"]
    runs = align(posterior, [labels[recording.text[place]] for place in letters])
    if runs is None:
        return None
    step, end = posterior.seconds_per_frame, len(recording.waveform) / adapter.sampling_rate
    spans = [(run.first * step, (run.last + 1) * step) for run in runs]
    return lay_out(recording.text, letters, spans, end)


def lay_out(text: str, letters: list[int], spans: list[tuple[float, float]], end: float) -> list[float]:
    """Seconds of silence, of the characters of ``text``, and of silence, given the ``spans`` of its ``letters``.

    Args:
        text: The text.
        letters: Places of the letters in it.
        spans: First and last second of each letter's spike.
        end: Seconds of the recording.
    """
    durations = [0.0] * (len(text) + 2)
    begin = max(0.0, spans[0][0] - HEAD)
    durations[0] = begin
    for number, place in enumerate(letters):
        last = number + 1 == len(letters)
        following = len(text) if last else letters[number + 1]
        silent = following - place - 1 + last  # characters, or the silence behind the text, that lie in the gap
        gap_start, gap_end = spans[number][1], end if last else spans[number + 1][0]
        gap = max(0.0, gap_end - gap_start)
        if silent:
            stop = gap_start + min(TAIL, gap / 2)
            resume = gap_end if last else max(stop, gap_end - HEAD)
            durations[place + 2 : place + 2 + silent] = [(resume - stop) / silent] * silent
        else:
            stop = resume = gap_start + gap / 2
        durations[place + 1] = stop - begin
        begin = resume
    return durations
