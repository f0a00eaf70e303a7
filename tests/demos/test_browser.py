"""The demos in a real browser: decode, cancel, be told what is wrong, and be two people at once."""

from __future__ import annotations

import base64
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from demos.ui.launch import TABS, build, launch
from demos.ui.shelf import Shelf

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium on the path: apt-get install chromium", allow_module_level=True)
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PATIENCE = 150_000  # milliseconds; a busy machine is slow, not wrong
DONE = '.verdict[data-state="done"]'


class Slowed:
    """The real pipeline, whose streams pause before each part, so that a person has time to press a button."""

    def __init__(self, pipe: Any, seconds: float) -> None:
        self._pipe, self.seconds = pipe, seconds
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def stream(self, *words: Any, **arguments: Any) -> Iterator[Any]:
        self.open += 1
        try:
            for part in self._pipe.stream(*words, **arguments):
                yield part
                time.sleep(self.seconds)
        finally:
            self.open -= 1


@pytest.fixture(scope="module")
def slowed(pipelines: dict[str, Any]) -> Slowed:
    return Slowed(pipelines["image"], 0.0)


@pytest.fixture(scope="module")
def address(pipelines: dict[str, Any], slowed: Slowed) -> Iterator[str]:
    shelf = Shelf(loaded={**pipelines, "image": slowed})
    app = build(list(TABS), shelf)
    url = launch(app, block=False)
    yield url
    app.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1300, "height": 1000})
    yield visit(opened, address)
    opened.close()


def visit(page: Any, address: str) -> Any:
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.locator("#image-run").wait_for()
    return page


def choose(page: Any, kind: str) -> None:
    page.get_by_role("tab", name=TABS[kind].title, exact=True).click()
    page.locator(f"#{kind}-run").wait_for()


def fill(page: Any, elem_id: str, value: str) -> None:
    box = page.locator(f"#{elem_id} textarea, #{elem_id} input").first
    box.fill(value)
    box.blur()


def run(page: Any, kind: str, state: str = DONE) -> str:
    """Press the button and return the text of the verdict when it has ``state``."""
    page.locator(f"#{kind}-run").click()
    found = page.locator(f"#{kind}-verdict {state}")
    found.wait_for()
    return str(found.inner_text())


def ask_for_a_picture(page: Any, prompt: str = "a red apple", seed: str = "3") -> None:
    fill(page, "image-prompt", prompt)
    fill(page, "image-seed", seed)


def test_a_picture_is_made_by_both_lanes_with_the_seed_shown(page: Any, pipelines: dict[str, Any]) -> None:
    ask_for_a_picture(page)
    assert "Tokens equal: yes." in run(page, "image")
    assert page.locator("#image-used textarea, #image-used input").first.input_value() == "3"
    for lane in ("plain", "speculative"):
        assert page.locator(f"#image-{lane} img").count() == 2
    source = page.locator("#image-speculative img").first.get_attribute("src")
    expected = pipelines["image"]("a red apple", seed=3).images[0]
    assert picture_of(source) == expected.tobytes()


def picture_of(source: str) -> bytes:
    import io

    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).tobytes()


def test_an_empty_seed_is_fresh_and_shown(page: Any) -> None:
    shown = []
    for _ in range(2):
        ask_for_a_picture(page, seed="")
        verdict = run(page, "image")
        shown.append(page.locator("#image-used textarea, #image-used input").first.input_value())
        assert f"Seed {shown[-1]}." in verdict
        page.reload()
        page.locator("#image-run").wait_for()
    assert len(set(shown)) == 2


def test_cancel_stops_and_the_next_request_runs(page: Any, slowed: Slowed) -> None:
    slowed.seconds = 0.5
    try:
        ask_for_a_picture(page)
        page.locator("#image-run").click()
        page.locator('#image-speculative [data-state="decoding"]').wait_for()
        page.locator("#image-cancel").click()
        page.locator('#image-verdict [data-state="cancelled"]').wait_for()
    finally:
        slowed.seconds = 0.0
    assert slowed.open == 0
    assert "Tokens equal: yes." in run(page, "image")


def test_bad_input_is_told_on_the_page(page: Any) -> None:
    ask_for_a_picture(page, prompt="a red apple", seed="-4")
    page.locator("#image-run").click()
    toast = page.locator(".toast-body, [data-testid=toast-body]").first
    toast.wait_for()
    assert "`seed` must lie in [0, 2**63), got -4." in toast.inner_text()


def test_two_people_at_once_get_their_own_pictures(
    page: Any, browser: Any, address: str, pipelines: dict[str, Any]
) -> None:
    context = browser.new_context()
    other = visit(context.new_page(), address)
    ask_for_a_picture(page, seed="5")
    ask_for_a_picture(other, prompt="the old dog", seed="6")
    page.locator("#image-run").click()
    other.locator("#image-run").click()
    for person, prompt, seed in ((page, "a red apple", 5), (other, "the old dog", 6)):
        verdict = person.locator(f"#image-verdict {DONE}")
        verdict.wait_for()
        assert f"Seed {seed}." in verdict.inner_text()
        source = person.locator("#image-speculative img").first.get_attribute("src")
        assert picture_of(source) == pipelines["image"](prompt, seed=seed).images[0].tobytes()
    context.close()


def test_speech_plays_while_it_is_made(page: Any, pipelines: dict[str, Any]) -> None:
    choose(page, "tts")
    fill(page, "tts-prompt", "a cat")
    assert "Tokens equal: yes." in run(page, "tts")
    samples = len(pipelines["tts"]("a cat", seed=7, output_type="pcm").audios[0])
    page.wait_for_function(
        f"document.querySelector('#tts-player [data-played]')?.dataset.played == {samples} || document.querySelector('#tts-player')?.dataset.played == {samples}"
    )
    page.locator("#tts-sound audio, #tts-sound [data-testid]").first.wait_for(state="attached")


def test_a_recording_is_uploaded_and_transcribed(page: Any, recording: str, pipelines: dict[str, Any]) -> None:
    choose(page, "asr")
    clear = page.locator("#asr-audio button[aria-label=Clear]")
    if clear.count():
        clear.first.click()
    page.locator("#asr-audio input[type=file]").first.set_input_files(recording)
    page.locator("#asr-audio [data-testid^=waveform]").first.wait_for()
    assert "Tokens equal: yes." in run(page, "asr")
    text = " ".join(page.locator("#asr-speculative .words").inner_text().split())
    assert text == " ".join(pipelines["asr"](recording).texts[0].split())


def test_a_question_about_an_uploaded_picture(page: Any, first_frame: str) -> None:
    choose(page, "vlm")
    page.locator("#vlm-image input[type=file]").first.set_input_files(first_frame)
    page.locator("#vlm-image img").first.wait_for()
    fill(page, "vlm-longest", "6")
    assert "Tokens equal: yes." in run(page, "vlm")
    assert re.search(r"\b6 tokens", page.locator("#vlm-speculative .figures").first.inner_text())


def test_a_frame_moves(page: Any) -> None:
    choose(page, "video")
    fill(page, "video-prompt", "a cat")
    assert "Tokens equal: yes." in run(page, "video")
    assert page.locator('#video-speculative img[src^="data:image/gif"]').count() == 1
