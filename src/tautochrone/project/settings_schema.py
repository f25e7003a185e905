"""The declared settings as a JSON Schema of `tautochrone.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tautochrone.project.setting_declarations import SETTINGS, Setting
from tautochrone.project.setting_layers import FILE_NAME

__all__ = ["json_schema"]

_REFERENCE = {
    "description": "a secret by reference: where it is",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {"env": {"type": "string", "minLength": 1}, "file": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the whole file, with which editors complete and check it."""
    root = _table({}, f"{FILE_NAME}: settings of a Tautochrone project")
    for setting in SETTINGS:
        table = root
        for part in setting.path[:-1]:
            table = _child(table, part)
        _put(table, setting.path[-1], _value(setting))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        **root,
        "$defs": {"reference": _REFERENCE},
    }


def _table(properties: Mapping[str, Any], description: str | None = None) -> dict[str, Any]:
    documentation = {} if description is None else {"description": description}
    return {**documentation, "type": "object", "properties": dict(properties), "additionalProperties": False}


def _child(table: dict[str, Any], part: str) -> dict[str, Any]:
    child = table["additionalProperties"] if part == "*" else table["properties"].get(part)
    if not child:
        child = _table({})
        _put(table, part, child)
    assert isinstance(child, dict)
    return child


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
