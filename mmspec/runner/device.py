"""Where and in which precision to run."""

from __future__ import annotations

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def pick_device(name: str = "auto") -> torch.device:
    """Return the device called ``name``; ``auto`` is CUDA, else Apple's MPS, else the CPU.

    Raises:
        ValueError: If the device is unknown or absent here.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    kind = name.partition(":")[0]
    if not present.get(kind, False):
        legal = ", ".join(["auto", *(kind for kind, there in present.items() if there)])
        raise ValueError(f"Device {name!r} is not available here; choose one of {legal}.")
    return torch.device(name)


def pick_dtype(name: str = "auto", device: torch.device | None = None) -> torch.dtype:
    """Return the torch dtype called ``name``; ``auto`` is float32, in which exactness is promised.

    Raises:
        ValueError: If the name is unknown.
    """
    if name == "auto":
        return torch.float32
    if name not in DTYPES:
        raise ValueError(f"Unknown dtype {name!r}; choose one of auto, {', '.join(DTYPES)}.")
    return DTYPES[name]
