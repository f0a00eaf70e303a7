"""Putting tabs into an app, and starting it from a shell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import gradio as gr

from demos.ui.html import CSS
from demos.ui.shelf import MODELS, Shelf
from demos.ui.tab import Stage, Tab
from demos.ui.tab_asr import RecognitionTab
from demos.ui.tab_image import ImageTab
from demos.ui.tab_tts import SpeechTab
from demos.ui.tab_video import VideoTab
from demos.ui.tab_vlm import VisionLanguageTab

TABS: dict[str, type[Tab]] = {
    tab.kind: tab for tab in (ImageTab, RecognitionTab, SpeechTab, VisionLanguageTab, VideoTab)
}


def build(kinds: Sequence[str], shelf: Shelf, parallel: int = 1, waiting: int = 8) -> gr.Blocks:
    """An app.

    Args:
        kinds: Which demos it has; one fills the page, several become tabs.
        shelf: Their pipelines.
        parallel: Requests that are decoded at the same time; the others wait, in order.
        waiting: Requests that may wait; more are refused with a message.

    Raises:
        ValueError: For an unknown kind, or a limit below 1.
    """
    for kind in kinds:
        if kind not in TABS:
            raise ValueError(f"Unknown demo {kind!r}; choose one of {', '.join(TABS)}.")
    if parallel < 1 or waiting < 1:
        raise ValueError(f"`parallel` and `waiting` must be at least 1, got {parallel} and {waiting}.")
    stage = Stage(shelf)
    tabs = [TABS[kind](stage) for kind in kinds]

    def leave(request: gr.Request) -> None:
        stage.cancels.cancel(str(request.session_hash))

    with gr.Blocks(title="mmspec", analytics_enabled=False, delete_cache=(600, 3600)) as app:
        gr.Markdown("# mmspec\nSeveral tokens per forward, the same tokens as plain decoding.")
        if len(tabs) == 1:
            tabs[0].build()
        else:
            with gr.Tabs():
                for tab in tabs:
                    with gr.Tab(tab.title, id=tab.kind):
                        tab.build()
        app.unload(leave)  # who closes the page wants nothing any more
    app.queue(max_size=waiting, default_concurrency_limit=parallel, api_open=False)
    return app


def launch(app: gr.Blocks, host: str = "127.0.0.1", port: int | None = None, block: bool = True) -> str:
    """Start ``app`` without any tunnel; return its address.

    Args:
        host: Interface; the default is reached from this machine alone.
        port: By default the first free one from 7860 on.
        block: Whether to go on serving until interrupted.
    """
    font = ["system-ui", "sans-serif"]  # no font is fetched from the network
    _, url, _ = app.launch(
        server_name=host, server_port=port, share=False, prevent_thread_lock=not block, quiet=not block,
        ssr_mode=False, footer_links=[], css=CSS, theme=gr.themes.Default(font=font, font_mono=["monospace"]),
        max_file_size="20mb", show_error=False,
    )  # fmt: skip
    return url


def _models(choices: Sequence[str]) -> dict[str, str]:
    """What ``--model KIND=NAME`` says; ValueError if one has another form."""
    models = {}
    for choice in choices:
        kind, equals, name = choice.partition("=")
        if not (equals and name):
            raise ValueError(f"--model takes KIND=NAME, got {choice!r}.")
        models[kind] = name
    return models


def main(kinds: Sequence[str], arguments: Sequence[str] | None = None) -> None:
    """Start the demos ``kinds`` from the command line."""
    parser = argparse.ArgumentParser(description=f"Gradio demo of mmspec: {', '.join(kinds)}.")
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps")
    parser.add_argument("--parallel", type=int, default=1, help="requests that are decoded at the same time")
    parser.add_argument("--waiting", type=int, default=8, help="requests that may wait")
    parser.add_argument(
        "--model", action="append", default=[], metavar="KIND=NAME",
        help=f"what to load: KIND is one of {', '.join(MODELS)}, NAME an embedded name, a folder or a hub id",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    try:
        app = build(kinds, Shelf(_models(asked.model), asked.device), asked.parallel, asked.waiting)
    except ValueError as error:
        parser.error(str(error))
    launch(app, asked.host, asked.port)
