"""Read the tensors of a foreign checkpoint, whatever it is wrapped in, without ever running code from the file.

Knows file formats and wrappers only; which tensors belong to which model is the converters' business.
"""

from __future__ import annotations

import argparse
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from mmspec.models.strict import list_names

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
# What training code puts around a state dict: plain or DDP loops, DeepSpeed, Lightning. FSDP files hold it bare.
_WRAPPERS = ("model", "module", "state_dict")
_INDEX_SUFFIX = ".index.json"


def read_tensors(path: str | Path, ignore: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name.

    Args:
        path: A ``.safetensors`` file, a ``torch.save`` file (``.pt``, ``.pth``, ``.bin``, ``.ckpt``), the index file
            of a sharded checkpoint, or a folder that holds one of these. ``torch.save`` files may hold the
            state dict itself or have it under "model", "module" or "state_dict".
        ignore: Leave out entries whose names contain this, tensors or not.

    Raises:
        ValueError: If the file is damaged, needs code to be run, or does not hold a state dict.
        FileNotFoundError: If there is no such file or folder.
    """
    path = Path(path)
    if path.is_dir():
        path = _find_in_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    if path.name.endswith(_INDEX_SUFFIX):
        return _read_shards(path, ignore)
    if path.suffix == ".safetensors":
        return {name: tensor for name, tensor in _read_safetensors(path).items() if not ignore or ignore not in name}
    if path.suffix in _PICKLED:
        return _unwrap(_read_pickled(path), path, ignore)
    raise ValueError(f"{path.name} is no checkpoint file; legal endings are .safetensors, {', '.join(_PICKLED)}.")


def read_part(folder: str | Path, start: str) -> dict[str, Tensor]:
    """The tensors of the safetensors files in ``folder`` whose names begin with ``start``; no other is read.

    Raises:
        FileNotFoundError: If there are no such files.
        ValueError: If one is damaged.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"There are no safetensors files in {folder}.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys() if name.startswith(start)}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file.name} is damaged or no safetensors file: {error}.") from error
    return tensors


def read_torchscript(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a TorchScript archive by name. Its methods are never called.

    Raises:
        ValueError: If the file is damaged or no TorchScript.
        FileNotFoundError: If there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        return dict(torch.jit.load(str(path), map_location="cpu").state_dict())
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{path.name} is damaged or no TorchScript archive: {str(error).splitlines()[0]}") from error


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Compare names and shapes of ``tensors`` with ``expected``, exactly and both ways.

    Raises:
        ValueError: Naming every missing, unexpected and misshapen tensor, about ten of each kind at most.
    """
    problems = []
    if missing := expected.keys() - tensors.keys():
        problems.append(f"{len(missing)} missing: {list_names(missing)}")
    if unexpected := tensors.keys() - expected.keys():
        problems.append(f"{len(unexpected)} unexpected: {list_names(unexpected)}")
    shapes = {
        f"{name} has shape {tuple(tensors[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    }
    if shapes:
        problems.append(f"{len(shapes)} of another shape: {list_names(shapes)}")
    if problems:
        raise ValueError(f"{source} does not fit the model. Tensors " + "; ".join(problems) + ".")


def _find_in_folder(folder: Path) -> Path:
    """The index of a sharded checkpoint, or else the only weight file."""
    found = sorted(folder.glob(f"*{_INDEX_SUFFIX}"))
    if not found:
        found = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", *_PICKLED))
    # The same weights are often published twice; the format that cannot hold code is preferred.
    safe = [file for file in found if ".safetensors" in file.name]
    found = safe or found
    if len(found) != 1:
        names = list_names(file.name for file in found) or "none"
        raise ValueError(f"{folder} must hold one checkpoint, but the weight files found are: {names}. Name the file.")
    return found[0]


def _read_shards(index: Path, ignore: str | None) -> dict[str, Tensor]:
    try:
        files: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index.name} is not the index of a sharded checkpoint: {error!r}.") from error
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        if Path(file).name != file or file.endswith(_INDEX_SUFFIX):
            raise ValueError(f"{index.name} names the shard {file!r}; shards must lie beside the index.")
        tensors.update(read_tensors(index.parent / file, ignore))
    if missing := {name for name in files if not ignore or ignore not in name} - tensors.keys():
        raise ValueError(f"{len(missing)} tensors of {index.name} are missing in the shards: {list_names(missing)}.")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged or no safetensors file: {error}.") from error


def _read_pickled(path: Path) -> Any:
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip and not zipfile.is_zipfile(path):  # its table of contents, at the end, is gone
        raise ValueError(f"{path.name} is damaged: the file is cut short. Fetch it again.")
    try:
        # Training scripts store their options beside the weights. A Namespace is a bag of values; nothing in it runs.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        reason = str(error).strip()
        if "global" in reason.lower() or "instruction" in reason.lower():
            raise ValueError(
                f"{path.name} is refused: it holds Python objects that only running code from the file could rebuild. "
                f"Save its state dict alone, with tensors as values. ({_blamed_line(reason)})"
            ) from error
        raise ValueError(f"{path.name} is damaged or no torch.save file: {_blamed_line(reason)}.") from error
    except (EOFError, RuntimeError, OSError, KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path.name} is damaged or no torch.save file: {error!r}.") from error


def _blamed_line(reason: str) -> str:
    """The line of torch's long message that says what it met."""
    lines = [line.strip() for line in reason.splitlines() if "WeightsUnpickler error" in line]
    return (lines or reason.splitlines() or ["no reason given"])[0]


def _unwrap(content: Any, path: Path, ignore: str | None) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{path.name} holds a {type(content).__name__} instead of a state dict.")
    for wrapper in _WRAPPERS:
        if isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if ignore:
        content = {name: value for name, value in content.items() if ignore not in str(name)}
    strangers = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if strangers or not content:
        raise ValueError(
            f"{path.name} is not a state dict, and has none under {', '.join(_WRAPPERS)}; "
            f"entries that are no tensors: {list_names(strangers) or 'all, it is empty'}."
        )
    return dict(content)
