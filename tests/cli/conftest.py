"""A tiny saved model, and a way to run commands on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli.app import app
from tests.oracles.saved import save_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def mmspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Run a command line in an empty folder; the result has ``exit_code``, ``stdout`` and ``stderr``."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])
