"""Speech recognition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
import numpy as np

from demos.ui import html
from demos.ui.heat import Colour, Place, draw_wave, mean_colour, places
from demos.ui.race import Lane
from demos.ui.tab import Tab, compare_box, seed_box
from demos.ui.tab_vlm import pieces_of

PRESETS = ("the checkpoint's", "exact", "accurate", "balanced", "fast")


class RecognitionTab(Tab):
    """Recordings to text; words are coloured in the text and, in the end, along the waveform."""

    kind = "asr"
    title = "Speech recognition"
    about = (
        "A recording becomes text. A CTC head drafts, the language model verifies. The embedded recogniser knows "
        "telephone prompts, spoken in English."
    )

    def controls(self) -> list[Any]:
        samples = self.samples()
        audio = gr.Audio(
            samples[0] if samples else None, sources=["upload", "microphone"], type="filepath", label="Recording",
            elem_id="asr-audio", buttons=[],
        )  # fmt: skip
        if samples:
            gr.Examples([[path] for path in samples[:4]], [audio], label="Recordings of the checkpoint")
        preset = gr.Dropdown(list(PRESETS), value=PRESETS[0], label="Preset", elem_id="asr-preset")
        temperature = gr.Slider(0, 1, 0, step=0.1, label="Temperature", elem_id="asr-temperature")
        return [audio, preset, temperature, seed_box("asr"), compare_box("asr")]

    def samples(self) -> list[str]:
        """Recordings that come with the checkpoint, if there are any."""
        from mmspec.bench.asr import read_items
        from mmspec.cli.loading import samples_of

        try:
            return [str(item.file) for item in read_items(samples_of(self.stage.shelf.models["asr"]))]
        except (ValueError, FileNotFoundError):  # a checkpoint without recordings
            return []

    def run(
        self,
        session: str,
        audio: str | None = None,
        preset: str = PRESETS[0],
        temperature: float = 0.0,
        seed: float | str | None = None,
        compare: bool = True,
        *_: Any,
    ) -> Iterator[tuple[Any, ...]]:
        if audio is None:
            raise ValueError("There is no recording; record or upload one.")
        pipe = self.stage.shelf.get("asr")
        chosen_preset = None if preset == PRESETS[0] else preset

        def stream(speculate: bool, chosen: int) -> Iterator[Any]:
            # a preset says how to speculate, so plain decoding has none
            return pipe.stream(
                audio, seed=chosen, temperature=temperature, speculate=speculate,
                preset=chosen_preset if speculate else None,
            )  # fmt: skip

        for view in self.play(session, pipe, seed, compare, stream):
            sound = self.waveform(pipe, view.fast, audio) if view.fast.finished else ""
            yield str(view.seed), view.plain, view.speculative, view.verdict, sound

    def extras(self) -> list[Any]:
        return [gr.HTML(elem_id="asr-wave")]

    def body(self, pipe: Any, lane: Lane) -> tuple[str, float | None]:
        part = lane.seen[-1]
        pieces, cells = tokens_of(pipe, lane)
        seconds = part.output.seconds[0] if part.output else None
        decision = f'<div class="figures">{part.output.decisions[0]}</div>' if part.output else ""
        return html.words(pieces, cells) + decision, None if seconds is None else 1.0

    def waveform(self, pipe: Any, lane: Lane, audio: str) -> str:
        """The waveform; each word has the colour of its tokens."""
        from mmspec.speech.audio import load_audio

        clip = load_audio(audio, pipe.adapter.sampling_rate)
        colours = colours_of_words(*tokens_of(pipe, lane))
        spans = [
            (word.start / clip.seconds, word.end / clip.seconds, colour)
            for word, colour in zip(lane.output.words[0], colours, strict=True)
            if word.start is not None and word.end is not None
        ]
        picture = draw_wave(np.asarray(clip.samples), spans, width=900)
        return html.picture(picture, "the recording; each word has the mean colour of its tokens")


def tokens_of(pipe: Any, lane: Lane) -> tuple[list[str], list[Place]]:
    """Text and place of every token of all segments; a segment begins with a space."""
    pieces: list[str] = []
    cells: list[Place] = []
    part, rows = lane.seen[-1], [row for row in lane.stats.rows if row.trace]
    adapter = pipe.adapter
    for tokens, row in zip([known for known in part.tokens if known], rows, strict=True):
        added = pieces_of(adapter.codec.decode, [token for token in tokens if token not in adapter.stop_tokens])
        if pieces and added:
            added[0] = f" {added[0].lstrip()}"
        known = places(row.trace)[: len(added)]
        pieces += added[: len(known)]
        cells += known
    return pieces, cells


def colours_of_words(pieces: Sequence[str], cells: Sequence[Place]) -> list[Colour]:
    """The mean colour of the tokens of each word."""
    words: list[list[Place]] = []
    gap = True
    for piece, cell in zip(pieces, cells, strict=True):
        if piece.strip():
            if gap or piece[:1].isspace():
                words.append([])
            words[-1].append(cell)
            gap = piece[-1:].isspace()
        elif piece:
            gap = True
    return [mean_colour(word) for word in words]
