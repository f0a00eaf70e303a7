"""What all embedded checkpoints have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmspec.models.loading import EMBEDDED

FOLDERS = sorted(path for path in EMBEDDED.iterdir() if (path / "model_index.json").is_file())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_files_are_small_licensed_and_name_no_folder_of_the_training(folder: Path) -> None:
    assert all(path.stat().st_size <= 12_000_000 for path in folder.rglob("*") if path.is_file())
    assert (folder / "README.md").read_text().startswith("---\nlicense:")
    assert (folder / "NOTICE").is_file()
    for path in folder.rglob("*.json"):
        if path.name != "training.json":
            assert "_name_or_path" not in path.read_text(), path


def test_all_of_them_together_are_small() -> None:
    assert sum(path.stat().st_size for folder in FOLDERS for path in folder.rglob("*")) <= 60_000_000
