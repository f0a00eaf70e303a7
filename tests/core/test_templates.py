"""Templates of JSON objects: what they take is what ``json`` reads, and what is fixed is known beforehand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmspec.core.templates import State, Template

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["animal", "food", 3]},
        "size": {"type": "object", "properties": {"high": {"type": "integer"}, "wide": {"type": "number"}}},
        "new": {"type": "boolean"},
        "version": {"const": 1},
        "none": {"type": "null"},
    },
}
VALUE = {"name": 'a "b" \\', "kind": 3, "size": {"high": -12, "wide": 0.5}, "new": False, "version": 1, "none": None}


def run(template: Template, text: str) -> State | None:
    state: State | None = template.start
    for character in text:
        if state is None:
            return None
        state = template.step(state, character)
    return state


def test_what_json_writes_is_taken_and_nothing_may_follow() -> None:
    template = Template.of_schema(SCHEMA)
    end = run(template, json.dumps(VALUE))
    assert end is not None
    assert template.done(end)
    assert template.fixed(end) == ""
    assert template.step(end, " ") is None
    for place in range(len(json.dumps(VALUE))):
        part = run(template, json.dumps(VALUE)[:place])
        assert part is not None
        assert not template.done(part)
        assert json.dumps(VALUE)[place:].startswith(template.fixed(part))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"name": "', True),
        ('{"name" ', False),
        ('{"name": "a\n', False),
        ('{"name": "\\x', False),
        ('{"name": "", "kind": "animal", "size": {"high": 0, "wide": -1.25}', True),
        ('{"name": "", "kind": "plant', False),
        ('{"name": "", "kind": "food", "size": {"high": 1.', False),
        ('{"name": "", "kind": "food", "size": {"high": 01', False),
        ('{"name": "", "kind": "food", "size": {"high": -,', False),
    ],
)
def test_texts(text: str, taken: bool) -> None:
    assert (run(Template.of_schema(SCHEMA), text) is not None) == taken


def test_what_is_fixed() -> None:
    template = Template.of_schema(SCHEMA)
    assert template.fixed(template.start) == '{"name": "'
    inside = run(template, '{"name": "a')
    assert inside is not None
    assert template.fixed(inside) == ""
    chosen = run(template, '{"name": "a", "kind": "f')
    assert chosen is not None
    assert template.fixed(chosen) == 'ood", "size": {"high": '


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "properties"),
        ({"type": "array"}, "properties"),
        ({"properties": {"a": {"type": "array"}}}, "'a'"),
        ({"properties": {"a": "string"}}, "'a'"),
        ({"properties": {"a": {"enum": [1, 12]}}}, "begins another"),
        ({"properties": {"a": {"enum": []}}}, "none begins"),
    ],
)
def test_other_schemas_are_refused_by_name(schema: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Template.of_schema(schema)
