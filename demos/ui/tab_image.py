"""Text to image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from demos.ui import html
from demos.ui.heat import draw_grid, places
from demos.ui.race import Lane
from demos.ui.tab import Tab, compare_box, number, numbers, seed_box

_SHOWN = 176  # pixels of a picture on the screen


class ImageTab(Tab):
    """Captions to pictures; the heat map lies beside each picture."""

    kind = "image"
    title = "Image"
    about = (
        "A caption becomes a picture, row by row. The embedded model learnt emoji: say what, and a style, as in "
        "*red apple, noto style*."
    )

    def controls(self) -> list[Any]:
        prompt = gr.Textbox("red apple, noto style", label="Prompt", elem_id="image-prompt")
        negative = gr.Textbox("", label="Negative prompt", elem_id="image-negative")
        with gr.Row():
            seed = seed_box("image")
            count = gr.Slider(1, 4, 1, step=1, label="Pictures", elem_id="image-count")
        compare = compare_box("image")
        with gr.Accordion("Sampling (empty: what the checkpoint recommends)", open=False):
            guidance = number("Guidance scale", "image-guidance", "At least 0; 1 is no guidance.")
            temperature = number("Temperature", "image-temperature", "At least 0.")
            top_k = number("Top k", "image-top-k", "0 keeps all codes.")
            top_p = number("Top p", "image-top-p", "Above 0, up to 1.")
        return [prompt, negative, count, seed, compare, guidance, temperature, top_k, top_p]

    def run(
        self,
        session: str,
        prompt: str = "",
        negative_prompt: str = "",
        count: int = 1,
        seed: float | str | None = None,
        compare: bool = True,
        guidance_scale: float | str | None = None,
        temperature: float | str | None = None,
        top_k: float | str | None = None,
        top_p: float | str | None = None,
        *_: Any,
    ) -> Iterator[tuple[Any, ...]]:
        if not prompt.strip():
            raise ValueError("The prompt is empty; say what the picture shows.")
        pipe = self.stage.shelf.get("image")
        arguments: dict[str, Any] = dict(
            numbers(guidance_scale=guidance_scale, temperature=temperature, top_k=top_k, top_p=top_p)
        )
        if negative_prompt.strip():
            arguments["negative_prompt"] = negative_prompt

        def stream(speculate: bool, chosen: int) -> Iterator[Any]:
            return pipe.stream(prompt, num_images_per_prompt=int(count), seed=chosen, speculate=speculate, **arguments)

        for view in self.play(session, pipe, seed, compare, stream):
            yield str(view.seed), view.plain, view.speculative, view.verdict

    def body(self, pipe: Any, lane: Lane) -> tuple[str, float | None]:
        part, grid = lane.seen[-1], pipe.layout()
        side = max(2, _SHOWN // grid.columns)
        shown = []
        for image, row in zip(part.images, lane.stats.rows, strict=True):
            heat = draw_grid(places(row.trace), grid.rows, grid.columns, side, grid.row_length, grid.row_start)
            shown.append(html.picture(image, "the picture so far", _SHOWN))
            shown.append(html.picture(heat, "what became of the drafts at each place", _SHOWN))
        return "".join(shown), sum(part.rows) / (grid.rows * len(part.rows))
