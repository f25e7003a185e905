"""Names and rows of the toy sink as SQLite takes them, and the digests by which it compares rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest
from tautochrone.sinks.common.mirrored import NameRules, mirror_name

__all__ = ["encoded", "mirror_table_name", "quoted", "row_digest", "sql_name", "sql_text"]


def mirror_table_name(table: TableName) -> str:
    return mirror_name(table, NameRules(longest=1000, folds_case=True))


def sql_name(table: TableName) -> str:
    return quoted(mirror_table_name(table))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def sql_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def encoded(columns: Sequence[str], row: Iterable[Any]) -> str:
    values = [_plain(value) for value in row]
    return json.dumps(dict(zip(columns, values, strict=True)), sort_keys=True)


def _plain(value: Any) -> Any:
    """A value as SQLite keeps it."""
    if value is None or (isinstance(value, int | float | str) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def row_digest(rows: Iterable[str]) -> Digest:
    count = total = 0
    for row in rows:
        count += 1
        total += int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big")
    return Digest(count, f"{total % 2**64:016x}")
