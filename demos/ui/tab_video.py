"""Image or clip to video."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import gradio as gr
from PIL import Image

from demos.ui import html
from demos.ui.heat import draw_frames, places
from demos.ui.race import Lane
from demos.ui.tab import Tab, compare_box, number, numbers, seed_box

_SIDE = 72  # pixels of a frame on the screen


class VideoTab(Tab):
    """Pictures to clips, frame by frame; below them the codes of each latent frame."""

    kind = "video"
    title = "Video"
    about = (
        "A picture starts to move. The embedded model learnt clips of moving emoji of 32 x 32 pixels: take one of its "
        "own first frames, and say how it moves."
    )

    def controls(self) -> list[Any]:
        samples = self.samples()
        first = samples[0] if samples else (None, "")
        image = gr.Image(first[0], label="First frame", type="filepath", elem_id="video-image", height=180)
        prompt = gr.Textbox(first[1], label="Prompt", elem_id="video-prompt")
        if samples:
            gr.Examples(
                [list(sample) for sample in samples[:3]], [image, prompt], label="First frames of the checkpoint"
            )
        with gr.Row():
            seed = seed_box("video", 3)
            frames = number("Frames", "video-frames", "Empty: as trained.")
        compare = compare_box("video")
        with gr.Accordion("Sampling (empty: what the checkpoint recommends)", open=False):
            temperature = number("Temperature", "video-temperature", "At least 0.")
            top_k = number("Top k", "video-top-k", "0 keeps all codes.")
            top_p = number("Top p", "video-top-p", "Above 0, up to 1.")
        return [image, prompt, frames, seed, compare, temperature, top_k, top_p]

    def samples(self) -> list[tuple[str, str]]:
        """First frames and texts that come with the checkpoint, if there are any."""
        from mmspec.bench.video import read_samples
        from mmspec.models.loading import local_folder

        try:
            folder = local_folder(self.stage.shelf.models["video"])
            return [(str(path), text or "") for path, text in read_samples(folder)] if folder else []
        except ValueError:  # a checkpoint without samples
            return []

    def run(
        self,
        session: str,
        image: str | None = None,
        prompt: str = "",
        num_frames: float | str | None = None,
        seed: float | str | None = None,
        compare: bool = True,
        temperature: float | str | None = None,
        top_k: float | str | None = None,
        top_p: float | str | None = None,
        *_: Any,
    ) -> Iterator[tuple[Any, ...]]:
        if image is None:
            raise ValueError("There is no picture; choose or upload the first frame.")
        pipe = self.stage.shelf.get("video")
        arguments: dict[str, Any] = dict(
            numbers(num_frames=num_frames, temperature=temperature, top_k=top_k, top_p=top_p)
        )
        if prompt.strip():
            arguments["prompt"] = prompt

        def stream(speculate: bool, chosen: int) -> Iterator[Any]:
            return pipe.stream(image, seed=chosen, speculate=speculate, **arguments)

        for view in self.play(session, pipe, seed, compare, stream):
            yield str(view.seed), view.plain, view.speculative, view.verdict

    def body(self, pipe: Any, lane: Lane) -> tuple[str, float | None]:
        frames = [frame for part in lane.seen for frame in part.new_frames[0]]
        grid = pipe.layout
        # the frames of the context are given, not decoded
        latent = -(-(len(frames) - 1) // pipe.video_tokenizer.config.temporal_compression) if frames else 0
        cells = places(lane.stats.rows[0].trace) if lane.stats.rows else []
        heat = draw_frames(cells, max(grid.frames - 1, latent), grid.rows, grid.columns)
        strip = beside([frame.resize((_SIDE, _SIDE), Image.Resampling.NEAREST) for frame in frames])
        shown = html.picture(strip, "frames so far") + html.picture(
            heat, "what became of the drafts, latent frame by frame"
        )
        if lane.finished:
            shown = moving(frames, pipe.config.fps) + shown
        return shown, min(1.0, len(frames) / pipe.num_frames)


def beside(frames: list[Image.Image], gap: int = 4, most: int = 5) -> Image.Image:
    """Frames of one size in rows of at most ``most``."""
    width, height = frames[0].size
    columns, rows = min(most, len(frames)), -(-len(frames) // most)
    canvas = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "#dde1e6")
    for place, frame in enumerate(frames):
        canvas.paste(frame, (place % most * (width + gap), place // most * (height + gap)))
    return canvas


def moving(frames: list[Image.Image], fps: float) -> str:
    """The clip, playing."""
    from mmspec.image.video_files import encode_gif

    source = base64.b64encode(encode_gif(frames, fps)).decode()
    return f'<img src="data:image/gif;base64,{source}" alt="the clip" width="150"><br>'
