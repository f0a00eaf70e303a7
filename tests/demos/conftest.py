"""Tiny pipelines on a shelf, as the demos hold the embedded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image

from demos.ui.shelf import Shelf
from demos.ui.tab import Stage
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.ngram import NGramDrafter
from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.residual_drafter import ResidualDrafter
from tests.oracles.saved_vlm import tiny_reader
from tests.oracles.speech import RATE, babble, tiny_asr
from tests.oracles.synthesis import tiny_voice
from tests.oracles.tiny import few_codes_pipeline
from tests.oracles.video import noise_clip, tiny_video_pipeline


@pytest.fixture(scope="session")
def pipelines() -> dict[str, Any]:
    """Random-weight pipelines of every kind, each with a drafter that is right now and then."""
    made = {
        "image": few_codes_pipeline(drafter=JacobiDrafter(window=6, controller="fixed")),
        "asr": tiny_asr(1, drafter=CTCDrafter()),
        "tts": tiny_voice(ResidualDrafter()),
        "vlm": tiny_reader(NGramDrafter()),
        "video": tiny_video_pipeline(by_text=True, drafter=JacobiDrafter(window=13, controller="fixed")),
    }
    made["asr"].set_progress_bar_config(disable=True)
    return made


@pytest.fixture
def stage(pipelines: dict[str, Any]) -> Stage:
    return Stage(Shelf(loaded=pipelines))


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sound") / "babble.wav"
    soundfile.write(path, babble(1.2, 0).numpy(), RATE)
    return str(path)


@pytest.fixture(scope="session")
def first_frame(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("frames") / "0.png"
    Image.fromarray(noise_clip(1)[0]).save(path)
    return str(path)
