"""``--drafter NAME --acceptance NAME --set drafter.window=16``: components from words, checked by their constructors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KINDS = ("drafter", "acceptance", "schedule")


def parse_assignments(assignments: Sequence[str], kinds: Sequence[str] = KINDS) -> dict[str, dict[str, Any]]:
    """Read ``kind.name=value`` entries; values are JSON, anything that is not JSON is a string.

    Raises:
        ValueError: If an entry has another form, another kind, or is given twice.
    """
    parsed: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    for assignment in assignments:
        target, equals, value = assignment.partition("=")
        kind, dot, name = target.partition(".")
        if not (equals and dot and name) or kind not in kinds:
            legal = " or ".join(f"{kind}.NAME=VALUE" for kind in kinds)
            raise ValueError(f"--set takes {legal}, got {assignment!r}.")
        if name in parsed[kind]:
            raise ValueError(f"--set gives {target} twice.")
        parsed[kind][name] = parse_value(value)
    return parsed


def parse_value(text: str) -> Any:
    """``text`` as JSON, or as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def legal_settings(component: Any) -> list[str]:
    """Names of the constructor arguments of a class."""
    return [name for name in inspect.signature(component.__init__).parameters if name != "self"]


def check_settings(component: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError that names the legal settings if there is an unknown one."""
    legal = legal_settings(component)
    if unknown := [name for name in settings if name not in legal]:
        choices = f"legal are {', '.join(legal)}" if legal else "it has none"
        raise ValueError(f"{component.__name__} has no setting {', '.join(map(repr, unknown))}; {choices}.")


def build_component(
    kind: str, name: str | None, settings: Mapping[str, Any], saved: Any, source: str | None = None
) -> Any:
    """The component called ``name``, or the ``saved`` one of the checkpoint with changed settings.

    Args:
        kind: One of :data:`KINDS`.
        name: A name of the registry; ``None`` keeps the saved one.
        settings: Constructor arguments, the rest as in the registry's class or in ``saved``.
        saved: The checkpoint's own component or ``None``.
        source: The checkpoint, in which a component with weights finds them; ``weights`` in ``settings`` names another.
    """
    from mmspec.acceptance import ACCEPTANCE_RULES
    from mmspec.drafters import DRAFTERS
    from mmspec.schedules import SCHEDULES

    registry = {"drafter": DRAFTERS, "acceptance": ACCEPTANCE_RULES, "schedule": SCHEDULES}[kind]
    if name is None and not settings:
        return saved
    if name is None and saved is None:
        raise ValueError(
            f"--set changes the {kind}, but the checkpoint has none; add --{kind} with one of {', '.join(registry.names)}."
        )
    component = type(saved) if name is None else registry.load(name)
    if hasattr(component, "with_settings"):  # it has weights
        changes = {key: value for key, value in settings.items() if key != "weights"}
        check_settings(component, changes)
        weights = settings.get("weights", source if name is not None else None)
        made = saved if weights is None else component.from_pretrained(weights)
        return made.with_settings(**changes)
    check_settings(component, settings)
    values = {**(_settings_of(saved) if name is None else {}), **settings}
    if isinstance(values.get("model"), str):  # a draft model, named by its folder
        from mmspec.models.loading import load_component

        values["model"] = load_component(Path(values["model"]))
    return component(**values)


def _settings_of(component: Any) -> dict[str, Any]:
    """The constructor arguments that rebuild ``component``: saved ones, and parts such as a draft model."""
    names = legal_settings(type(component))
    return {name: component.config.get(name, getattr(component, name, None)) for name in names}
