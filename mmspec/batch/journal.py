"""The journal of a batch: which rows are done, and which failed for what reason.

One line of JSON a row, appended and synced after the row's file is in place, so that a row is noted if and only if its output is whole.
A line that a crash cut short is dropped when the journal is read. Every worker has a journal of its own; a row is done if any of them says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mmspec.batch.manifest import Row

_NAME = "journal-{worker}.jsonl"


@dataclass(frozen=True)
class Entry:
    """What became of a row: its ``file`` if it is done, else the ``error``."""

    id: str
    fingerprint: str
    file: str | None = None
    error: str | None = None


class Journal:
    """The journal that one worker appends to.

    Args:
        folder: Output folder.
        worker: Name of the worker.

    Raises:
        BlockingIOError: If another process is writing it.
        OSError: If a link lies in its place, by which lines would leave the folder.
    """

    def __init__(self, folder: Path, worker: str = "0") -> None:
        self.path = folder / _NAME.format(worker=worker)
        if self.path.is_symlink():
            raise OSError(f"{self.path} is a link; a journal lies in its folder. Remove it.")
        self._file = self.path.open("a+b")
        _lock(self._file, self.path)
        self._mend()

    def _mend(self) -> None:
        """Cut off an unfinished last line, to which the next entry would be glued."""
        self._file.seek(0)
        content = self._file.read()
        if not content.endswith(b"\n") and content:
            self._file.truncate(content.rfind(b"\n") + 1)

    def note_done(self, files: Mapping[str, Row]) -> None:
        """Append that rows are done, by the names of their files."""
        self._append([Entry(row.id, row.fingerprint, file=file) for file, row in files.items()])

    def note_failed(self, row: Row, error: str) -> None:
        """Append that ``row`` failed with ``error``."""
        self._append([Entry(row.id, row.fingerprint, error=error)])

    def _append(self, entries: Sequence[Entry]) -> None:
        self._file.write(b"".join(json.dumps(asdict(entry)).encode() + b"\n" for entry in entries))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process write it."""
        self._file.close()


def _lock(file: Any, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # elsewhere than on Unix two runs in one folder are not noticed
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BlockingIOError(f"Another run is writing {path}; wait for it, or use another folder.") from None


def read_journals(folder: Path) -> dict[str, Entry]:
    """The last word of all journals in ``folder`` on each row; that it is done outweighs that it failed."""
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob(_NAME.format(worker="*"))):
        for line in path.read_bytes().split(b"\n")[:-1]:
            entry = Entry(**json.loads(line))
            if entry.file is not None or entry.id not in entries or entries[entry.id].file is None:
                entries[entry.id] = entry
    return entries


def pending(rows: Iterable[Row], folder: Path, retry_failed: bool = False) -> list[Row]:
    """Rows that are still to be generated.

    Args:
        rows: All rows of the manifest.
        folder: Output folder.
        retry_failed: Whether rows that failed count as pending.

    Raises:
        ValueError: If a row that is done has other contents now.
    """
    entries = read_journals(folder)
    left = []
    for row in rows:
        entry = entries.get(row.id)
        if entry is not None and entry.file is not None:
            if entry.fingerprint != row.fingerprint:
                raise ValueError(
                    f"Row {row.id!r} (line {row.line}) was done with other contents or another seed. Give it a new id, or use another folder."
                )
            if (folder / entry.file).is_file():
                continue
            left.append(row)  # its output was removed
        elif entry is None or retry_failed or entry.fingerprint != row.fingerprint:
            left.append(row)
    return left


def failures(rows: Iterable[Row], folder: Path) -> list[tuple[Row, str]]:
    """Rows of the manifest whose last word is a failure, with the reason."""
    entries = read_journals(folder)
    return [(row, error) for row in rows if (entry := entries.get(row.id)) and (error := entry.error)]
