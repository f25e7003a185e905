"""The first copy of a table: ranges of its key, each read in a snapshot of its own.

A chunk is a range of the first key column as JSON: `from` (inclusive) and `to` (exclusive); a missing bound
is open. Binary keys have hexadecimal digits there.

The position of a snapshot is a lower bound of what a snapshot sees: every transaction that the log has before
it is visible. Events behind it count, and they are whole rows, so to apply one that was visible already
changes nothing once the log has passed the place that it had after the copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tautochrone.sources.capture.copied_rows import copied_rows
from tautochrone.sources.mysql.binlog import point_of
from tautochrone.sources.mysql.connection import fetch, fetch_one
from tautochrone.sources.mysql.flavors import flavor_of
from tautochrone.sources.mysql.server import log_end
from tautochrone.sources.mysql.tables import CapturedTable, Column, quoted_name
from tautochrone.sources.mysql.types import copy_sql

__all__ = ["chunks_of", "copy_chunk"]

CHUNK_BYTES = 16 * 1024 * 1024
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_WALKED = ("char", "varchar", "binary", "varbinary", "date", "datetime", "decimal")
"""Types whose order in the key is that of comparisons with a text."""


def chunks_of(connection: Any, table: CapturedTable) -> tuple[str, ...]:
    """Ranges that cover all keys. Any bounds are right, good ones are even."""
    count = table.bytes // CHUNK_BYTES + 1
    first = next(column for column in table.logged if column.name == table.keys[0])
    bounds: list[str] = []
    if count > 1 and first.data_type in _INTEGERS:
        bounds = _even_bounds(connection, table, first, count)
    elif count > 1 and first.data_type in _WALKED:
        bounds = _walked_bounds(connection, table, first, max(1, table.rows // count))
    edges: list[str | None] = [None, *bounds, None]
    return tuple(
        json.dumps({name: key for name, key in (("from", low), ("to", high)) if key is not None})
        for low, high in pairwise(edges)
    )


def _even_bounds(connection: Any, table: CapturedTable, key: Column, count: int) -> list[str]:
    name = quoted_name(key.name)
    low, high = fetch_one(connection, f"SELECT MIN({name}), MAX({name}) FROM {table.identifier}")
    if low is None:
        return []
    first, last = int(low), int(high)
    step = (last - first) // count + 1
    return [str(bound) for bound in range(first + step, last + 1, step)]


def _walked_bounds(connection: Any, table: CapturedTable, key: Column, rows: int) -> list[str]:
    """Every so many rows a key, along the index."""
    bounds: list[str] = []
    name = quoted_name(key.name)
    while True:
        condition = f"WHERE {_compared(key, '>')}" if bounds else ""
        query = (
            f"SELECT {copy_sql(key)} FROM {table.identifier} {condition} "
            f"ORDER BY {name} LIMIT 1 OFFSET {rows}"
        )
        next_key = fetch(connection, query, bounds[-1:] or None)
        if not next_key:
            return bounds
        bounds.append(str(next_key[0][0]))


def _compared(key: Column, comparison: str) -> str:
    value = "UNHEX(%s)" if key.data_type in ("binary", "varbinary") else "%s"
    return f"{quoted_name(key.name)} {comparison} {value}"


def copy_chunk(connection: Any, table: CapturedTable, chunk: str) -> tuple[pa.Table, int]:
    """The rows of a chunk, and the end of the log after they were read."""
    key = next(column for column in table.logged if column.name == table.keys[0])
    bounds = json.loads(chunk)
    conditions = " AND ".join(["true", *_conditions(key, bounds)])
    names = ", ".join(copy_sql(column) for column in table.columns)
    file, offset = flavor_of(connection).snapshot(connection)
    query = f"SELECT {names} FROM {table.identifier} WHERE {conditions}"
    try:
        rows = fetch(connection, query, list(bounds.values()) or None)
    finally:
        connection.query("ROLLBACK")
    bound = point_of(file, offset)
    seen = f"{bound + 1}:{bound + 1}:"
    copied = [(seen, *row) for row in rows]
    return (
        copied_rows(table.name, [column.name for column in table.columns], copied, bound),
        point_of(*log_end(connection)),
    )


def _conditions(key: Column, bounds: dict[str, str]) -> Iterator[str]:
    for bound in bounds:
        yield _compared(key, ">=" if bound == "from" else "<")
