"""Names of output files, and pictures that say how they were made. Nothing is overwritten unless asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IMAGE_SUFFIXES = (".png",)
_OTHER_IMAGES = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def slug(text: str, limit: int = 40) -> str:
    """``text`` as a file name: lower-case words joined by dashes, letters of any script kept."""
    words = re.sub(r"[^\w]+", "-", text.lower()).strip("-_")
    return words[:limit].strip("-_") or "image"


def names_a_file(out: Path) -> bool:
    """Whether ``out`` names one picture and not a folder.

    Raises:
        ValueError: If it names a picture of a kind that mmspec does not write.
    """
    if out.is_dir():
        return False
    if out.suffix.lower() in _OTHER_IMAGES:
        raise ValueError(f"--out names {out}; pictures are written as PNG, which holds their seed and method.")
    return out.suffix.lower() in IMAGE_SUFFIXES


def check_target(out: Path, count: int, overwrite: bool) -> None:
    """Refuse an output before anything is computed.

    Raises:
        ValueError: If several pictures should go into one file.
        FileExistsError: If the file exists and may not be overwritten.
        NotADirectoryError: If the folder's name belongs to a file.
    """
    if names_a_file(out):
        if count > 1:
            raise ValueError(f"--out names the file {out}, but there are {count} pictures; name a folder.")
        if out.exists() and not overwrite:
            raise FileExistsError(f"{out} exists; name another file or add --overwrite.")
    elif out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out {out} is a file and no folder; name a folder or a .png file.")


def unlinked(path: Path, out: Path) -> Path:
    """``path``, where a link that lay in the folder ``out`` is removed: what is written must not leave the folder.

    A file that the user named is ``out`` itself and may be a link.
    """
    if path != out and path.is_symlink():
        path.unlink()
    return path


class PictureWriter:
    """Write the pictures of one run to ``out``.

    In a folder they are named ``red-apple-0001.png``, ... by the first free number; with ``overwrite`` numbers count
    from 1 in each run, so that a second run replaces the pictures of the first, and never its own.
    """

    def __init__(self, out: Path, overwrite: bool) -> None:
        self.out, self.overwrite = out, overwrite
        self.exact = names_a_file(out)
        self.next: dict[str, int] = {}
        (out.parent if self.exact else out).mkdir(parents=True, exist_ok=True)

    def write(self, picture: Any, name: str, facts: Mapping[str, Any]) -> Path:
        """Write ``picture``, with ``facts`` as text chunks, under a name made from ``name``; return the path."""
        from mmspec.pipelines.pictures import png_bytes

        content = png_bytes(picture, facts)
        if self.exact:
            return self._create(self.out, content)
        while True:
            number = self.next[name] = self.next.get(name, 0) + 1
            try:
                return self._create(self.out / f"{name}-{number:04d}.png", content)
            except FileExistsError:
                continue

    def _create(self, path: Path, content: bytes) -> Path:
        path = unlinked(path, self.out) if self.overwrite else path
        with path.open("wb" if self.overwrite else "xb") as file:  # "x": two runs at once cannot take one name
            file.write(content)
        return path
