"""What the tests of the documentation read out of its pages: fenced blocks, and command lines wherever they stand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md"))

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE
)
_SHELLS = ("", "bash", "console")
#: the first word of a command, behind settings of the environment
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\S*/)?(accelerate|hf|mkdocs|mmspec|pip|python3?|torchrun)(?= )")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line it begins at."""

    language: str
    code: str
    line: int

    @property
    def included(self) -> Path | None:
        """The file that the block shows, ``None`` if it has a text of its own."""
        found = re.fullmatch(r'--8<-- "(.+)"\n', self.code)
        return ROOT / found[1] if found else None


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page in their order."""
    return [
        Block(found["language"], found["code"], text[: found.start()].count("\n") + 1)
        for found in _FENCE.finditer(text)
    ]


def commands(text: str) -> list[str]:
    """Every command line of a page: of fenced blocks of a shell, and of indented code."""
    rest = _FENCE.sub("\n", text)
    indented = "\n".join(line.strip() if line.startswith("    ") else "" for line in rest.splitlines())
    shells = [block.code for block in blocks(text) if block.language in _SHELLS]
    found = []
    for code in [*shells, indented]:
        for line in re.sub(r"\s*\\\n\s*", " ", code).splitlines():
            line = line.strip().removeprefix("$ ")
            if _COMMAND.match(line):
                found.append(line)
    return found


def name_of(page: Path) -> str:
    """Name of a page in messages and in the ids of tests."""
    return page.relative_to(DOCS).as_posix()
