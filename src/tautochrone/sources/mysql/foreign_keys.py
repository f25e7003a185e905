"""Foreign keys that change rows by themselves. Servers that leave this to InnoDB log nothing of it: only the
deleted or updated row of the other table is in the log."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.sources.mysql.connection import fetch

__all__ = ["Cascade", "ForeignKey", "cascades_by_parent", "unlogged_foreign_keys"]

_NAME = r"`((?:[^`]|``)+)`"
_NAMES = r"\((`(?:[^`]|``)+`(?:,\s*`(?:[^`]|``)+`)*)\)"
_FOREIGN_KEY = re.compile(
    rf"^\s*CONSTRAINT {_NAME} FOREIGN KEY {_NAMES} REFERENCES (?:{_NAME}\.)?{_NAME} {_NAMES}(.*)$",
    re.MULTILINE,
)
"""In what SHOW CREATE TABLE prints. The catalog of foreign keys hides them from users who may only read."""
_CHANGES = r"(?:CASCADE|SET NULL|SET DEFAULT)"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One that changes rows of `child`.

    Attributes:
        child, parent: `schema.table`.
        columns: of the parent, which it refers to.
        on_delete, on_update: it changes rows when a row of the parent is deleted, or gets other values there.
    """

    name: str
    child: str
    parent: str
    columns: tuple[str, ...]
    on_delete: bool
    on_update: bool


@dataclass(frozen=True, slots=True)
class Cascade:
    """What a deleted or updated row of a table changes elsewhere.

    Attributes:
        tables: whose rows change, those that follow from others included.
        columns: an update counts when these change.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    on_delete: bool
    on_update: bool


def unlogged_foreign_keys(connection: Any, schema: str, identifier: str, child: str) -> list[ForeignKey]:
    """Those of a table that change its rows.

    Args:
        schema: of the table, which references without a schema mean.
        identifier: the table's name, quoted.
        child: `schema.table`.
    """
    _name, definition, *_rest = fetch(connection, f"SHOW CREATE TABLE {identifier}")[0]
    keys = []
    for name, _columns, other_schema, parent, columns, actions in _FOREIGN_KEY.findall(definition):
        on_delete = re.search(rf"ON DELETE {_CHANGES}", actions) is not None
        on_update = re.search(rf"ON UPDATE {_CHANGES}", actions) is not None
        if on_delete or on_update:
            parent_name = f"{_unquoted(other_schema or schema)}.{_unquoted(parent)}"
            referenced = tuple(map(_unquoted, re.findall(_NAME, columns)))
            keys.append(ForeignKey(_unquoted(name), child, parent_name, referenced, on_delete, on_update))
    return keys


def _unquoted(name: str) -> str:
    return name.replace("``", "`")


def cascades_by_parent(keys: Collection[ForeignKey]) -> Mapping[str, Sequence[Cascade]]:
    """
    >>> first = ForeignKey("a", "s.lines", "s.orders", ("id",), True, False)
    >>> second = ForeignKey("b", "s.notes", "s.lines", ("id",), True, False)
    >>> cascades_by_parent([first, second])["s.orders"][0].tables
    ('s.lines', 's.notes')
    """
    cascades: dict[str, list[Cascade]] = {}
    for key in keys:
        tables = tuple(sorted(_changed_with(key.child, keys)))
        cascades.setdefault(key.parent, []).append(Cascade(tables, key.columns, key.on_delete, key.on_update))
    return cascades


def _changed_with(table: str, keys: Collection[ForeignKey]) -> set[str]:
    """The table and those whose rows may change because its rows do."""
    tables, added = {table}, {table}
    while added:
        added = {key.child for key in keys if key.parent in added} - tables
        tables |= added
    return tables
