"""What the commands print: results on standard output, complaints on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_IN_PIPES = 160

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: no markup, and no wrapping, so that paths can be copied."""
    _out.print(Text(text, style=style), soft_wrap=True)


def complain(text: str, style: str = "red") -> None:
    """Print a line to standard error."""
    _err.print(Text(text, style=style), soft_wrap=True)


def show(table: Table) -> None:
    """Print a table, in full width where the output is no terminal."""
    console = _out if _out.is_terminal else Console(highlight=False, width=_WIDTH_IN_PIPES)
    console.print(table)


def tell_files(paths: list[Path]) -> None:
    """Print where files were written, one a line."""
    for path in paths:
        say(str(path), style="cyan")


def is_terminal() -> bool:
    """Whether complaints, and so progress bars, go to a person."""
    return _err.is_terminal


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, where that is a terminal; yields the function to tell the finished count and a note."""
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=_err, transient=True, disable=not is_terminal()) as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
