"""``mmspec doctor``: whether this installation works, and what is missing for what."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

import mmspec
from mmspec.cli.output import say, show
from mmspec.models.versions import version_of

GIB = 1 << 30
STYLES = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "broken": "[red]broken[/]"}
REQUIRED = ("torch", "torchaudio", "diffusers", "transformers", "accelerate", "safetensors", "tokenizers")
OPTIONAL = {
    "torchvision": "nothing in mmspec",
    "gradio": "the demo apps: pip install mmspec[demo]",
    "matplotlib": "the figures of bench all: pip install mmspec[bench]",
    "jiwer": "word errors in bench asr: pip install mmspec[bench]",
    "ray": "batch jobs on several processes: pip install mmspec[batch]",
    "resvg_py": "training on emoji: pip install mmspec[train]",
}
FAMILIES = {
    "LlamaGen pictures": "torch, diffusers; captions also transformers and tokenizers",
    "speech": "torch, transformers, torchaudio, soundfile",
    "vision-language": "torch, transformers",
}


@dataclass(frozen=True)
class Check:
    """One line of the report; ``state`` is a key of :data:`STYLES`."""

    name: str
    state: str
    detail: str


def doctor() -> None:
    """Check versions, libraries that must fit one another, devices and the embedded checkpoints.

    The exit code is 1 if something is broken.

    [bold]Example[/]: mmspec doctor
    """
    checks = [*check_packages(), *check_pairs()]
    if not any(check.state == "broken" and check.name == "torch" for check in checks):
        checks += [*check_devices(), *check_checkpoints()]
    checks += [Check(f"needs of {family}", "ok", needs) for family, needs in FAMILIES.items()]
    table = Table(title=f"mmspec {mmspec.__version__}, Python {platform.python_version()}", title_justify="left")
    for column in ("what", "state", "detail"):
        table.add_column(column)
    for check in checks:
        table.add_row(check.name, STYLES[check.state], Text(check.detail))
    show(table)
    broken = [check.name for check in checks if check.state == "broken"]
    if broken:
        say(f"Broken: {', '.join(broken)}.", style="red")
        raise typer.Exit(1)
    say("Everything that is installed works.", style="green")


def tested_ranges() -> dict[str, str]:
    """Version range of each dependency, from the package's metadata or, in a source tree, from pyproject.toml."""
    from importlib import metadata  # it loads the parser of e-mails, which no other command needs

    from packaging.requirements import Requirement

    try:
        listed = metadata.requires("mmspec") or []
    except metadata.PackageNotFoundError:
        listed = _source_requirements()
    parsed = [Requirement(text) for text in listed]
    return {requirement.name: str(requirement.specifier) for requirement in parsed if requirement.marker is None}


def _source_requirements() -> list[str]:
    project = Path(mmspec.__file__).resolve().parent.parent / "pyproject.toml"
    try:
        import tomllib  # Python 3.11
    except ImportError:
        return []
    return tomllib.loads(project.read_text())["project"]["dependencies"] if project.is_file() else []


def check_packages() -> list[Check]:
    """Versions of the libraries, against the tested ranges."""
    from packaging.specifiers import SpecifierSet

    ranges = tested_ranges()
    checks = []
    for name in REQUIRED:
        version, tested = version_of(name), ranges.get(name, "")
        if version is None:
            checks.append(Check(name, "broken", f"not installed; pip install '{name}{tested}'"))
        elif not SpecifierSet(tested).contains(version, prereleases=True):
            checks.append(Check(name, "note", f"{version} lies outside the tested range {tested}"))
        else:
            checks.append(Check(name, "ok", f"{version} (tested: {tested or 'any'})"))
    for name, use in OPTIONAL.items():
        checks.append(Check(name, "ok", version_of(name) or f"not installed; needed for {use}"))
    return checks


def check_pairs() -> list[Check]:
    """Whether the compiled companions of torch load beside it, each in a process of its own."""
    checks = []
    for name in ("torchaudio", "torchvision"):
        if version_of(name) is None:
            continue
        result = run_python(f"import torch, {name}")
        torch_version, version = version_of("torch") or "none", version_of(name)
        if result.returncode == 0:
            checks.append(Check(f"{name} beside torch", "ok", f"{version} loads with torch {torch_version}"))
            continue
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        fix = f"pip install --force-reinstall torch {name}, both from the same index"
        detail = f"{version} does not load with torch {torch_version}: {reason} Fix: {fix}."
        checks.append(Check(f"{name} beside torch", "broken", detail))
    return checks


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def check_devices() -> list[Check]:
    """Processor threads, memory, and accelerators."""
    import psutil
    import torch

    memory = psutil.virtual_memory()
    free = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    checks = [Check("cpu", "ok", f"{torch.get_num_threads()} threads, {free}")]
    for index in range(torch.cuda.device_count()):
        free_bytes, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        checks.append(Check(f"cuda:{index}", "ok", f"{name}, {free_bytes / GIB:.1f} of {total / GIB:.1f} GiB free"))
    if torch.backends.mps.is_available():
        checks.append(Check("mps", "ok", "Apple GPU"))
    return checks


def check_checkpoints() -> list[Check]:
    """Names and shapes of the tensors of every embedded checkpoint."""
    from mmspec.models.loading import EMBEDDED, embedded_checkpoints

    names = embedded_checkpoints()
    if not names:
        return [Check("embedded checkpoints", "note", "none in this installation")]
    return [check_folder(name, EMBEDDED / name.removeprefix("mmspec/")) for name in names]


def check_folder(name: str, folder: Path) -> Check:
    """Check every model of a saved pipeline without loading it."""
    import torch

    from mmspec.models.loading import check_weights, read_json

    models, part = 0, "model_index.json"
    try:
        for part, entry in read_json(folder / "model_index.json").items():
            component = _component(entry)
            if isinstance(component, type) and issubclass(component, torch.nn.Module):
                check_weights(folder / part, component)
                models += 1
    except (ValueError, OSError, ImportError, AttributeError) as error:
        return Check(name, "broken", f"{part}: {error}")
    return Check(name, "ok", f"{models} models, names and shapes right")


def _component(entry: Any) -> Any:
    """The class that an entry of ``model_index.json`` names, ``None`` if it names none."""
    if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(text, str) for text in entry)):
        return None
    library = __import__(entry[0]) if entry[0] in ("mmspec", "diffusers", "transformers") else None
    component = getattr(library, entry[1], None)
    if component is None:
        raise ValueError(f"It wants {entry[0]}.{entry[1]}, which does not exist here.")
    return component
