"""The pages about settings: the table in `settings.md`, and the JSON Schema that editors complete by."""

from __future__ import annotations

import json
from pathlib import Path

from tautochrone.project.setting_declarations import OTHER_VARIABLES, SETTINGS, Setting
from tautochrone.project.settings import json_schema

__all__ = ["document", "schema"]

_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_BEGIN, _END = "<!-- generated: settings -->", "<!-- end of generated -->"


def schema() -> str:
    """`tautochrone.schema.json`."""
    return json.dumps(json_schema(), indent=2) + "\n"


def document() -> str:
    """The page as it is, with the table between its marks renewed."""
    before, _, rest = _PAGE.read_text("utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{_table()}\n{_END}{rest.partition(_END)[2]}"


_REFERENCE = ", or by reference"


def _table() -> str:
    """A Markdown table, one row a setting."""
    lines = ["| setting | variable | flag | default | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `[{'.'.join(s.path[:-1])}] {s.path[-1]}` | {_code(s.variable)} | {_code(s.flag)} "
        f"| {_default(s)} | {s.meaning}; {s.kind.description}{_REFERENCE if s.by_reference else ''} |"
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
