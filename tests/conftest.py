"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# tests on several workers share the cores instead of fighting for them
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _WORKERS > 1:
    torch.set_num_threads(max(1, torch.get_num_threads() // _WORKERS))


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of outputs of the reference implementations; it lies beside the checkout and is not part of it."""
    for parent in Path(__file__).resolve().parent.parents:
        folder = parent / "shared" / "golden"
        if folder.is_dir():
            return folder
    pytest.skip("no shared/golden folder above the checkout: reference outputs are not available here")
