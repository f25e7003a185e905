"""The first copy of a table: ranges of its key, each read by one statement that also says what it saw.

A chunk is a range of keys as JSON: `from` (inclusive) and `to` (exclusive), lists of the key columns' texts;
a missing bound is open. A table without a key is one chunk: no other way has each of several equal rows once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

import psycopg
import pyarrow as pa
from psycopg import sql

from tautochrone.errors import IngestError
from tautochrone.sources.capture.copied_rows import copied_rows
from tautochrone.sources.capture.log_schema import ARROW_SCHEMA
from tautochrone.sources.postgresql.connection import lsn_number
from tautochrone.sources.postgresql.server import one_row
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = ["chunks_of", "copy_chunk"]

CHUNK_BYTES = 16 * 1024 * 1024
"""About so much of a table, as stored, is copied at once: a chunk is held in memory as text."""
_SAMPLED_PER_CHUNK = 20
MAX_BYTES_WITHOUT_KEY = 1024 * 1024 * 1024
_ROWS_PER_FETCH = 20_000


def chunks_of(connection: psycopg.Connection, table: CapturedTable) -> tuple[str, ...]:
    """Ranges that cover all keys. The bounds come from a sample: any bounds are right, good ones are even.

    Raises:
        IngestError: `CAPTURED_TABLE_TOO_LARGE`.
    """
    if not table.keys:
        if table.bytes > MAX_BYTES_WITHOUT_KEY:
            raise IngestError(
                "CAPTURED_TABLE_TOO_LARGE",
                f"The table {table.name} has no key and {table.bytes / 1e6:,.0f} MB, and such a table is "
                f"copied at once",
                hint="give it a primary key, or leave it out with exclude=[…]",
                sqlstate="54000",
            )
        return (_chunk(None, None),)
    count = table.bytes // CHUNK_BYTES + 1
    bounds = _sampled_bounds(connection, table, count) if count > 1 else []
    edges: list[Sequence[str] | None] = [None, *bounds, None]
    return tuple(_chunk(low, high) for low, high in pairwise(edges))


def _chunk(low: Sequence[str] | None, high: Sequence[str] | None) -> str:
    parts = {"from": low, "to": high}
    return json.dumps({name: value for name, value in parts.items() if value is not None})


def _sampled_bounds(connection: psycopg.Connection, table: CapturedTable, count: int) -> list[Sequence[str]]:
    query = sql.SQL(
        "SELECT {texts} FROM (SELECT DISTINCT {keys} FROM {table} TABLESAMPLE SYSTEM ({percent})) s "
        "ORDER BY {keys}"
    ).format(
        texts=sql.SQL(", ").join(_text(sql.Identifier(key)) for key in table.keys),
        keys=sql.SQL(", ").join(map(sql.Identifier, table.keys)),
        table=table.identifier,
        # A page has 8 kB; two are enough to sample a chunk if each has some rows.
        percent=sql.Literal(max(0.01, min(100.0, 100 * _SAMPLED_PER_CHUNK * 8192 / CHUNK_BYTES))),
    )
    sample = connection.execute(query).fetchall()
    bounds = [sample[number * len(sample) // count] for number in range(1, count)] if sample else []
    return list(dict.fromkeys(bounds))


def copy_chunk(connection: psycopg.Connection, table: CapturedTable, chunk: str) -> tuple[pa.Table, int]:
    """The rows of a chunk, and the end of the log after they were read."""
    if not table.keys:
        return _copy_at_once(connection, table)
    bounds = json.loads(chunk)
    point = _log_end(connection)
    query = _select_rows(table, bounds)
    rows = connection.execute(query).fetchall()
    return _copied_rows(table, rows, point), _log_end(connection)


def _select_rows(table: CapturedTable, bounds: dict[str, Sequence[str]]) -> sql.Composed:
    return sql.SQL("SELECT pg_current_snapshot()::text, {columns} FROM {table} WHERE {range}").format(
        columns=sql.SQL(", ").join(_text(sql.Identifier(column.name)) for column in table.columns),
        table=table.identifier,
        range=sql.SQL(" AND ").join(_conditions(table, bounds)),
    )


def _copied_rows(table: CapturedTable, rows: Sequence[tuple[str | None, ...]], point: int) -> pa.Table:
    return copied_rows(table.name, [column.name for column in table.columns], rows, point)


def _copy_at_once(connection: psycopg.Connection, table: CapturedTable) -> tuple[pa.Table, int]:
    """All rows, and the snapshot as a row of its own: there may be no others."""
    point = _log_end(connection)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = one_row(connection, "SELECT pg_current_snapshot()::text")
        marker = {"point": point, "sequence": 0, "relation": table.name, "operation": "copied"}
        parts = [pa.Table.from_pylist([marker | {"snapshot": snapshot}], ARROW_SCHEMA)]
        with connection.cursor(name="tautochrone_copy") as cursor:
            cursor.execute(_select_rows(table, {}))
            while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                parts.append(_copied_rows(table, rows, point))
    return pa.concat_tables(parts), _log_end(connection)


def _conditions(table: CapturedTable, bounds: dict[str, Sequence[str]]) -> Iterator[sql.Composable]:
    yield sql.SQL("true")
    keys = [column for column in table.columns if column.is_key]
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in keys)
    types = {
        column.name: type_name for column, type_name in zip(table.columns, table.type_names, strict=True)
    }
    for bound, comparison in (("from", ">="), ("to", "<")):
        if bound in bounds:
            values = sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(types[column.name]))
                for column, text in zip(keys, bounds[bound], strict=True)
            )
            yield sql.SQL("ROW({}) {} ROW({})").format(names, sql.SQL(comparison), values)


def _text(column: sql.Composable) -> sql.Composable:
    """As the type's output function prints it, which is what the log has. A cast to text differs for some."""
    return sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END").format(column)


def _log_end(connection: psycopg.Connection) -> int:
    (text,) = one_row(connection, "SELECT pg_current_wal_insert_lsn()::text")
    return lsn_number(str(text))
