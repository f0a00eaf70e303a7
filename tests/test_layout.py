"""The package list equals the tree, imports go one way, and the library is quiet, strict and quick to import."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mmspec

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
TOP = {
    "mmspec": ROOT / "mmspec",
    **{f"mmspec.{name}": ROOT / name for name in ("image", "speech", "vlm", "pipelines")},
}

BASE = {"core"}
MODELS = {*BASE, "runner", "models"}
METHODS = {*MODELS, "acceptance", "drafters", "schedules"}
MODALITIES = {"image", "speech", "vlm"}
BELOW_PIPELINES = {*METHODS, *MODALITIES, "checkpoints"}
EVERYTHING = {*BELOW_PIPELINES, "pipelines", "batch", "bench", "training", "cli"}
#: what each part may import
ALLOWED = {
    "core": BASE,
    "runner": MODELS,
    "models": MODELS,
    "acceptance": METHODS,
    "drafters": METHODS,
    "schedules": METHODS,
    **{name: {*METHODS, name} for name in MODALITIES},
    "checkpoints": {*BELOW_PIPELINES, "pipelines"},  # a converter ends by writing a pipeline folder
    "pipelines": {*BELOW_PIPELINES, "pipelines"},
    "batch": {*BELOW_PIPELINES, "pipelines", "batch"},
    "bench": EVERYTHING,
    "training": EVERYTHING,
    "cli": EVERYTHING,
    "__main__": {"cli"},
}


def modules() -> dict[str, Path]:
    """Every module of the library by its import name."""
    found = {}
    for package, folder in TOP.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def part_of(module: str) -> str | None:
    return module.split(".")[1] if module.count(".") else None


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("mmspec.") and (name in MODULES or f"{name}" in TOP)}


def test_the_package_list_equals_the_tree() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(setup["packages"]) == sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
    assert {name: ROOT / folder for name, folder in setup["package-dir"].items()} == TOP
    strays = [path for path in MODULES.values() if not (path.parent / "__init__.py").is_file()]
    assert not strays


def test_data_folders_of_checkpoints_hold_no_code() -> None:
    for index in (ROOT / "mmspec" / "checkpoints").glob("*/model_index.json"):
        assert not list(index.parent.rglob("*.py"))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_one_way(module: str) -> None:
    part = part_of(module)
    if part is None:
        return
    assert part in ALLOWED, f"{module} lies in a part without a rule; add one to ALLOWED"
    wrong = {name for name in imports(MODULES[module]) if part_of(name) not in ALLOWED[part]}
    assert not wrong, f"{module} may import {sorted(ALLOWED[part])} only"


def test_the_core_needs_torch_and_the_standard_library_only() -> None:
    for name, path in MODULES.items():
        if part_of(name) != "core":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for imported in names:
                top = imported.split(".")[0]
                assert top in {"mmspec", "torch", *sys.stdlib_module_names}, (name, imported)


def library_code() -> list[Path]:
    return [path for name, path in MODULES.items() if part_of(name) != "cli"]


def test_no_relative_imports() -> None:
    for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_the_library_does_not_print() -> None:
    """Except where a line says why it must, as a child process that answers its parent does."""
    for path in library_code():
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                assert "# noqa: T201 - " in source.splitlines()[node.lineno - 1], f"{path}:{node.lineno}"


def test_weights_are_never_loaded_loosely() -> None:
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load_state_dict":
                loose = [k for k in node.keywords if k.arg == "strict" and getattr(k.value, "value", True) is False]
                assert not loose, path


def test_the_global_random_state_is_never_seeded() -> None:
    pattern = re.compile(r"torch\.(cuda\.)?manual_seed|np\.random\.seed|(?<!\w)random\.seed\(")
    for path in library_code():
        if part_of(next(name for name, p in MODULES.items() if p == path)) not in ("training", "bench"):
            assert not pattern.search(path.read_text()), path


@pytest.mark.parametrize("name", mmspec.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(mmspec, name) is not None
    assert name in dir(mmspec)


def test_unknown_public_name_raises() -> None:
    with pytest.raises(AttributeError, match="NoSuchThing"):
        mmspec.NoSuchThing  # noqa: B018


PROBE = """
import json, sys, time
begin = time.process_time()
import mmspec
spent = time.process_time() - begin
print(json.dumps({"seconds": spent, "heavy": sorted({"torch", "diffusers", "transformers", "numpy"} & sys.modules.keys())}))
"""


def test_import_is_quick_and_loads_no_torch() -> None:
    runs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    assert runs[0]["heavy"] == []
    assert min(run["seconds"] for run in runs) < 0.3


def test_every_module_states_its_purpose() -> None:
    for name, path in MODULES.items():
        if path.read_text().strip():
            assert ast.get_docstring(ast.parse(path.read_text())), name


def test_modules_import_alone() -> None:
    """No module relies on another having been imported first."""
    for name in ("mmspec.core.loop", "mmspec.runner.runner", "mmspec.drafters.jacobi"):
        assert importlib.import_module(name)
