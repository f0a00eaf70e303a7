"""Loading that refuses incomplete weights.

diffusers only warns when a saved model lacks tensors or holds others, and runs with random ones in their place. For a
target that means worse output, for a drafter that nothing is ever accepted, and in both cases no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diffusers import ModelMixin


def list_names(names: Iterable[str], limit: int = 10) -> str:
    """Join sorted ``names`` for an error message; beyond ``limit``, only their number is given."""
    ordered = sorted(names)
    more = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(ordered[:limit]) + more


class StrictModelMixin(ModelMixin):
    """A ``ModelMixin`` whose ``from_pretrained`` raises unless every tensor, and no other, is in the file."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """Load as ``ModelMixin.from_pretrained`` does.

        Raises:
            ValueError: Naming the missing and the unexpected tensors.
        """
        with_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(pretrained_model_name_or_path, output_loading_info=True, **kwargs)
        problems = [
            f"{len(info[key])} {kind}: {list_names(info[key])}"
            for key, kind in (("missing_keys", "missing"), ("unexpected_keys", "unexpected"))
            if info[key]
        ]
        if problems:
            raise ValueError(
                f"The weights of {pretrained_model_name_or_path} do not fit {cls.__name__}. Tensors "
                + "; ".join(problems)
                + ". Convert or save the model again."
            )
        return (model, info) if with_info else model
