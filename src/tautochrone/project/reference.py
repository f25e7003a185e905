"""The declared settings as documents: the JSON Schema of `tautochrone.toml`, and the reference for people.

Both are kept in `docs/`, written by `python -m tautochrone.project.reference` and compared by a test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tautochrone.project.declared import OTHER_VARIABLES, SETTINGS, Setting
from tautochrone.project.layers import FILE_NAME

__all__ = ["SCHEMA_FILE", "json_schema", "settings_table", "with_table", "write"]

SCHEMA_FILE = "tautochrone.schema.json"
_BEGIN, _END = "<!-- generated: settings -->", "<!-- end of generated -->"
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


def settings_table() -> str:
    """A Markdown table, one row a setting."""
    lines = ["| setting | variable | flag | default | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `[{'.'.join(s.path[:-1])}] {s.path[-1]}` | {_code(s.variable)} | {_code(s.flag)} "
        f"| {_default(s)} | {s.meaning}; {s.kind.words}{', or by reference' if s.by_reference else ''} |"
        for s in SETTINGS
    ]
    lines += [f"| | `{name}` | | | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return "\n".join(lines)


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _default(setting: Setting) -> str:
    if setting.of_project is not None:
        return setting.of_project[0]
    return "" if setting.default is None else f"`{json.dumps(setting.default).strip(chr(34))}`"


def with_table(text: str) -> str:
    """A document with the table between its marks renewed."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{settings_table()}\n{_END}{rest.partition(_END)[2]}"


def write(docs: Path) -> None:
    """Renew both files below `docs`."""
    (docs / SCHEMA_FILE).write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
    page = docs / "settings.md"
    page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
