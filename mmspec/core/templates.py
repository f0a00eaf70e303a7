"""Texts of a fixed form as automata over characters: JSON objects whose keys and types are known.

Everything but the values is fixed, so most characters of such a text need no decision. The form is that of Python's
``json.dumps``: ``{"name": "red apple", "count": 3}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SIMPLE = ("boolean", "integer", "null", "number", "string")
_ESCAPED = '"\\/bfnrt'

State = tuple[int, str]
"""Number of the part, and what was written of it (of a string value only what decides the rest)."""


@dataclass(frozen=True)
class Fixed:
    """A part that says ``text``."""

    text: str


@dataclass(frozen=True)
class Choice:
    """A part that says one of ``texts``, none of which begins another."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class StringValue:
    """The inside of a JSON string; the quotes belong to the parts around."""


@dataclass(frozen=True)
class NumberValue:
    """A JSON number without an exponent.

    Args:
        whole: Whether it has no fraction.
    """

    whole: bool


Part = Fixed | Choice | StringValue | NumberValue


class Template:
    """A sequence of parts.

    Args:
        parts: The parts; between two values there must be a fixed one, whose first character ends the value.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.start: State = (0, "")

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Template:
        """Template of a JSON Schema.

        Args:
            schema: Of an object whose ``properties`` all appear, in their order: each a ``type`` of boolean, integer, null,
                number, string, an ``enum`` or ``const`` of such values, or another such object.

        Raises:
            ValueError: For anything else, naming it.
        """
        if schema.get("type", "object") != "object" or not schema.get("properties"):
            raise ValueError(f"A JSON schema must be of an object with `properties`, got {dict(schema)!r}.")
        return cls(_merged(_object(schema)))

    def step(self, state: State, character: str) -> State | None:
        """The state behind ``character``, ``None`` where it may not stand."""
        number, written = state
        if number == len(self.parts):
            return None
        within = _within(self.parts[number], written, character)
        if within is not None:
            return self._settled(number, within)
        if _may_end(self.parts[number], written):
            return self.step((number + 1, ""), character)
        return None

    def _settled(self, number: int, written: str) -> State:
        part = self.parts[number]
        ended = (isinstance(part, Fixed) and written == part.text) or (
            isinstance(part, Choice) and written in part.texts
        )
        return (number + 1, "") if ended else (number, written)

    def done(self, state: State) -> bool:
        """Whether the text is complete."""
        return state[0] == len(self.parts)

    def fixed(self, state: State) -> str:
        """What must follow; empty where there is a choice, or nothing more."""
        text = ""
        number, written = state
        while number < len(self.parts):
            part = self.parts[number]
            if isinstance(part, Fixed):
                text += part.text[len(written) :]
            elif isinstance(part, Choice):
                left = [option for option in part.texts if option.startswith(written)]
                if len(left) > 1:
                    break
                text += left[0][len(written) :]
            else:
                break
            number, written = number + 1, ""
        return text


def _within(part: Part, written: str, character: str) -> str | None:
    """What was written of ``part`` once ``character`` is, ``None`` where that may not stand in it."""
    after = written + character
    if isinstance(part, Fixed):
        return after if part.text.startswith(after) else None
    if isinstance(part, Choice):
        return after if any(text.startswith(after) for text in part.texts) else None
    if isinstance(part, NumberValue):
        return _number(after, part.whole)
    if written == "\\":
        return "" if character in _ESCAPED else None
    if character == "\\":
        return "\\"
    return "" if character != '"' and character >= " " else None


def _number(text: str, whole: bool) -> str | None:
    """``text`` if a number may begin so."""
    digits = text.removeprefix("-")
    front, point, back = digits.partition(".")
    if (point and (whole or not front)) or (front and not front.isdecimal()) or (back and not back.isdecimal()):
        return None
    return None if len(front) > 1 and front[0] == "0" else text


def _may_end(part: Part, written: str) -> bool:
    if isinstance(part, StringValue):
        return written != "\\"
    return isinstance(part, NumberValue) and written[-1:].isdecimal()


def _object(schema: Mapping[str, Any]) -> list[Part]:
    parts: list[Part] = []
    for number, (key, value) in enumerate(schema["properties"].items()):
        parts.append(Fixed(("{" if number == 0 else ", ") + json.dumps(key) + ": "))
        parts += _value(key, value)
    return [*parts, Fixed("}")]


def _value(key: str, schema: Any) -> list[Part]:
    if not isinstance(schema, Mapping):
        raise ValueError(f"The schema of {key!r} must be an object with `type`, `enum` or `const`, got {schema!r}.")
    if "const" in schema:
        return [Fixed(json.dumps(schema["const"]))]
    if "enum" in schema:
        texts = tuple(dict.fromkeys(json.dumps(value) for value in schema["enum"]))
        if not texts or any(a != b and b.startswith(a) for a in texts for b in texts):
            raise ValueError(
                f"`enum` of {key!r} must list values of which none begins another, got {schema['enum']!r}."
            )
        return [Choice(texts)] if len(texts) > 1 else [Fixed(texts[0])]
    kind = schema.get("type")
    if kind == "object" and schema.get("properties"):
        return _object(schema)
    if kind == "string":
        return [Fixed('"'), StringValue(), Fixed('"')]
    if kind in ("integer", "number"):
        return [NumberValue(kind == "integer")]
    if kind == "boolean":
        return [Choice(("true", "false"))]
    if kind == "null":
        return [Fixed("null")]
    raise ValueError(f"The type of {key!r} must be {', '.join(_SIMPLE)} or object with `properties`, got {kind!r}.")


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring fixed parts as one."""
    merged: list[Part] = []
    for part in parts:
        if merged and isinstance(part, Fixed) and isinstance(last := merged[-1], Fixed):
            merged[-1] = Fixed(last.text + part.text)
        else:
            merged.append(part)
    return merged
