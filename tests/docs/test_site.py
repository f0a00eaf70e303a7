"""The site is whole: its navigation, its tables, its reference, and, where mkdocs is installed, the site itself."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import mmspec
from tests.docs.reading import DOCS, PAGES, ROOT, name_of

SITE = DOCS / "site"
#: names that only serve diffusers when it loads a saved pipeline
NOT_OURS = {"ModelMixin", "SchedulerMixin", "PreTrainedModel", "__version__"}


def navigation() -> list[str]:
    """The pages of the navigation in their order."""

    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for value in (entry.values() if isinstance(entry, dict) else entry) for page in pages(value)]

    return pages(yaml.safe_load((SITE / "mkdocs.yml").read_text())["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    listed = navigation()
    assert len(listed) == len(set(listed))
    assert {name_of(page) for page in PAGES} <= set(listed)


def test_the_navigation_names_pages_that_exist() -> None:
    cards = {f"embedded/{card.parent.name}.md" for card in (ROOT / "mmspec" / "checkpoints").glob("*/README.md")}
    there = {name_of(page) for page in PAGES} | cards
    assert cards <= set(navigation())
    assert set(navigation()) == there


def test_relative_links_of_pages_and_readme_exist() -> None:
    for page in (ROOT / "README.md", *PAGES):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def method_table() -> Any:
    spec = importlib.util.spec_from_file_location("method_table", SITE / "method_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_methods_is_that_of_the_registries() -> None:
    table = method_table()
    assert table.PAGE.read_text() == table.page(), "run python docs/site/method_table.py"


def test_a_changed_guarantee_makes_the_table_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmspec.RatioAcceptance, "guarantee", mmspec.Guarantee.HEURISTIC)
    table = method_table()
    assert table.PAGE.read_text() != table.page()


def references() -> list[str]:
    """What the pages of the reference describe."""
    return [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)]


@pytest.mark.parametrize("name", references())
def test_what_the_reference_describes_exists_and_has_a_docstring(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        described = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        described = importlib.import_module(name)
    assert described.__doc__


def test_the_reference_holds_every_public_name() -> None:
    assert set(mmspec.__all__) - NOT_OURS <= {name.rpartition(".")[2] for name in references()}


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(SITE / "mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "PeriodSession" in (tmp_path / "guides" / "new-drafter.html").read_text()
    assert "num_images_per_prompt" in (tmp_path / "api" / "pipelines.html").read_text()
    assert (tmp_path / "embedded" / "tiny-asr.html").is_file()
