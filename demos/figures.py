"""Draw the figures of the docs, and write every table, from the committed bench results in this folder.

Usage: python demos/figures.py [--check]    (--check only tells whether figures and tables are up to date)

A figure holds the hash of its result and of the code that draws it, so that a stale one is noticed without drawing it again.
"""

import hashlib
import json
import sys
from pathlib import Path

from PIL import Image

from mmspec.bench import plots

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: made by demos/figures.py -->\n", "<!-- end of figures -->\n"
DIGEST = "Source"
TITLES = {
    "image": "Pictures", "acceptance": "Pictures, twelve of them", "methods": "Pictures, all methods at temperature 1", "methods-flat": "Pictures, a flat law", "asr": "Speech recognition",
    "tts": "Text to speech", "video": "Video", "vlm": "Questions about pictures", "batch": "Batches",
}  # fmt: skip
CAPTIONS = {
    "ratios": "forwards, wall clock and limit", "time": "where the time goes", "acceptance": "where drafts are accepted",
}  # fmt: skip


#: results of which only some figures are wanted, since another one has more items for the rest
ONLY = {"acceptance": ("acceptance",)}


def results() -> dict[str, Path]:
    """The committed results by name, those of :data:`TITLES` first and in that order."""
    found = {path.stem.removeprefix("bench-"): path for path in sorted((ROOT / "demos").glob("bench-*.json"))}
    return {name: found[name] for name in (*(n for n in TITLES if n in found), *(n for n in found if n not in TITLES))}


def digest(result: Path) -> str:
    """What a figure of ``result`` depends on."""
    content = result.read_bytes() + Path(plots.__file__).read_bytes()
    return hashlib.sha256(content).hexdigest()


def wanted() -> dict[Path, tuple[str, Path]]:
    """Every figure that there should be, with its kind and its result."""
    figures = {}
    for name, path in results().items():
        for kind in plots.figures_of(json.loads(path.read_text())):
            if kind in ONLY.get(name, (kind,)):
                figures[FIGURES / f"{name}-{kind}.png"] = (kind, path)
    return figures


def stale() -> list[Path]:
    """Figures that are missing, that show other results, or that nothing asks for."""
    there = set(FIGURES.glob("*.png"))
    figures = wanted()
    old = [path for path, (_, result) in figures.items() if path in there and digest_in(path) != digest(result)]
    return sorted({*old, *(figures.keys() - there), *(there - figures.keys())})


def digest_in(path: Path) -> str | None:
    """The digest that the figure at ``path`` holds."""
    with Image.open(path) as figure:
        return figure.info.get(DIGEST)


def draw() -> None:
    """Draw what is stale."""
    figures = wanted()
    for path in stale():
        if path not in figures:
            path.unlink()
            continue
        kind, result = figures[path]
        make = plots.figures_of(json.loads(result.read_text()))[kind]
        plots.save(make(), path, {DIGEST: digest(result)})


def page() -> str:
    """The page of benchmarks as it should be."""
    lines = []
    for name in results():
        lines.append(f"### {TITLES.get(name, name)}\n")
        lines += [
            f"![{TITLES.get(name, name)}: {CAPTIONS[kind]}](figures/{path.name})\n"
            for path, (kind, result) in wanted().items()
            if result.stem == f"bench-{name}"
        ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after


def main() -> int:
    import readme_table  # beside this script

    pages = readme_table.pages() | {PAGE: page()}
    if "--check" in sys.argv:
        old = [*stale(), *(path for path, text in pages.items() if text != path.read_text())]
        for path in old:
            print(f"{path.relative_to(ROOT)} is stale: run python demos/figures.py")
        return int(bool(old))
    draw()
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
