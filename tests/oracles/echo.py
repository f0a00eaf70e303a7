"""A task of a batch that needs no model: it writes a row's text many times, as slowly as asked."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mmspec.batch.manifest import Column, Row
from mmspec.batch.tasks import BaseTask, Made

PIPE: Any = SimpleNamespace(device=torch.device("cpu"))


class EchoTask(BaseTask):
    """Writes a row's text many times, slowly enough to be killed in between."""

    main = "text"
    suffix = ".txt"
    columns = {"text": Column()}  # noqa: RUF012
    shared = ("kind",)
    pause = 0.0
    most = 99
    pids: Path | None = None

    def check(self, row: Row) -> None:
        if row.values["text"] == "wrong":
            raise ValueError("this row is wrong")

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        if self.pids is not None:
            (self.pids / str(os.getpid())).touch()
        if any(row.values["text"] == "bad" for row in rows):
            raise RuntimeError("bad row")
        if len(rows) > self.most:
            raise torch.OutOfMemoryError("no memory left")
        time.sleep(self.pause)
        return Made([content_of(row) for row in rows], 10 * len(rows), 10)


def content_of(row: Row) -> bytes:
    return f"{row.values['text']} {row.seed}\n".encode() * 2000


def rows_of(texts: Sequence[str]) -> list[Row]:
    return [Row(f"{n:03d}", n + 1, n, {"text": text}) for n, text in enumerate(texts)]


def made(**settings: Any) -> EchoTask:
    task = EchoTask({}, {})
    for name, value in settings.items():
        object.__setattr__(task, name, value)
    return task
