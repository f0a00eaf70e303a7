"""Text to speech."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np

from demos.ui import html
from demos.ui.heat import draw_codes, draw_wave, mean_colour, places
from demos.ui.race import Lane
from demos.ui.tab import Tab, compare_box, number, numbers, seed_box

_WIDTH = 520

# The samples that have arrived are scheduled one after the other on the clock of the sound card, so there are no seams.
PLAYER = """
const state = { id: null, played: 0, next: 0, context: null };
function feed() {
  const holder = element.querySelector('[data-pcm]');
  if (!holder) return;
  const part = JSON.parse(holder.textContent);
  if (state.id !== part.id) {
    if (state.context) state.context.close();
    state.context = new AudioContext();
    Object.assign(state, { id: part.id, played: 0, next: 0 });
  }
  const bytes = Uint8Array.from(atob(part.pcm), (letter) => letter.charCodeAt(0));
  const samples = new Int16Array(bytes.buffer);
  if (samples.length > state.played) {
    const fresh = samples.subarray(state.played);
    const buffer = state.context.createBuffer(1, fresh.length, part.rate);
    buffer.getChannelData(0).set(Float32Array.from(fresh, (sample) => sample / 32768));
    const source = state.context.createBufferSource();
    source.buffer = buffer;
    source.connect(state.context.destination);
    state.next = Math.max(state.next, state.context.currentTime + 0.05);
    source.start(state.next);
    state.next += buffer.duration;
    state.played = samples.length;
    element.dataset.played = state.played;
  }
}
new MutationObserver(feed).observe(element, { childList: true, subtree: true, characterData: true });
feed();
"""


class SpeechTab(Tab):
    """Texts to sound, which plays while it is made; below the waveform the codes of every frame."""

    kind = "tts"
    title = "Text to speech"
    about = (
        "A text is spoken, and plays while it is made. The embedded voice learnt telephone prompts: it says those best. "
        "Code 0 of each frame is drawn by the talker; the residual codes are drafted."
    )

    def controls(self) -> list[Any]:
        sentences = ["the conference is now unmuted.", "please enter your password followed by the pound key."]
        prompt = gr.Textbox(sentences[0], label="Text", lines=2, elem_id="tts-prompt")
        gr.Examples([[text] for text in sentences], [prompt], label="Sentences")
        with gr.Row():
            seed = seed_box("tts")
            speed = gr.Slider(0.5, 2.0, 1.0, step=0.1, label="Speed", elem_id="tts-speed")
        play = gr.Checkbox(True, label="Play while it is made", elem_id="tts-play")
        compare = compare_box("tts")
        with gr.Accordion("Sampling (empty: what the checkpoint recommends)", open=False):
            temperature = number("Temperature", "tts-temperature", "Of code 0, at least 0.")
            residual = number("Residual temperature", "tts-residual", "Of the other codes, at least 0.")
        return [prompt, seed, speed, play, compare, temperature, residual]

    def extras(self) -> list[Any]:
        player = gr.HTML(elem_id="tts-player", js_on_load=PLAYER)
        return [
            player,
            gr.Audio(label="The whole sound", elem_id="tts-sound", interactive=False, buttons=["download"]),
        ]

    def run(
        self,
        session: str,
        prompt: str = "",
        seed: float | str | None = None,
        speed: float = 1.0,
        play: bool = True,
        compare: bool = True,
        temperature: float | str | None = None,
        residual_temperature: float | str | None = None,
        *_: Any,
    ) -> Iterator[tuple[Any, ...]]:
        pipe = self.stage.shelf.get("tts")
        arguments: dict[str, Any] = dict(numbers(temperature=temperature, residual_temperature=residual_temperature))

        def stream(speculate: bool, chosen: int) -> Iterator[Any]:
            return pipe.stream(prompt, seed=chosen, speed=speed, speculate=speculate, output_type="pcm", **arguments)

        for view in self.play(session, pipe, seed, compare, stream):
            sound = played(view.fast, f"{session}-{id(view.lanes)}") if play else ""
            whole = (pipe.sampling_rate, samples_of(view.fast)) if view.fast.finished else None
            yield str(view.seed), view.plain, view.speculative, view.verdict, sound, whole

    def body(self, pipe: Any, lane: Lane) -> tuple[str, float | None]:
        books = pipe.talker.config.num_codebooks
        samples = samples_of(lane)
        cells = [cell for row in lane.stats.rows for cell in places(row.trace)[: row.tokens // books * books]]
        frames = len(cells) // books
        spans = [
            (frame / frames, (frame + 1) / frames, mean_colour(cells[frame * books : (frame + 1) * books]))
            for frame in range(frames)
        ]
        wave = draw_wave(samples / 32768, spans, width=_WIDTH)
        shown = html.picture(wave, "the sound so far") + html.picture(
            draw_codes(cells, books, _WIDTH), "codes: a column for each frame, code 0 at the top"
        )
        seconds = f"{len(samples) / pipe.sampling_rate:.2f} s of sound"
        if lane.finished:
            seconds += f", the first of it after {lane.stats.seconds['first_audio']:.2f} s"
        return f'<div class="figures">{seconds}, {calls_of(lane)}</div>{shown}', None


def samples_of(lane: Lane) -> np.ndarray[Any, np.dtype[np.int16]]:
    """All samples (n,) of a lane so far."""
    return np.concatenate([part.samples for part in lane.seen]) if lane.seen else np.zeros(0, dtype=np.int16)


def calls_of(lane: Lane) -> str:
    """Model calls of a lane in words."""
    return " and ".join(f"{count} calls of the {name}" for name, count in lane.stats.calls.items())


def played(lane: Lane, number: str) -> str:
    """The sound so far, as the player takes it.

    Args:
        number: Tells requests apart.
    """
    if not lane.seen:
        return ""
    pcm = base64.b64encode(samples_of(lane).astype("<i2").tobytes()).decode()
    content = json.dumps({"id": number, "rate": lane.seen[0].sampling_rate, "pcm": pcm})
    return f"<span data-pcm hidden>{content}</span>"
