"""The demos without a browser: lanes are equal, controls reach the pipeline, seeds are shown, bad input is told in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from demos.ui.launch import TABS, build, main
from demos.ui.shelf import MODELS, Shelf
from demos.ui.tab import Stage, Tab
from demos.ui.tab_tts import samples_of
from tests.oracles.saved_vlm import picture


@pytest.fixture
def requests(recording: str, first_frame: str) -> dict[str, dict[str, Any]]:
    """A legal request of each demo, by the names of the arguments of ``run``."""
    return {
        "image": {"prompt": "a red apple", "seed": 3},
        "asr": {"audio": recording, "seed": 3},
        "tts": {"prompt": "a cat", "seed": 3},
        "vlm": {"image": picture(1), "prompt": "read", "max_new_tokens": 12, "seed": 3},
        "video": {"image": first_frame, "prompt": "a cat", "seed": 3},
    }


def last(tab: Tab, session: str = "me", **values: Any) -> tuple[Any, ...]:
    *_, shown = tab.run(session, **values)
    return shown


@pytest.mark.parametrize("kind", list(MODELS))
def test_plain_and_speculative_lanes_end_equal(
    kind: str, stage: Stage, requests: dict[str, dict[str, Any]], pipelines: dict[str, Any]
) -> None:
    shown = last(TABS[kind](stage), **requests[kind])
    seed, plain, fast, verdict = shown[:4]
    assert seed == "3"
    assert "Tokens equal: yes." in verdict
    assert "SAME_TOKENS" in verdict
    assert 'data-state="done"' in plain
    assert 'data-state="done"' in fast
    forwards = [int(re.findall(r"(\d+) forwards", lane)[0]) for lane in (plain, fast)]
    assert forwards[1] <= forwards[0]


@pytest.mark.parametrize("kind", list(MODELS))
def test_without_the_race_only_the_speculative_lane_runs(
    kind: str, stage: Stage, requests: dict[str, dict[str, Any]]
) -> None:
    shown = last(TABS[kind](stage), **requests[kind], compare=False)
    assert "was not asked for" in shown[1]
    assert "Decoded speculatively only." in shown[3]


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_cancel_keeps_what_was_decoded(kind: str, stage: Stage, requests: dict[str, dict[str, Any]]) -> None:
    tab = TABS[kind](stage)
    running = tab.run("me", **requests[kind])
    next(running)
    stage.cancels.cancel("me")
    *_, shown = running
    assert "Cancelled" in shown[3]
    assert "Tokens equal" not in shown[3]
    stage.cancels.arm("me")
    assert "Tokens equal: yes." in last(tab, **requests[kind])[3]  # nothing stays behind


def test_another_sessions_cancel_stops_nothing(stage: Stage, requests: dict[str, dict[str, Any]]) -> None:
    stage.cancels.cancel("you")
    assert "Tokens equal: yes." in last(TABS["image"](stage), **requests["image"])[3]


def test_the_picture_grows_and_the_heat_map_with_it(
    stage: Stage, requests: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demos.ui.tab.race", lambda lanes, cancelled: _every_part(lanes))
    shown = [view[2] for view in TABS["image"](stage).run("me", **requests["image"])]
    shares = [float(text) for view in shown for text in re.findall(r'progress max="1" value="([\d.]+)"', view)]
    assert shares == sorted(shares)
    assert len(set(shares)) >= 3
    assert shares[-1] == 1
    assert {view.count("<img") for view in shown} == {0, 2}  # a note before the first part, then picture and heat map


def _every_part(lanes: Any) -> Iterator[None]:
    from demos.ui.race import race

    yield from race(lanes, every=0)


@pytest.mark.parametrize("kind", ["image", "tts", "video"])
def test_equal_seeds_give_equal_results_and_others_do_not(
    kind: str, stage: Stage, requests: dict[str, dict[str, Any]]
) -> None:
    """Fault 67."""
    tab = TABS[kind](stage)

    def made(seed: int | None) -> tuple[str, list[str]]:
        shown = last(tab, **requests[kind] | {"seed": seed}, compare=False)
        return shown[0], re.findall(r'src="([^"]+)"', shown[2])

    first, again, other, fresh = made(1), made(1), made(2), made(None)
    assert first == again
    assert first[1] != other[1]
    assert made(int(fresh[0])) == fresh  # the seed that is shown gives the same again


CONTROLS: list[tuple[str, str, Any, str, Any]] = [
    ("image", "negative_prompt", "a cat", "negative_prompt", "a cat"),
    ("image", "count", 2, "num_images_per_prompt", 2),
    ("image", "guidance_scale", "3.0", "guidance_scale", 3.0),
    ("image", "temperature", "0.9", "temperature", 0.9),
    ("image", "top_k", "5", "top_k", 5),
    ("image", "top_p", "0.9", "top_p", 0.9),
    ("image", "seed", "9", "seed", 9),
    ("asr", "preset", "fast", "preset", "fast"),
    ("asr", "temperature", 0.5, "temperature", 0.5),
    ("asr", "seed", "9", "seed", 9),
    ("tts", "speed", 1.5, "speed", 1.5),
    ("tts", "temperature", "0.7", "temperature", 0.7),
    ("tts", "residual_temperature", "0.6", "residual_temperature", 0.6),
    ("tts", "seed", "9", "seed", 9),
    ("vlm", "max_new_tokens", "5", "max_new_tokens", 5),
    ("vlm", "temperature", "0.7", "temperature", 0.7),
    ("vlm", "seed", "9", "seed", 9),
    ("video", "num_frames", "5", "num_frames", 5),
    ("video", "temperature", "0.7", "temperature", 0.7),
    ("video", "top_k", "3", "top_k", 3),
    ("video", "top_p", "0.9", "top_p", 0.9),
    ("video", "seed", "9", "seed", 9),
]


@pytest.mark.parametrize(("kind", "control", "value", "argument", "expected"), CONTROLS)
def test_every_control_changes_the_argument_that_it_names(
    kind: str, control: str, value: Any, argument: str, expected: Any,
    requests: dict[str, dict[str, Any]], pipelines: dict[str, Any],
) -> None:  # fmt: skip
    """Fault 67."""
    heard: list[dict[str, Any]] = []

    class Listening:
        """The real pipeline, whose streams are noted."""

        def __getattr__(self, name: str) -> Any:
            return getattr(pipelines[kind], name)

        def stream(self, *words: Any, **arguments: Any) -> Iterator[Any]:
            heard.append(arguments)
            return pipelines[kind].stream(*words, **arguments)

    stage = Stage(Shelf(loaded={kind: Listening()}))
    for _ in TABS[kind](stage).run("me", **requests[kind] | {control: value}):
        break
    assert [call["speculate"] for call in heard] == [False, True]
    assert heard[1][argument] == expected
    assert control in ("preset",) or heard[0][argument] == expected


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("image", {"prompt": "  "}, "prompt is empty"),
    ("image", {"seed": -1}, "`seed` must lie in"),
    ("image", {"seed": "0.5"}, "whole number"),
    ("image", {"top_k": "many"}, "`top_k` must be a number"),
    ("image", {"top_k": "2.5"}, "top_k"),
    ("image", {"guidance_scale": -2.0}, "guidance"),
    ("image", {"top_p": 7.0}, "top_p"),
    ("asr", {"audio": None}, "no recording"),
    ("asr", {"audio": "nowhere.wav"}, "nowhere.wav"),
    ("asr", {"temperature": -1.0}, "temperature"),
    ("tts", {"prompt": ""}, "text"),
    ("tts", {"speed": 9.0}, "speed"),
    ("vlm", {"image": None}, "no picture"),
    ("vlm", {"prompt": ""}, "question is empty"),
    ("vlm", {"max_new_tokens": 0}, "max_new_tokens"),
    ("video", {"image": None}, "no picture"),
    ("video", {"num_frames": 4}, "legal with"),
]


@pytest.mark.parametrize(("kind", "change", "words"), BAD)
def test_bad_input_is_told_in_the_librarys_words(
    kind: str, change: dict[str, Any], words: str, stage: Stage, requests: dict[str, dict[str, Any]]
) -> None:
    class Request:
        session_hash = "me"

    tab = TABS[kind](stage)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        list(tab.run("me", **requests[kind] | change))
    assert words in str(raised.value)
    names = [name for name in tab.run.__annotations__ if name not in ("session", "_", "return")]
    values = requests[kind] | change
    ordered = [values.get(name, tab.run.__func__.__defaults__[place]) for place, name in enumerate(names)]  # type: ignore[attr-defined]
    with pytest.raises(gr.Error) as message:
        list(tab._handle(Request(), *ordered))  # type: ignore[arg-type]
    assert message.value.message == str(raised.value)


def test_out_of_memory_is_a_message(stage: Stage, requests: dict[str, dict[str, Any]]) -> None:
    """Fault 68."""

    class Request:
        session_hash = "me"

    class Full:
        def stream(self, *words: Any, **arguments: Any) -> Iterator[Any]:
            raise MemoryError("needs 9 GB")

    tab = TABS["image"](Stage(Shelf(loaded={"image": Full()})))
    with pytest.raises(gr.Error, match="needs 9 GB"):
        list(tab._handle(Request(), "a cat"))  # type: ignore[arg-type]


def test_the_sound_that_plays_is_that_of_a_call(
    stage: Stage, requests: dict[str, dict[str, Any]], pipelines: dict[str, Any]
) -> None:
    """Fault 52: the rate is the codec's; and the player has all samples in the end."""
    import base64
    import json

    shown = last(TABS["tts"](stage), **requests["tts"])
    player, (rate, samples) = shown[4], shown[5]
    sent = json.loads(re.findall(r"hidden>(.*)</span>", player)[0])
    called = pipelines["tts"](requests["tts"]["prompt"], seed=3, output_type="pcm").audios[0]
    assert rate == sent["rate"] == pipelines["tts"].sampling_rate
    assert np.array_equal(samples, called)
    assert np.array_equal(np.frombuffer(base64.b64decode(sent["pcm"]), dtype="<i2"), called)
    assert last(TABS["tts"](stage), **requests["tts"], play=False)[4] == ""
    assert samples_of.__doc__


def test_the_waveform_of_a_recording_is_drawn(stage: Stage, requests: dict[str, dict[str, Any]]) -> None:
    assert last(TABS["asr"](stage), **requests["asr"])[4].startswith("<img")


def test_a_missing_checkpoint_is_said_and_not_hidden(requests: dict[str, dict[str, Any]]) -> None:
    shelf = Shelf({"vlm": "mmspec/no-such-model"})
    message = shelf.missing("vlm")
    assert message is not None
    assert "mmspec/no-such-model" in message
    assert "--model vlm=" in message
    with pytest.raises(ValueError, match="no-such-model"):
        list(TABS["vlm"](Stage(shelf)).run("me", Image.new("RGB", (8, 8)), "read"))
    app = build(list(TABS), shelf)
    assert any("no-such-model" in str(block.value) for block in app.blocks.values() if isinstance(block, gr.HTML))


def test_pipelines_are_loaded_once_and_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(kind: str, name: str, device: str) -> Any:
        loaded.append(name)
        return object()

    monkeypatch.setattr("demos.ui.shelf._load", load)
    shelf = Shelf({"image": "some/folder"})
    build(["image"], shelf)
    assert loaded == []
    assert shelf.get("image") is shelf.get("image")
    assert loaded == ["some/folder"]


@pytest.mark.parametrize("kinds", [["image"], list(TABS)])
def test_an_app_queues_with_limits(kinds: list[str], stage: Stage) -> None:
    app = build(kinds, stage.shelf, parallel=1, waiting=3)
    assert app._queue.max_size == 3
    decoding = [fn for fn in app.fns.values() if fn.concurrency_id == "models"]
    assert len(decoding) == len(kinds)
    assert app._queue.default_concurrency_limit == 1
    assert all(fn.concurrency_limit in ("default", 1) for fn in decoding)


@pytest.mark.parametrize(
    "call",
    [lambda: build(["nothing"], Shelf()), lambda: build(["image"], Shelf(), parallel=0), lambda: Shelf({"x": "y"})],
)
def test_unknown_demos_and_limits_are_refused(call: Any) -> None:
    with pytest.raises(ValueError, match=r"choose one of|at least 1"):
        call()


@pytest.mark.parametrize("words", [["--model", "image"], ["--model", "x=y"], ["--waiting", "0"]])
def test_a_wrong_command_line_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["image"], words)
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_demos_listen_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(gr.Blocks, "launch", lambda app, **options: (asked.update(options), "url", None))
    monkeypatch.setenv("GRADIO_SHARE", "True")
    main(["image"], [])
    assert (asked["server_name"], asked["share"]) == ("127.0.0.1", False)


@pytest.mark.parametrize("kind", list(MODELS))
def test_every_part_of_a_stream_says_where_its_tokens_came_from(
    kind: str, pipelines: dict[str, Any], requests: dict[str, dict[str, Any]]
) -> None:
    request = requests[kind]
    words = {
        "vlm": ("read", request.get("image")),
        "video": (request.get("image"),),
        "asr": (request.get("audio"),),
    }.get(kind, (request.get("prompt"),))
    grown = []
    for part in pipelines[kind].stream(*words, seed=3):
        grown.append(part.stats.tokens)
        for row in part.stats.rows:
            assert sum(one.emitted for one in row.trace) == row.tokens
            assert sum(one.accepted for one in row.trace) == row.accepted
    assert grown == sorted(grown)
    assert len(grown) > 1
    assert part.stats is part.output.stats
    if kind != "asr":  # drafts of a random CTC head are never right
        assert any(row.accepted for row in part.stats.rows)
