"""What the site needs beyond the Markdown files: model cards as pages, links out of docs/, and the sources for docstrings."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "mmspec" / "checkpoints"

LICENCES = ("LICENSE", "NOTICE")


_LINK = re.compile(r"(?P<begin>!?\[(?P<text>[^\]]*)\]\()(?P<link>[^)\s#]+)(?P<end>[^)]*\))")
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([^`]+)`")
_sources = tempfile.TemporaryDirectory(prefix="mmspec-docs-")


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config: Any) -> Any:
    """Drop absent pages from the navigation, and lay out the package as it is installed."""
    _lay_out(Path(_sources.name) / "mmspec")
    config.mdx_configs["pymdownx.snippets"]["base_path"] = [str(ROOT)]  # wherever the command was started
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_sources.name]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the model cards, and the files beside them that pages link to."""
    for name, card in _cards().items():
        files.append(File.generated(config, name, abs_src_path=str(card)))
    for picture in (ROOT / "demos").glob("*.png"):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    for notice in (path for name in LICENCES for path in CHECKPOINTS.glob(f"*/{name}")):
        files.append(
            File.generated(config, f"embedded/{notice.parent.name}-{notice.name}.txt", abs_src_path=str(notice))
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Point links to files outside docs/ at what the site has of them."""
    source, docs = Path(page.file.abs_src_path or "").resolve(), Path(config.docs_dir).resolve()

    def goal(match: re.Match[str]) -> str:
        link = match["link"]
        target = (source.parent / link).resolve()
        if "://" in link or (target.is_relative_to(docs) and source.is_relative_to(docs)):
            return match[0]
        if place := _place(target):
            return match["begin"] + _relative(place, page.file.src_uri) + match["end"]
        return match["text"] if target.exists() else match[0]  # a file that the site does not show is named only

    return _LINK.sub(goal, markdown)


def on_shutdown() -> None:
    _sources.cleanup()


def _cards() -> dict[str, Path]:
    """Model cards by their place on the site."""
    return {f"embedded/{card.parent.name}.md": card for card in sorted(CHECKPOINTS.glob("*/README.md"))}


def _place(target: Path) -> str | None:
    """Where a file outside docs/ is on the site, ``None`` if it is nowhere."""
    if target.is_relative_to(CHECKPOINTS):
        folder, name = target.relative_to(CHECKPOINTS).parts[0], target.name
        places = {"README.md": f"embedded/{folder}.md"}
        return places.get(name, f"embedded/{folder}-{name}.txt" if name in LICENCES else None)
    if target.parent == ROOT / "demos" and target.suffix == ".png":
        return f"pictures/{target.name}"
    return target.relative_to(ROOT / "docs").as_posix() if target.is_relative_to(ROOT / "docs") else None


def _relative(place: str, page: str) -> str:
    return os.path.relpath(place, PurePosixPath(page).parent).replace(os.sep, "/")


def _lay_out(package: Path) -> None:
    """Copy the sources to ``package``; the roles of Sphinx in docstrings become Markdown."""
    folders = {"": "mmspec", **{name: name for name in ("image", "speech", "vlm", "pipelines")}}
    for inside, outside in folders.items():
        for file in (ROOT / outside).rglob("*.py"):
            copied = package / inside / file.relative_to(ROOT / outside)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_text(_ROLE.sub(r"`\1`", file.read_text()))
            shutil.copystat(file, copied)
