"""Finding checkpoints and loading them strictly: every tensor must be there, and no other.

Names of the form ``mmspec/name`` are the checkpoints embedded in this package; a folder is a folder; anything else is
a hub id, the only case in which the network is touched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

#: options of every loading function that concern the hub
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")

EMBEDDED = Path(__file__).resolve().parent.parent / "checkpoints"


def embedded_checkpoints() -> list[str]:
    """Names of the checkpoints that come with the package, ``mmspec/...``."""
    return sorted(f"mmspec/{folder.parent.name}" for folder in EMBEDDED.glob("*/model_index.json"))


def local_folder(name: str | Path) -> Path | None:
    """Folder of an embedded or local checkpoint; ``None`` for a hub id.

    Raises:
        ValueError: If an embedded checkpoint does not exist, or a path does not hold a pipeline.
    """
    text = str(name)
    if Path(name).is_dir():
        if not (Path(name) / "model_index.json").is_file():
            raise ValueError(f"{text!r} holds no model_index.json, so it is not a saved pipeline.")
        return Path(name)
    if text.startswith("mmspec/"):
        if text not in embedded_checkpoints():
            raise ValueError(f"Unknown checkpoint {text!r}; embedded are {', '.join(embedded_checkpoints())}.")
        return EMBEDDED / text.removeprefix("mmspec/")
    if text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise ValueError(
            f"{text!r} is neither a folder, nor a hub id of the form owner/name, nor one of "
            f"{', '.join(embedded_checkpoints())}."
        )
    return None


def find_config(name: str | Path, **hub: Any) -> tuple[str, dict[str, Any]]:
    """Say what a checkpoint is: a saved ``pipeline`` or a single ``model``, and give its configuration.

    Args:
        name: An embedded name, a folder, or a hub id; only the last touches the network, for one small file.
        hub: Options of :data:`HUB_OPTIONS`.

    Raises:
        ValueError: If there is no such checkpoint, or it holds neither.
    """
    if Path(name).is_dir() and not (Path(name) / "model_index.json").is_file():
        if not (Path(name) / "config.json").is_file():
            raise ValueError(f"{name} holds neither model_index.json nor config.json, so it is no checkpoint.")
        return "model", read_json(Path(name) / "config.json")
    if (folder := local_folder(name)) is not None:
        return "pipeline", read_json(folder / "model_index.json")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    for kind, file in (("pipeline", "model_index.json"), ("model", "config.json")):
        try:
            return kind, read_json(Path(hf_hub_download(str(name), file, **hub)))
        except EntryNotFoundError:
            continue  # also: not in the local cache, while the hub is out of reach
        except (HfHubHTTPError, OSError) as error:
            raise ValueError(f"The hub has no {name!r} for us: {error}") from error
    raise ValueError(f"{name!r} holds neither model_index.json nor config.json, or the hub is out of reach.")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; ValueError that names the file if it is damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the safetensors files of ``folder``.

    Raises:
        ValueError: If there is no safetensors file (pickles are refused) or one is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no safetensors file; pickled weights are refused, convert them first.")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged or cut short: {error}.") from error
    return shapes


def check_weights(folder: Path, model_class: type) -> None:
    """Compare the stored tensors of ``folder`` with what ``model_class`` needs, without loading either.

    Raises:
        ValueError: Naming the missing, unexpected and misshapen tensors.
    """
    model = _on_meta(folder, model_class)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stored = stored_shapes(folder)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ()) | set(
        getattr(model, "_tied_weights_keys", None) or ()
    )
    problems = {
        "missing": sorted(wanted.keys() - stored.keys() - tied),
        "unexpected": sorted(stored.keys() - wanted.keys()),
        "misshapen": [
            f"{name} {stored[name]} instead of {wanted[name]}"
            for name in sorted(wanted.keys() & stored.keys())
            if stored[name] != wanted[name]
        ],
    }
    found = [f"{len(names)} {kind}: {', '.join(names[:8])}" for kind, names in problems.items() if names]
    if found and hasattr(model, "base_model_prefix"):  # a transformers class may store its tensors under older names
        from mmspec.models.hf import check_by_loading

        check_by_loading(folder, model_class)
    elif found:
        raise ValueError(f"The weights in {folder} do not fit {model_class.__name__}; {'; '.join(found)}.")


def _on_meta(folder: Path, model_class: type) -> nn.Module:
    """Build ``model_class`` from the config in ``folder`` without memory for its weights."""
    config = read_json(folder / "config.json")
    with torch.device("meta"):
        if hasattr(model_class, "from_config"):
            return model_class.from_config(config)
        loaded = model_class.config_class.from_dict(config)  # type: ignore[attr-defined]
        return model_class(loaded)


def load_component(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Load a model saved alone, by the class that its config names, strictly."""
    import diffusers
    import transformers

    import mmspec

    config = read_json(folder / "config.json")
    architectures = config.get("architectures") or [""]
    name = config.get("_class_name") or architectures[0]
    library = mmspec if name in mmspec.__all__ else diffusers if config.get("_class_name") else transformers
    model_class = getattr(library, name, None) if name else None
    if model_class is None:
        raise ValueError(f"{folder} holds a {name or 'model without a class name'}, which mmspec cannot load.")
    check_weights(folder, model_class)
    return model_class.from_pretrained(folder, torch_dtype=dtype)


def download_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that say how to fetch a hub repository."""
    names = ("cache_dir", "force_download", "local_files_only", "revision", "token", "variant")
    return {name: kwargs[name] for name in names if name in kwargs}
