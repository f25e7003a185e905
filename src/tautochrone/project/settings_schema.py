"""The declared settings as a JSON Schema of `tautochrone.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tautochrone.project.setting_declarations import SETTINGS, Setting
from tautochrone.project.setting_layers import FILE_NAME

__all__ = ["json_schema"]

_REFERENCE = {
    "description": "a secret: where it is, never what it is",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {"env": {"type": "string", "minLength": 1}, "file": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}


def json_schema() -> dict[str, Any]:
    """Of the whole file, as JSON Schema 2020-12. Editors complete and check `tautochrone.toml` by it."""
    root = _table({}, f"{FILE_NAME}: settings of a Tautochrone project")
    for setting in SETTINGS:
        below = root
        for part in setting.path[:-1]:
            below = _child(below, part)
        _put(below, setting.path[-1], _value(setting))
        if setting.former_key is not None:
            section, name = setting.former_key.split(".")
            former = _value(setting) | {"description": f"former name of {setting.key}", "deprecated": True}
            _put(_child(root, section), name, former)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        **root,
        "$defs": {"reference": _REFERENCE},
    }


def _table(properties: Mapping[str, Any], description: str | None = None) -> dict[str, Any]:
    words = {} if description is None else {"description": description}
    return {**words, "type": "object", "properties": dict(properties), "additionalProperties": False}


def _child(table: dict[str, Any], part: str) -> dict[str, Any]:
    known = table["additionalProperties"] if part == "*" else table["properties"].get(part)
    if not known:
        known = _table({})
        _put(table, part, known)
    assert isinstance(known, dict)
    return known


def _put(table: dict[str, Any], part: str, schema: dict[str, Any]) -> None:
    if part == "*":
        table["additionalProperties"] = schema
    else:
        table["properties"][part] = schema


def _value(setting: Setting) -> dict[str, Any]:
    schema = dict(setting.kind.schema())
    if setting.by_reference:
        schema = {"anyOf": [schema, {"$ref": "#/$defs/reference"}]}
    if setting.default is not None:
        schema["default"] = setting.default
    return {"description": setting.meaning, **schema}
