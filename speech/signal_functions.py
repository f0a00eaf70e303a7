"""The functions of torchaudio that are used here, and what to do where torchaudio does not load."""

from __future__ import annotations

from mmspec.models.versions import version_of

try:
    from torchaudio.functional import forced_align, resample
except (ImportError, OSError) as error:
    raise ImportError(
        f"torchaudio {version_of('torchaudio')} does not load beside torch {version_of('torch')}; install both of one "
        "build, as `pip install torch torchaudio` does, or both from the CPU index of PyTorch."
    ) from error

__all__ = ["forced_align", "resample"]
