"""What every output of a batch says about how it was made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.batch.manifest import Row
from mmspec.core.stats import DecodeStats
from mmspec.models.versions import versions


def weights_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of all weight files in ``folder``, shortened to 16 digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def provenance(row: Row, stats: DecodeStats, model: Mapping[str, str]) -> dict[str, Any]:
    """Facts about the output of ``row``; ``model`` names it and its weights."""
    return {
        "id": row.id,
        **row.given,
        "seed": row.seed,
        "method": stats.method,
        "guarantee": stats.guarantee.value,
        **model,
        "versions": versions(),
    }
