"""What the tabs share: a queue slot, a seed, two lanes and a verdict, cancelling, and errors in words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
import torch

from demos.ui.html import lane_card, legend, note, verdict
from demos.ui.race import Cancels, Lane, as_number, open_lanes, race, seed_of
from demos.ui.shelf import Shelf

_KNOWN = (TypeError, ValueError, FileNotFoundError, MemoryError, torch.OutOfMemoryError)
"""Errors whose text is written for the person who made the request."""


@dataclass
class Stage:
    """What all tabs of an app share.

    Attributes:
        shelf: The pipelines.
        cancels: Who wants to stop.
    """

    shelf: Shelf
    cancels: Cancels = field(default_factory=Cancels)


@dataclass(frozen=True)
class View:
    """What a request shows at one moment.

    Attributes:
        seed: The seed that is used.
        plain, speculative: HTML of the lanes.
        verdict: HTML of the comparison.
        lanes: The lanes themselves.
    """

    seed: int
    plain: str
    speculative: str
    verdict: str
    lanes: Sequence[Lane]

    @property
    def fast(self) -> Lane:
        """The speculative lane."""
        return self.lanes[-1]


class Tab(ABC):
    """One demo. ``run`` needs no browser; ``build`` lays the components out.

    Args:
        stage: Pipelines and cancels of the app.
    """

    kind: str
    title: str
    about: str

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @abstractmethod
    def controls(self) -> list[Any]:
        """Make the components of the request; their values, in this order, are the arguments of :meth:`run`."""

    @abstractmethod
    def run(self, session: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Decode a request of ``session`` and yield seed, plain lane, speculative lane and verdict, then ``extras``.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad input, before the first forward.
        """

    @abstractmethod
    def body(self, pipe: Any, lane: Lane) -> tuple[str, float | None]:
        """HTML of what ``lane`` has made, and the share of its work that is done, if that is known."""

    def extras(self) -> list[Any]:
        """Make further output components, below the lanes."""
        return []

    def play(
        self,
        session: str,
        pipe: Any,
        seed: float | str | None,
        compare: bool,
        stream: Callable[[bool, int], Iterator[Any]],
    ) -> Iterator[View]:
        """Race the lanes of a request and yield what to show.

        Args:
            session: Whose request this is.
            pipe: The pipeline.
            seed: As it was given; nothing draws one.
            compare: Whether plain decoding runs too.
            stream: Opens a stream; takes ``speculate`` and the seed.
        """
        chosen = seed_of(seed)
        lanes = open_lanes(lambda speculate: stream(speculate, chosen), compare)
        for _ in race(lanes, lambda: self.stage.cancels.asked(session)):
            cards = [lane_card(lane, *self.body(pipe, lane)) if lane.seen else note(lane.name) for lane in lanes]
            plain = cards[0] if compare else note("Plain decoding was not asked for.")
            stopped = self.stage.cancels.asked(session) and not all(lane.finished for lane in lanes)
            yield View(chosen, plain, cards[-1], verdict(lanes, chosen, stopped), lanes)

    def build(self) -> None:
        """Lay the tab out; call it inside ``gr.Blocks``."""
        gr.Markdown(self.about)
        if (missing := self.stage.shelf.missing(self.kind)) is not None:
            gr.HTML(f'<div id="{self.kind}-missing">{note(missing)}</div>')
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                inputs = self.controls()
                with gr.Row():
                    start = gr.Button("Run", variant="primary", elem_id=f"{self.kind}-run", min_width=90)
                    stop = gr.Button("Cancel", elem_id=f"{self.kind}-cancel", min_width=90)
                used = gr.Textbox(label="Seed used", interactive=False, elem_id=f"{self.kind}-used")
            with gr.Column(scale=3):
                outcome = gr.HTML(note("Press Run."), elem_id=f"{self.kind}-verdict")
                with gr.Row():
                    plain = gr.HTML(elem_id=f"{self.kind}-plain")
                    fast = gr.HTML(elem_id=f"{self.kind}-speculative")
                gr.HTML(legend())
                more = self.extras()
        self._wire(start, stop, inputs, [used, plain, fast, outcome, *more], outcome)

    def _wire(self, start: Any, stop: Any, inputs: list[Any], outputs: list[Any], outcome: Any) -> None:
        armed = start.click(self._arm, None, outcome, queue=False, show_progress="hidden", api_visibility="private")
        armed.then(
            self._handle, inputs, outputs, show_progress="hidden", concurrency_id="models", api_visibility="private"
        )
        stop.click(self._cancel, None, None, queue=False, show_progress="hidden", api_visibility="private")

    def _arm(self, request: gr.Request) -> str:
        self.stage.cancels.arm(str(request.session_hash))
        return note("Waiting for a turn; the first request also loads the model.")

    def _cancel(self, request: gr.Request) -> None:
        self.stage.cancels.cancel(str(request.session_hash))

    def _handle(self, request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self.run(str(request.session_hash), *values)
        except _KNOWN as error:
            raise gr.Error(
                str(error) or type(error).__name__, title=f"{self.title}: this does not work", print_exception=False
            ) from error


def number(label: str, elem_id: str, info: str, value: float | None = None) -> gr.Textbox:
    """A number that may be left empty, which is what the checkpoint recommends, or for a seed a fresh one.

    Gradio's own box for numbers sends 0 where it was left empty.
    """
    return gr.Textbox("" if value is None else str(value), label=label, info=info, elem_id=elem_id)


def seed_box(kind: str, value: int | None = 7) -> gr.Textbox:
    """The seed; empty draws one."""
    return number("Seed", f"{kind}-seed", "Empty: a fresh one, shown below.", value)


def compare_box(kind: str) -> gr.Checkbox:
    """Whether plain decoding runs too."""
    return gr.Checkbox(True, label="Race against plain decoding with the same seed", elem_id=f"{kind}-compare")


def numbers(**given: float | str | None) -> dict[str, float]:
    """The numbers that were filled in, by the names of the pipeline's arguments.

    Raises:
        ValueError: If one is no number.
    """
    read = {name: as_number(f"`{name}`", value) for name, value in given.items()}
    return {name: value for name, value in read.items() if value is not None}
