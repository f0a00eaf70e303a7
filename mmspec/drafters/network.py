"""Base of the drafters that are networks: loading from a checkpoint, and other settings on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from diffusers import ConfigMixin

from mmspec.core.controllers import Controller, CostCurve, FixedController
from mmspec.drafters.base import Drafter, DraftSetup, hidden_size_of, make_controller
from mmspec.drafters.fingerprint import check_fingerprint
from mmspec.models.loading import local_folder, read_json
from mmspec.models.strict import StrictModelMixin

if TYPE_CHECKING:
    from typing_extensions import Self


class DrafterNetwork(StrictModelMixin, ConfigMixin, Drafter):
    """A drafter with weights.

    Attributes:
        folder: Its folder within that of a pipeline.
        recipe: The command that trains one.
    """

    folder: ClassVar[str]
    recipe: ClassVar[str]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load the drafter of an embedded checkpoint (``mmspec/emoji-t2i``), a folder, or a hub id.

        Args:
            pretrained_model_name_or_path: What to load. A folder may be the drafter's own or that of a pipeline.
            kwargs: As for ``ModelMixin.from_pretrained``, and settings to change, such as ``tree="chain"``.
                ``subfolder`` defaults to :attr:`folder` in a pipeline, ``torch_dtype`` to float32.

        Raises:
            ValueError: If the checkpoint is unknown or has no such drafter, or a tensor is missing or superfluous.
        """
        place: str | Path = pretrained_model_name_or_path
        if str(place).startswith("mmspec/"):
            place = local_folder(place) or place
        if (Path(place) / "model_index.json").is_file():
            subfolder = Path(place) / kwargs.setdefault("subfolder", cls.place_in(Path(place)))
            if not subfolder.is_dir():
                raise ValueError(
                    f"{pretrained_model_name_or_path} has no {cls.folder.replace('_', ' ')}: there is no {subfolder.name} "
                    f"in it. Train one with `{cls.recipe}`, or name another folder."
                )
        kwargs.setdefault("torch_dtype", torch.float32)
        return super().from_pretrained(place, **kwargs)

    @classmethod
    def place_in(cls, pipeline: Path) -> str:
        """Sub-folder of a saved ``pipeline`` with the weights: ``drafter`` where that is of this class, else :attr:`folder`."""
        recommended = read_json(pipeline / "model_index.json").get("drafter") or [None, None]
        return "drafter" if recommended[1] == cls.__name__ else cls.folder

    def controller(self, costs: CostCurve) -> Controller:
        if self.config.controller == "fixed":
            return WholeTree(self.max_nodes)
        return make_controller(self.config.controller, self.max_nodes, costs, self.config.prior)

    def check_vocabulary(self, vocab_size: int) -> None:
        compare_sizes("vocabulary", self.config.vocab_size, vocab_size)

    def check_target(self, network: Any) -> None:
        compare_sizes("hidden size", self.config.hidden_size, hidden_size_of(network))
        if self.config.target is not None:
            check_fingerprint(self.config.target, network)

    def check_states(self, setup: DraftSetup) -> None:
        """Raise ValueError unless the target of ``setup`` hands out the states of its layers."""
        model, name = getattr(setup.runner, "model", None), type(self).__name__
        if model is None or not hasattr(model, "taps"):
            raise ValueError(
                f"{name} reads the states of its target's layers, which {type(model).__name__} does not hand out; "
                "choose another drafter for this model, such as NGramDrafter()."
            )
        if setup.runner.guidance.branches > 1:
            raise ValueError(f"{name} drafts for targets without guidance only.")

    def check_taps(self, setup: DraftSetup) -> None:
        """Raise ValueError unless the target of ``setup`` hands out the states of the layers ``config.taps``."""
        self.check_states(setup)
        model = setup.runner.model
        if self.config.taps[-1] >= model.num_layers:
            raise ValueError(
                f"`taps` {list(self.config.taps)} must be below the {model.num_layers} layers of the target, whose last "
                "state only comes normalised."
            )

    def to(self, *args: Any, **kwargs: Any) -> Self:
        super().to(*args, **kwargs)
        return self

    def with_settings(self, **changes: Any) -> Self:
        """A drafter with other settings on the same weights, e.g. ``with_settings(tree="chain", num_nodes=6)``.

        Raises:
            TypeError, ValueError: As the constructor does.
        """
        settings = {name: value for name, value in dict(self.config).items() if not name.startswith("_")}
        with torch.device("meta"):
            changed = type(self)(**{**settings, **changes})
        changed.load_state_dict(self.state_dict(), strict=True, assign=True)
        return changed.requires_grad_(False).eval()


class WholeTree(FixedController):
    """Always the same width: it is a tree's depth, not its width, that the end of a row limits."""

    def plan(self, limit: int, rows: int) -> int:
        return self.width if limit > 1 else 1


def compare_sizes(what: str, drafted: int, wanted: int) -> None:
    """Raise ValueError if what a drafter has differs from what the target wants."""
    if drafted != wanted:
        raise ValueError(
            f"`drafter` has a {what} of {drafted} but the target's is {wanted}; load a drafter that was trained for "
            "this model."
        )
