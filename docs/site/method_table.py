"""Write the tables of docs/method-table.md from the registries, so that they say what the code does.

Usage: python docs/site/method_table.py [--check]    (--check only tells whether the page is up to date)
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.registry import Registry
from mmspec.core.verify import Guarantee
from mmspec.drafters import DRAFTERS
from mmspec.schedules import SCHEDULES

PAGE = Path(__file__).resolve().parents[1] / "method-table.md"
BEGIN, END = "<!-- {}: made by docs/site/method_table.py -->\n", "<!-- end of {} -->\n"

#: settings with which a rule promises something else than with its defaults
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("budgeted", {"budget": 0.0}),
    ("cool", {"delta": 1.0, "nu": 0.0}),
    ("grouped", {"group_size": 1}),
    ("lantern", {"delta": 0.0}),
    ("lantern", {"lam": 1.0}),
)


def rules_table() -> str:
    """Every rule with its guarantee at the default settings, and the drafts it takes."""
    rows = []
    for name, kind, made in _entries(ACCEPTANCE_RULES):
        laws = "all" if len(made.legal_laws) == 5 else ", ".join(sorted(law.value for law in made.legal_laws))
        bound = "" if made.step_tv_bound is None else f"{made.step_tv_bound:.3g}"
        rows.append([f"`{name}`", f"`{kind.__name__}`", f"`{made.guarantee.value}`", bound, laws, _summary(kind)])
    return _table(["name", "class", "guarantee", "step TV at most", "drafts", "what it does"], rows)


def variants_table() -> str:
    """Settings that change a guarantee."""
    rows = []
    for name, settings in VARIANTS:
        made, plain = ACCEPTANCE_RULES.create(name, **settings), ACCEPTANCE_RULES.create(name)
        assert made.guarantee is not plain.guarantee, f"{name} promises the same with {settings}"
        text = ", ".join(f"{key}={value}" for key, value in settings.items())
        rows.append([f"`{type(made).__name__}({text})`", f"`{made.guarantee.value}`"])
    return _table(["settings", "guarantee"], rows)


def drafters_table() -> str:
    """Every drafter, the law of its drafts at the default settings, and its form."""
    rows = []
    for name, kind, made in _entries(DRAFTERS):
        form = "chains" if made.max_siblings == 1 else "may be trees"
        settings = ", ".join(f"`{each}`" for each in _settings(kind))
        rows.append([f"`{name}`", f"`{kind.__name__}`", made.law.value, form, _summary(kind), settings])
    return _table(["name", "class", "drafts", "form", "what it does", "settings"], rows)


def schedules_table() -> str:
    """Every schedule with what its output is worth where its order is not plain decoding's."""
    rows = [
        [f"`{name}`", f"`{kind.__name__}`", f"`{made.worth.value}`", _summary(kind)]
        for name, kind, made in _entries(SCHEDULES)
    ]
    return _table(["name", "class", "guarantee", "what it does"], rows)


def guarantees_table() -> str:
    """The guarantees, strongest first, with the words of their definition."""
    source = inspect.getsource(Guarantee)
    rows = []
    for kind in Guarantee:
        rows.append([f"`{kind.value}`", source.split(f'{kind.name} = "{kind.value}"')[1].split('"""')[1]])
    return _table(["guarantee", "meaning"], rows)


TABLES = {
    "guarantees": guarantees_table, "rules": rules_table, "variants": variants_table, "drafters": drafters_table,
    "schedules": schedules_table,
}  # fmt: skip


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text()
    for name, make in TABLES.items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        if not (begin and end):
            raise ValueError(f"{PAGE.name} has no place for the table of {name}.")
        text = before + begin + make() + end + after
    return text


def _entries(registry: Registry) -> list[tuple[str, type, Any]]:
    return [(name, registry.load(name), registry.create(name)) for name in registry.names]


def _summary(kind: type) -> str:
    """The first paragraph of a class's docstring, fit for a cell."""
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)  # the roles of Sphinx mean nothing in Markdown
    return text.replace("``", "`").replace("|", "\\|")


def _settings(kind: type) -> list[str]:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "norm_eps", "rope_theta", "target", "prior")
    names = [name for name in inspect.signature(kind).parameters if name not in sizes and "num_heads" not in name]
    return [name for name in names if name not in ("num_layers", "num_kv_heads", "head_dim")]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
