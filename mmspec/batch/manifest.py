"""Manifests: one row a thing to generate, as JSON lines, CSV or plain text.

Everything about a manifest is checked before a model is loaded. Rows are told apart by their ids, never by their prompts: equal prompts are distinct rows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = (".jsonl", ".csv", ".txt")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LARGEST_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Column:
    """A column of a manifest.

    Args:
        kind: ``str``, ``int``, ``float``, ``bool``, or ``path``: a file, relative to the manifest's folder.
        required: Every row must have it.
    """

    kind: str = "str"
    required: bool = False


@dataclass(frozen=True)
class Row:
    """A thing to generate.

    Attributes:
        id: Name of its output, without a suffix.
        line: Line of the manifest, from 1, for messages.
        seed: Its seed.
        values: Its columns but for ``id`` and ``seed``; those not given are absent.
        written: The same with files named as in the manifest; ``None`` where no file is named.
    """

    id: str
    line: int
    seed: int
    values: Mapping[str, Any]
    written: Mapping[str, Any] | None = None

    @property
    def given(self) -> Mapping[str, Any]:
        """Its columns as the manifest has them, which is the same text from wherever the manifest is read."""
        return self.values if self.written is None else self.written

    @property
    def fingerprint(self) -> str:
        """What the output depends on, as a hash: a row that was changed under its old id is noticed."""
        content = json.dumps({"seed": self.seed, **self.given}, sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_manifest(path: Path, columns: Mapping[str, Column], main: str, seed: int = 0) -> list[Row]:
    """Read and check a manifest.

    Args:
        path: A .jsonl file of objects, a .csv file with a header, or a .txt file with the ``main`` column alone, one row a line.
        columns: Legal columns besides ``id`` and ``seed``.
        main: Column that lines of plain text give.
        seed: Seed of the first row that gives none; row n has ``seed`` + n.

    Returns:
        The rows, in order. Ids that are not given are line numbers.

    Raises:
        FileNotFoundError: If there is no manifest.
        ValueError: For another suffix, no rows, and every wrong, missing or doubled value, with its line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; name a manifest ({', '.join(SUFFIXES)}).")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {path.suffix!r}; a manifest ends with {', '.join(SUFFIXES)}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error}).") from None
    records = list(_records(text, path.suffix.lower(), main))
    if not records:
        raise ValueError(f"{path} holds no rows.")
    width = max(4, len(str(records[-1][0])))
    rows = []
    for number, (line, record) in enumerate(records):
        try:
            rows.append(_row(record, line, columns, seed + number, width, path.parent))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    _check_ids(rows, path)
    return rows


def _records(text: str, suffix: str, main: str) -> Iterable[tuple[int, dict[str, Any]]]:
    """Line number and columns of each row; blank lines are no rows."""
    if suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text), strict=True)
        try:
            for record in reader:
                if None in record or None in record.values():
                    raise ValueError(
                        f"Line {reader.line_num} of the manifest has another number of cells than its header."
                    )
                yield reader.line_num, {key: value for key, value in record.items() if value != ""}
        except csv.Error as error:
            raise ValueError(f"Line {reader.line_num} of the manifest is no CSV: {error}.") from None
        return
    for line, content in enumerate(text.splitlines(), start=1):
        if not content.strip():
            continue
        if suffix == ".txt":
            yield line, {main: content.strip()}
            continue
        try:
            record = json.loads(content)
        except json.JSONDecodeError as error:
            raise ValueError(f"Line {line} of the manifest is no JSON: {error}.") from None
        if not isinstance(record, dict):
            raise ValueError(
                f"Line {line} of the manifest holds {type(record).__name__}; each line must be an object."
            )
        yield line, {key: value for key, value in record.items() if value is not None}


def _row(record: dict[str, Any], line: int, columns: Mapping[str, Column], seed: int, width: int, folder: Path) -> Row:
    if unknown := [name for name in record if name not in columns and name not in ("id", "seed")]:
        raise ValueError(f"unknown column {unknown[0]!r}; legal are id, seed, {', '.join(columns)}.")
    if missing := [name for name, column in columns.items() if column.required and name not in record]:
        raise ValueError(f"`{missing[0]}` is missing.")
    name = str(record.get("id", f"{line:0{width}d}"))
    if not _ID.fullmatch(name) or _RESERVED.fullmatch(name) or name.endswith("."):
        raise ValueError(
            f"`id` is {name!r}; it names a file, so it must start with a letter or digit and go on with at most 127 "
            "letters, digits, dots, dashes and underscores."
        )
    seed = seed % (_LARGEST_SEED + 1) if "seed" not in record else _converted("seed", record["seed"], "int", folder)
    if not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"`seed` is {seed}; it must lie between 0 and {_LARGEST_SEED}.")
    named = [key for key in columns if key in record]
    values = {key: _converted(key, record[key], columns[key].kind, folder) for key in named}
    files = [key for key in named if columns[key].kind == "path"]
    return Row(name, line, seed, values, values | {key: str(record[key]) for key in files} if files else None)


def _converted(name: str, value: Any, kind: str, folder: Path) -> Any:
    """``value`` as its column says; text, as CSV has it, is read as a number or yes/no where one is wanted."""
    if kind in ("str", "path"):
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise ValueError(f"`{name}` is {value!r}; it must be text.")
        return str(folder / str(value)) if kind == "path" else str(value)
    if kind == "bool":
        meanings = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in meanings:
            return meanings[value.lower()]
        raise ValueError(f"`{name}` is {value!r}; it must be true or false.")
    wanted: type = int if kind == "int" else float
    if isinstance(value, str):
        try:
            return wanted(value)
        except ValueError:
            raise ValueError(
                f"`{name}` is {value!r}; it must be {'an integer' if kind == 'int' else 'a number'}."
            ) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind == "int" and value != int(value)):
        raise ValueError(f"`{name}` is {value!r}; it must be {'an integer' if kind == 'int' else 'a number'}.")
    return wanted(value)


def _check_ids(rows: list[Row], path: Path) -> None:
    """Two ids that differ in case only would be one file on some disks."""
    lines: dict[str, int] = {}
    for row in rows:
        earlier = lines.setdefault(row.id.lower(), row.line)
        if earlier != row.line:
            raise ValueError(f"{path}, lines {earlier} and {row.line}: both have the id {row.id!r}; ids must differ.")
