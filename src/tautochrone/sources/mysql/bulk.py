"""The first copy of a table: ranges of its key, each read in a snapshot of its own.

A chunk is a range of the first key column (see `capture.copied_rows`); a bound is a text, of texts and
binaries the hexadecimal digits of their bytes.

The position of a snapshot is a lower bound of what a snapshot sees: every transaction that the log has before
it is visible. Events behind it count, and they are whole rows, so to apply one that was visible already
changes nothing once the log has passed the place that it had after the copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tautochrone.errors import IngestError
from tautochrone.sources.capture.copied_rows import (
    CHUNK_BYTES,
    ChunkRows,
    chunk_bytes,
    chunks_between,
    log_batches,
    parse_chunk,
)
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.capture.typed_rows import TextFormat
from tautochrone.sources.mysql.binlog import point_of
from tautochrone.sources.mysql.charsets import Charsets, UndecodableError
from tautochrone.sources.mysql.connection import fetch, fetch_one, text_literal, translated_errors
from tautochrone.sources.mysql.flavors import flavor_of
from tautochrone.sources.mysql.result_rows import columns_of_rows
from tautochrone.sources.mysql.server import instance_of, log_end
from tautochrone.sources.mysql.tables import CapturedTable, TableColumn, quoted_name
from tautochrone.sources.mysql.types import BINARIES, TEXTS, copy_sql
from tautochrone.sources.mysql.values import (
    UndecodableValueError,
    charset_of,
    decoded_texts,
    hexadecimal,
    shown_bytes,
    undecodable_value_error,
)

__all__ = ["TEXT_FORMAT", "ChunkReader", "chunks_of", "copy_chunk"]

TEXT_FORMAT = TextFormat(true="1")
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_WALKED = ("char", "varchar", "binary", "varbinary", "date", "datetime", "decimal")
"""Types whose order in the key is that of comparisons with a text."""


def chunks_of(connection: Any, table: CapturedTable, tasks: int) -> tuple[str, ...]:
    """Ranges that cover all keys. Any bounds are right, good ones are even."""
    count = table.bytes // chunk_bytes(table.bytes, CHUNK_BYTES, tasks) + 1
    first = next(column for column in table.logged if column.name == table.keys[0])
    bounds: list[str] = []
    if count > 1 and first.data_type in _INTEGERS:
        bounds = _even_bounds(connection, table, first, count)
    elif count > 1 and first.data_type in _WALKED:
        bounds = _walked_bounds(connection, table, first, max(1, table.rows // count))
    return chunks_between(bounds, time.time_ns(), table.bytes)


def _even_bounds(connection: Any, table: CapturedTable, key: TableColumn, count: int) -> list[str]:
    name = quoted_name(key.name)
    low, high = fetch_one(connection, f"SELECT MIN({name}), MAX({name}) FROM {table.identifier}")
    if low is None:
        return []
    first, last = int(low), int(high)
    step = (last - first) // count + 1
    return [str(bound) for bound in range(first + step, last + 1, step)]


def _walked_bounds(connection: Any, table: CapturedTable, key: TableColumn, rows: int) -> list[str]:
    """Every so many rows a key, along the index."""
    bounds: list[str] = []
    name = quoted_name(key.name)
    bound_sql = f"HEX({name})" if key.data_type in TEXTS | BINARIES else copy_sql(key)
    while True:
        condition = f"WHERE {_comparison_sql(key, '>', bounds[-1])}" if bounds else ""
        query = (
            f"SELECT {bound_sql} FROM {table.identifier} {condition} ORDER BY {name} LIMIT 1 OFFSET {rows}"
        )
        next_key = fetch(connection, query)
        if not next_key:
            return bounds
        bounds.append(str(next_key[0][0]))


def _comparison_sql(key: TableColumn, comparison: str, bound: str) -> str:
    value = text_literal(bound)
    if key.data_type in ("binary", "varbinary"):
        value = f"UNHEX({value})"
    elif key.data_type in TEXTS:
        value = f"_{charset_of(key)} X{value}"
    return f"{quoted_name(key.name)} {comparison} {value}"


def copy_chunk(
    connection: Any, charsets: Charsets, table: CapturedTable, chunk: str, shift: int = 0
) -> tuple[pa.Table, int]:
    """The rows of a chunk, and the end of the log after they were read.

    Args:
        shift: what is added to points of the log.

    Raises:
        IngestError: `CAPTURED_TEXT_NOT_DECODABLE`.
    """
    parts = _read_chunk(connection, charsets, table, chunk, shift)
    rows = pa.Table.from_batches(log_batches(parts), ARROW_SCHEMA)
    return rows, point_of(*log_end(connection)) + shift


@dataclass(frozen=True)
class ChunkReader:
    """Reads the chunk with a number by a connection of its own: see `capture.copied_rows`.

    Attributes:
        charsets: of the server, with a way to connect to it.
        instance: the server that the driver is connected to, see `server.instance_of`.
        shift: what is added to points of the log.
    """

    capture: str
    charsets: Charsets
    chunks: tuple[tuple[CapturedTable, str], ...]
    instance: str
    shift: int = 0

    def __call__(self, number: int) -> Iterator[ChunkRows]:
        table, chunk = self.chunks[number]
        with translated_errors(self.capture):
            connection = self.charsets.connect()
            try:
                if instance_of(connection) != self.instance:
                    raise IngestError(
                        "SOURCE_LOG_LOST",
                        f"The url of the capture {self.capture} leads to another server than before",
                        hint="the copy goes on when it leads back, or copy the database again",
                    )
                yield from _read_chunk(connection, self.charsets, table, chunk, self.shift)
            finally:
                connection._force_close()  # noqa: SLF001


def _read_chunk(
    connection: Any, charsets: Charsets, table: CapturedTable, chunk: str, shift: int
) -> Iterator[ChunkRows]:
    """The rows of a chunk. After an error the connection is of no use."""
    parsed = parse_chunk(chunk)
    key = next(column for column in table.logged if column.name == table.keys[0])
    conditions = " AND ".join(["true", *_conditions(key, parsed.bounds)])
    selected = ", ".join(copy_sql(column) for column in table.columns)
    query = f"SELECT {selected} FROM {table.identifier} WHERE {conditions}"
    bound = point_of(*flavor_of(connection).snapshot(connection)) + shift
    seen = pa.scalar(f"{bound + 1}:{bound + 1}:", pa.string())
    names = [column.name for column in table.columns]
    # Texts are sent as bytes in the character set of their column. They are not converted by an SQL function,
    # whose result would be NULL above max_allowed_packet.
    connection.query("SET SESSION character_set_results = NULL")
    for texts in columns_of_rows(connection, query):
        snapshots = pa.repeat(seen, len(texts[0]))
        columns = _decoded_columns(charsets, table, dict(zip(names, texts, strict=True)))
        yield ChunkRows(table.name, columns, snapshots, bound, parsed.planned, TEXT_FORMAT)
    connection.query("SET SESSION character_set_results = utf8mb4")
    connection.query("ROLLBACK")


def _decoded_columns(
    charsets: Charsets, table: CapturedTable, columns: Mapping[str, pa.Array]
) -> dict[str, pa.Array]:
    """
    Args:
        columns: as `copy_sql` has them.
    """
    texts = dict(columns)
    for column in table.columns:
        if column.data_type in BINARIES:
            texts[column.name] = hexadecimal(columns[column.name])
        elif column.data_type in TEXTS:
            charset, as_key = charsets[charset_of(column)], column.name in table.keys
            try:
                texts[column.name] = decoded_texts(columns[column.name], charset, as_key=as_key)
            except UndecodableValueError as error:
                key = [_key_value(charsets, table, columns, name, error.row) for name in table.keys]
                raise undecodable_value_error(table, column, key, error) from error
    return texts


def _key_value(
    charsets: Charsets, table: CapturedTable, columns: Mapping[str, pa.Array], name: str, row: int
) -> str:
    data: bytes = columns[name].slice(row, 1).cast(pa.binary())[0].as_py()
    column = next(column for column in table.columns if column.name == name)
    try:
        return charsets.decode(charset_of(column), data)
    except UndecodableError:
        return shown_bytes(data)


def _conditions(key: TableColumn, bounds: Mapping[str, str]) -> Iterator[str]:
    for name, bound in bounds.items():
        yield _comparison_sql(key, ">=" if name == "from" else "<", bound)
