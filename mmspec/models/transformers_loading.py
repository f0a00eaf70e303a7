"""Loading a model of transformers strictly, by what the loader itself reports.

The names of its stored tensors need not be those of its parameters: transformers renames on loading and saving, so the
files cannot be compared with the class by name alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec.models.loading import stored_shapes
from mmspec.models.strict import list_names


def load_transformers_model(name: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load the model that the config of ``name``, a folder or hub id, names.

    Raises:
        ValueError: If it names no class of transformers, a file of weights is pickled or damaged, or a tensor is missing,
            superfluous or misshapen.
    """
    if Path(name).is_dir():
        stored_shapes(Path(name))  # transformers would not say which file is damaged
    config = transformers.AutoConfig.from_pretrained(name)
    class_name = (config.architectures or [""])[0]
    model_class = getattr(transformers, class_name, None)
    if model_class is None:
        raise ValueError(f"{name} names no model class of transformers: {config.architectures}.")
    model, info = model_class.from_pretrained(name, dtype=dtype, output_loading_info=True)
    problems = []
    for key, kind in (
        ("missing_keys", "missing"),
        ("unexpected_keys", "unexpected"),
        ("mismatched_keys", "misshapen"),
    ):
        names = [entry if isinstance(entry, str) else str(entry[0]) for entry in info.get(key) or []]
        problems += [f"{len(names)} {kind}: {list_names(names)}"] if names else []
    if problems:
        raise ValueError(f"The weights of {name} do not fit {class_name}. Tensors {'; '.join(problems)}.")
    return model.eval()
