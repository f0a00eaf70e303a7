"""Versions of the libraries that decide what a run computes; read from package metadata, nothing is imported."""

from __future__ import annotations

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
