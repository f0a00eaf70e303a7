"""Errors of users are one red line and an exit code: 2 for a wrong call, 1 for a run that failed, 130 for Ctrl-C."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from mmspec.cli.output import complain

USAGE = (ValueError, TypeError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
EXPECTED = (*USAGE, MemoryError, OSError, ImportError)


class CommandGroup(TyperGroup):
    """The top-level group: takes ``--debug`` anywhere before ``--`` and reports whatever a command raises."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = [argument for argument in args[:end] if argument != "--debug"]
        debug = ["--debug"] if len(rest) < end else []
        return super().parse_args(ctx, [*debug, *rest, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_warning
                return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("Interrupted.")
            raise typer.Exit(130) from None
        except Exception as error:
            if isinstance(error, (typer.Abort, BrokenPipeError)) or hasattr(error, "exit_code"):
                raise  # typer's own
            if ctx.params.get("debug"):
                complain(traceback.format_exc().rstrip())
            complain(describe(error))
            raise typer.Exit(2 if isinstance(error, USAGE) else 1) from None


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the place in the source."""
    complain(f"Warning: {' '.join(str(message).split())}", style="yellow")


def describe(error: Exception) -> str:
    """``error`` on one line, with its type where it is nothing that a user could have caused."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, EXPECTED):
        return f"Error: {text}"
    return f"Error: {type(error).__name__}: {text} (add --debug to see where)"
