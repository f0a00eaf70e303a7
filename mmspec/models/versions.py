"""Versions of the libraries that decide what a run computes; read from package metadata, nothing is imported. Also the processor."""

from __future__ import annotations

import os
import platform

import mmspec

RECORDED = ("torch", "diffusers", "transformers")


def version_of(package: str) -> str | None:
    """Installed version of ``package``, ``None`` if it is not installed."""
    from importlib import metadata  # it loads the parser of e-mails: commands that ask for no version should not wait

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions to record beside a result: mmspec, Python and the libraries of :data:`RECORDED`."""
    libraries = {name: version_of(name) or "not installed" for name in RECORDED}
    return {"mmspec": mmspec.__version__, "python": platform.python_version(), **libraries}


def processor() -> str:
    """Name of the processor and the number of its logical cores, to record beside a measured time."""
    names = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # elsewhere ``platform`` knows, on Linux it says x86_64
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        pass
    return f"{(names or [platform.processor() or platform.machine()])[0]}, {os.cpu_count()} cores"
