"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

PARTIAL = ".partial-"


def write_whole(folder: Path, contents: Mapping[str, bytes], worker: str = "0") -> None:
    """Write files by name so that a crash at any moment leaves of each the old one, or none, or the new one.

    Links in their places are replaced, not followed. ``worker`` is who writes, so that others leave its half-written files alone.
    """
    partial = {name: folder / f"{PARTIAL}{worker}-{secrets.token_hex(4)}-{name}" for name in contents}
    try:
        for name, content in contents.items():
            with partial[name].open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for name, path in partial.items():
            path.replace(folder / name)
    except BaseException:
        for path in partial.values():
            path.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_partial(folder: Path, worker: str | None = None) -> None:
    """Remove what a killed run left half-written, of one ``worker`` or of all."""
    for path in folder.glob(f"{PARTIAL}*" if worker is None else f"{PARTIAL}{worker}-*"):
        path.unlink(missing_ok=True)
