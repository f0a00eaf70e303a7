"""Nearest codes of every code of a codebook, computed once and kept on disk under the hash of the codebook.

Distances are Euclidean between the vectors *as the model uses them*: LlamaGen's quantiser normalises its rows, and the
neighbours of raw rows are others.

Symbols: K codes, E code width, C columns of the table.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from huggingface_hub import cached_assets_path
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

logger = logging.getLogger("mmspec.image.neighbours")

#: distances computed at a time, bounds the memory of building a table
_BLOCK = 1 << 24


def nearest_codes(codebook: Tensor, count: int) -> Tensor:
    """The ``count`` nearest other codes of each code (K, C) int32, by increasing distance, the lower code first on a tie.

    Args:
        codebook: Vectors as the model uses them (K, E).
        count: Columns C wanted; a table has at most K - 1.
    """
    vectors = codebook.detach().cpu().double()
    size = len(vectors)
    count = min(count, size - 1)
    rows = []
    for start in range(0, size, max(1, _BLOCK // size)):
        stop = min(size, start + max(1, _BLOCK // size))
        # direct differences: |a|^2 + |b|^2 - 2ab would blur near twins
        distance = torch.cdist(vectors[start:stop], vectors, compute_mode="donot_use_mm_for_euclid_dist")
        distance[torch.arange(stop - start), torch.arange(start, stop)] = torch.inf
        rows.append(_smallest(distance, count).int())
    return torch.cat(rows)


def _smallest(distance: Tensor, count: int) -> Tensor:
    """Columns of the ``count`` smallest entries of each row (n, K), in order, the lower column first on a tie."""
    spare = min(distance.shape[1], count + 16)
    values, columns = distance.topk(spare, dim=-1, largest=False)
    if spare < distance.shape[1] and bool((values[:, count - 1] == values[:, -1]).any()):
        # more equal entries than were taken: which of them topk takes is not defined
        return distance.argsort(dim=-1, stable=True)[:, :count]
    columns, order = columns.sort(dim=-1)
    by_value = values.gather(1, order).argsort(dim=-1, stable=True)
    return columns.gather(1, by_value)[:, :count]


def codebook_hash(codebook: Tensor) -> str:
    """SHA-256 of the shape and the float32 bytes of ``codebook``."""
    values = codebook.detach().float().cpu().contiguous()
    header = f"{tuple(values.shape)} float32 ".encode()
    return hashlib.sha256(header + values.numpy().tobytes()).hexdigest()


def neighbour_table(codebook: Tensor, count: int, cache_dir: str | Path | None = None) -> Tensor:
    """:func:`nearest_codes`, from the cache if it is there.

    Args:
        codebook: Vectors as the model uses them (K, E).
        count: Columns wanted.
        cache_dir: Folder of the cache; ``None`` is the user's cache of Hugging Face assets (``HF_ASSETS_CACHE``).
    """
    digest = codebook_hash(codebook)
    count = min(count, len(codebook) - 1)
    folder = _cache_folder(cache_dir)
    file = None if folder is None else folder / f"{digest[:32]}-{count}.safetensors"
    if file is not None and file.is_file():
        try:
            table = load_table(file, codebook)
            if table.shape[1] == count:
                return table
            problem = f"{table.shape[1]} columns"
        except ValueError as error:
            problem = str(error)
        logger.warning("Rebuilding the cached neighbour table %s: %s", file.name, problem)
    table = nearest_codes(codebook, count)
    if file is not None:
        try:
            save_table(table, codebook, file)
        except OSError as error:
            logger.warning("Cannot cache the neighbour table: %s", error)
    return table


def _cache_folder(cache_dir: str | Path | None) -> Path | None:
    try:
        if cache_dir is None:
            return cached_assets_path("mmspec", namespace="neighbours")
        folder = Path(cache_dir)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a read-only home must not stop a call
        logger.warning("No cache for neighbour tables: %s", error)
        return None
    return folder


def save_table(table: Tensor, codebook: Tensor, file: str | Path) -> None:
    """Write ``table`` (K, C) of ``codebook`` to ``file`` at once: readers see the old file or the whole new one."""
    content = save({"neighbours": table.int().contiguous()}, metadata={"codebook": codebook_hash(codebook)})
    file = Path(file)
    handle, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(partial).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(partial).unlink()
        raise


def load_table(file: str | Path, codebook: Tensor) -> Tensor:
    """Read a table (K, C) int32 that was saved for exactly this ``codebook``.

    Raises:
        ValueError: If the file is damaged, or belongs to another codebook.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            digest = (stored.metadata() or {}).get("codebook")
            if list(stored.keys()) != ["neighbours"] or digest is None:
                raise ValueError(f"{file} is not a neighbour table of mmspec.")
            table = stored.get_tensor("neighbours")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"The neighbour table {file} is not readable: {error}.") from error
    size = len(codebook)
    if table.ndim != 2 or len(table) != size:
        raise ValueError(f"The neighbour table {file} has shape {tuple(table.shape)}; the codebook has {size} codes.")
    if digest != codebook_hash(codebook):
        raise ValueError(f"The neighbour table {file} belongs to another codebook of {size} codes.")
    if table.dtype != torch.int32 or (table.numel() and not 0 <= int(table.min()) <= int(table.max()) < size):
        raise ValueError(f"The neighbour table {file} names codes that the codebook does not have.")
    return table
