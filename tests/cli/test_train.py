"""``mmspec train`` hands its options to the recipes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest


@dataclass(frozen=True, kw_only=True)
class Config:
    """The fields that both recipes have, and one each."""

    data: Path
    output: Path
    vq: Path | None = None
    steps: int | None = None
    minutes: float | None = None
    batch_size: int = 32
    learning_rate: float = 1e-3
    channels: tuple[int, ...] = ()
    seed: int = 0
    compile: bool = False
    resume: bool = False
    device: str = "cpu"


@pytest.fixture(params=["emoji-vq", "emoji-t2i"])
def recipe(request, monkeypatch):
    """Words of a command and the list of configurations that its recipe was given."""
    name, config, words = {
        "emoji-vq": ("mmspec.training.vq", "VQConfig", []),
        "emoji-t2i": ("mmspec.training.llamagen", "LlamaGenConfig", ["--vq", "vq"]),
    }[request.param]
    module, calls = ModuleType(name), []
    setattr(module, config, Config)
    module.train = lambda given: calls.append(given) or given.output
    monkeypatch.setitem(sys.modules, name, module)
    return ["train", request.param, "--data", "emoji", "--output", "run", *words], calls


def test_options_become_a_configuration(mmspec, recipe):
    words, calls = recipe
    more = ("--minutes", 2, "--resume", "--device", "cpu", "--set", "learning_rate=5e-4", "--set", "channels=[8, 16]")
    result = mmspec(*words, *more)
    assert result.exit_code == 0
    [config] = calls
    assert (config.data, config.output) == (Path("emoji"), Path("run"))
    assert (config.minutes, config.steps, config.batch_size, config.resume) == (2.0, None, 32, True)
    assert (config.learning_rate, config.channels, config.device) == (5e-4, (8, 16), "cpu")
    assert result.stdout.strip() == "run"


def test_unknown_settings_name_the_legal_ones(mmspec, recipe):
    words, calls = recipe
    result = mmspec(*words, "--set", "learnig_rate=1")
    assert result.exit_code == 2
    assert "learning_rate" in result.stderr
    assert not calls
