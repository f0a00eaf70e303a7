"""Methods are found by name; wrong names and settings raise with the legal ones."""

from __future__ import annotations

import importlib

import pytest

import mmspec
from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.acceptance.base import Acceptance
from mmspec.core.registry import Registry
from mmspec.drafters import DRAFTERS
from mmspec.drafters.base import Drafter

TABLES = pytest.mark.parametrize(
    ("table", "base"), [(ACCEPTANCE_RULES, Acceptance), (DRAFTERS, Drafter)], ids=["rules", "drafters"]
)


@TABLES
def test_every_entry_loads_and_has_defaults(table: Registry, base: type) -> None:
    for name in table.names:
        built = table.create(name)
        assert isinstance(built, base)
        assert getattr(mmspec, type(built).__name__) is type(built)


@TABLES
def test_unknown_name_raises_with_the_legal_ones(table: Registry, base: type) -> None:
    with pytest.raises(ValueError) as caught:
        table.create("no-such-method")
    message = str(caught.value)
    assert "no-such-method" in message
    assert table.kind in message
    assert all(name in message for name in table.names)


@TABLES
def test_unknown_setting_raises(table: Registry, base: type) -> None:
    for name in table.names:
        with pytest.raises(TypeError, match="no_such_setting"):
            table.create(name, no_such_setting=1)


@TABLES
def test_names_are_sorted_and_point_at_their_module(table: Registry, base: type) -> None:
    assert table.names == sorted(table.names)
    for name, module in table.exports().items():
        assert hasattr(importlib.import_module(module), name)


def test_the_table_is_a_copy() -> None:
    entries = {"a": "json:JSONDecoder"}
    table = Registry("thing", entries)
    entries["b"] = "json:JSONEncoder"
    assert table.names == ["a"]


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("jacobi", {"window": 0}, ValueError),
        ("jacobi", {"window": -3}, ValueError),
        ("jacobi", {"window": 2.0}, TypeError),
        ("jacobi", {"window": True}, TypeError),
        ("jacobi", {"coupling": "strong"}, ValueError),
        ("jacobi", {"initializer": "repeat"}, ValueError),
        ("jacobi", {"controller": "magic"}, ValueError),
        ("jacobi", {"mix": 1.5}, ValueError),
        ("jacobi", {"mix": -0.1}, ValueError),
        ("ngram", {"num_draft_tokens": 0}, ValueError),
        ("ngram", {"max_ngram": 0}, ValueError),
        ("ngram", {"controller": "magic"}, ValueError),
        ("model", {"num_draft_tokens": 0}, ValueError),
        ("model", {"controller": "magic"}, ValueError),
    ],
)
def test_bad_drafter_settings_are_refused_by_name_and_value(name: str, settings: dict, error: type[Exception]) -> None:
    [(setting, value)] = settings.items()
    with pytest.raises(error, match=setting) as caught:
        DRAFTERS.create(name, **settings)
    assert str(value) in str(caught.value)
