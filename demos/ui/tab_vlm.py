"""Questions about pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from demos.ui import html
from demos.ui.heat import places
from demos.ui.race import Lane
from demos.ui.tab import Tab, compare_box, number, numbers, seed_box


class VisionLanguageTab(Tab):
    """A picture and a question to text; every token is coloured by what became of the drafts there."""

    kind = "vlm"
    title = "Vision-language"
    about = "A question about a picture is answered; tokens that were drafted come several at a time."

    def controls(self) -> list[Any]:
        samples = self.samples()
        first = samples[0] if samples else (None, "read the text")
        image = gr.Image(first[0], label="Picture", type="pil", elem_id="vlm-image", height=180)
        prompt = gr.Textbox(first[1], label="Question", elem_id="vlm-prompt")
        if samples:
            gr.Examples([list(sample) for sample in samples[:4]], [image, prompt], label="Questions of the checkpoint")
        with gr.Row():
            longest = number("Longest answer", "vlm-longest", "Tokens, at least 1.", 64)
            temperature = number("Temperature", "vlm-temperature", "0 is greedy.", 0.0)
        seed = seed_box("vlm")
        return [image, prompt, longest, temperature, seed, compare_box("vlm")]

    def samples(self) -> list[tuple[str, str]]:
        """Pictures and questions that come with the checkpoint, if it is there."""
        from mmspec.models.loading import local_folder
        from mmspec.vlm.items import QUESTIONS, read_items

        try:
            folder = local_folder(self.stage.shelf.models["vlm"])
            items = read_items(folder / QUESTIONS) if folder else []
            return [(str(item.images[0]), item.prompt) for item in items if len(item.images) == 1]
        except (ValueError, FileNotFoundError):  # not embedded here, or a checkpoint without questions
            return []

    def run(
        self,
        session: str,
        image: Any = None,
        prompt: str = "",
        max_new_tokens: float | str | None = None,
        temperature: float | str | None = None,
        seed: float | str | None = None,
        compare: bool = True,
        *_: Any,
    ) -> Iterator[tuple[Any, ...]]:
        if image is None:
            raise ValueError("There is no picture; choose or upload one.")
        if not prompt.strip():
            raise ValueError("The question is empty; ask something about the picture.")
        pipe = self.stage.shelf.get("vlm")
        arguments: dict[str, Any] = dict(numbers(max_new_tokens=max_new_tokens, temperature=temperature))

        def stream(speculate: bool, chosen: int) -> Iterator[Any]:
            return pipe.stream(prompt, image, seed=chosen, speculate=speculate, **arguments)

        for view in self.play(session, pipe, seed, compare, stream):
            yield str(view.seed), view.plain, view.speculative, view.verdict

    def body(self, pipe: Any, lane: Lane) -> tuple[str, float | None]:
        from mmspec.vlm.text import decode

        tokens = lane.seen[-1].tokens
        pieces = pieces_of(lambda known: decode(pipe.processor.tokenizer, known), tokens)
        # a token that ends the answer was emitted, but is no part of it
        return html.words(pieces, places(lane.stats.rows[0].trace)[: len(pieces)]), None


def pieces_of(text_of: Any, tokens: list[int]) -> list[str]:
    """What each token adds to the text; a character of several tokens belongs to the last of them."""
    pieces, known = [], ""
    for count in range(1, len(tokens) + 1):
        text = text_of(tokens[:count])
        grown = text.startswith(known) and not text.endswith("\ufffd")
        pieces.append(text[len(known) :] if grown else "")
        known = text if grown else known
    return pieces
