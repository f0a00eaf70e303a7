"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of outputs of the reference implementations; it lies beside the checkout and is not part of it."""
    for parent in Path(__file__).resolve().parent.parents:
        folder = parent / "shared" / "golden"
        if folder.is_dir():
            return folder
    pytest.skip("no shared/golden folder above the checkout: reference outputs are not available here")
