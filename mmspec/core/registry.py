"""Tables from a short name to a class, loaded on first use. Adding a method is one file and one line in its table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


class Registry:
    """Immutable table of the classes of one kind.

    Args:
        kind: What the table holds, for messages ("acceptance rule").
        table: Short name to ``"module:Class"``.
    """

    def __init__(self, kind: str, table: Mapping[str, str]) -> None:
        self.kind = kind
        self._table = dict(table)

    @property
    def names(self) -> list[str]:
        return sorted(self._table)

    def exports(self) -> dict[str, str]:
        """Class name to module, for the table of public names."""
        return {entry.split(":")[1]: entry.split(":")[0] for entry in self._table.values()}

    def load(self, name: str) -> Any:
        """Return the class called ``name``; ValueError with the legal names if there is none."""
        if name not in self._table:
            raise ValueError(f"Unknown {self.kind} {name!r}; choose one of {', '.join(self.names)}.")
        module, _, attribute = self._table[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def create(self, name: str, **settings: Any) -> Any:
        """Build the object called ``name``; an unknown setting raises TypeError as any constructor does."""
        return self.load(name)(**settings)
