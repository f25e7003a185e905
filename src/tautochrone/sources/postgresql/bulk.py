"""The first copy of a table: ranges of its key, each read by one statement that also says what it saw.

A chunk is a range of keys (see `capture.copied_rows`); a bound is a list of the key columns' texts.
`partition` is schema and name of the partition that it is taken from. A table without a key is one chunk: no
other way has each of several equal rows once.

Behind the rows of each chunk a mark goes into the log, a message with the point where the log was. It proves
that this is the log of the server whose rows were copied: a server that was restored from files of before the
copy has the same name, timeline and slot, and gives the same points to other transactions, but it has no such
message. A table that was copied is complete only behind its mark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from tautochrone.errors import IngestError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.capture.copied_rows import (
    CHUNK_BYTES,
    ChunkRows,
    chunk_bytes,
    chunks_between,
    log_batches,
    parse_chunk,
)
from tautochrone.sources.capture.errors import undecodable_text_error
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.capture.typed_rows import TextFormat
from tautochrone.sources.postgresql.connection import connect, lsn_number, translated_errors
from tautochrone.sources.postgresql.server import one_row
from tautochrone.sources.postgresql.tables import CapturedTable, Partition
from tautochrone.sources.postgresql.types import FIRST_USER_TYPE

__all__ = [
    "MARK_PREFIX",
    "TABLE_TOO_LARGE",
    "TEXT_FORMAT",
    "ChunkReader",
    "chunks_of",
    "chunks_of_partition",
    "copy_chunk",
    "durable_log_end",
    "flush_log",
    "has_marks",
    "log_end",
    "mark_text",
    "marks_due",
    "marks_missing",
    "split_marks",
]


MARK_PREFIX = "tautochrone"
_FIRST_MESSAGES = 10_000
_KIND = b"M"
_FIXED = 1 + 1 + 8
"""Bytes of a message before its prefix: its kind, flags, and its place in the log."""


def mark_text(point: int) -> str:
    return f"copied up to {point}"


def marks_due(position: LogPosition) -> frozenset[int]:
    """The points of copies whose marks are behind a position."""
    return frozenset(point for point in position.bulk.pass_at.values() if point > position.point)


def marks_missing(due: Collection[int], end: int, marks: frozenset[bytes]) -> bool:
    """Whether a mark is not among those of the log up to `end` that should be."""
    return any(point <= end and mark_text(point).encode() not in marks for point in due)


def has_marks(position: LogPosition, read: Callable[[int], Sequence[bytes]]) -> bool:
    """Whether the log has all marks that are behind a position.

    Args:
        read: so many messages from the position on, or more.
    """
    due, limit = marks_due(position), _FIRST_MESSAGES
    while due:
        messages = read(limit)
        marks, _ = split_marks(messages)
        if not marks_missing(due, max(due), marks):
            break
        if len(messages) < limit:
            return False
        limit *= 2
    return True


def split_marks(messages: Sequence[bytes]) -> tuple[frozenset[bytes], list[bytes]]:
    """The texts of our own messages in the log, and all that are no messages of somebody.

    >>> mark = b"M\\x01" + bytes(8) + b"tautochrone\\0" + (14).to_bytes(4, "big") + mark_text(7).encode()
    >>> split_marks([b"B...", mark, b"C..."])
    (frozenset({b'copied up to 7'}), [b'B...', b'C...'])
    """
    others = [message for message in messages if message[:1] != _KIND]
    if len(others) == len(messages):
        return frozenset(), others
    texts = set()
    for message in messages:
        prefix, _, text = message[_FIXED:].partition(b"\0")
        if message[:1] == _KIND and prefix == MARK_PREFIX.encode():
            texts.add(text[4:])
    return frozenset(texts), others


_BATCH_BYTES = 4 * 1024 * 1024
"""So much text is held in memory at once, or one row."""
_SAMPLED_PER_CHUNK = 20
TEXT_FORMAT = TextFormat(true="t", bytes_prefix=len(r"\x"))
TABLE_TOO_LARGE = "CAPTURED_TABLE_TOO_LARGE"
MAX_BYTES_WITHOUT_KEY = 1024 * 1024 * 1024


def chunks_of(connection: psycopg.Connection, table: CapturedTable, tasks: int) -> tuple[str, ...]:
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
                parameters={"relation": table.name},
            )
        return chunks_between([], time.time_ns(), table.bytes)
    size = chunk_bytes(table.bytes, CHUNK_BYTES, tasks)
    count = table.bytes // size + 1
    bounds = _sampled_bounds(connection, table, count, size) if count > 1 else []
    return chunks_between(bounds, time.time_ns(), table.bytes)


def chunks_of_partition(
    connection: psycopg.Connection, table: CapturedTable, partition: Partition, tasks: int
) -> tuple[str, ...]:
    """Ranges that cover all keys of one partition."""
    names = {"partition": [partition.schema, partition.table]}
    as_table = replace(table, schema=partition.schema, table=partition.table, bytes=partition.size_bytes)
    chunks = chunks_of(connection, as_table, tasks)
    return tuple(json.dumps(json.loads(chunk) | names) for chunk in chunks)


def _sampled_bounds(
    connection: psycopg.Connection, table: CapturedTable, count: int, size: int
) -> list[Sequence[str]]:
    query = sql.SQL(
        "SELECT {texts} FROM (SELECT DISTINCT {keys} FROM {table} TABLESAMPLE SYSTEM ({percent})) s "
        "ORDER BY {keys}"
    ).format(
        texts=sql.SQL(", ").join(_text(sql.Identifier(key)) for key in table.keys),
        keys=sql.SQL(", ").join(map(sql.Identifier, table.keys)),
        table=table.rows_of_its_own,
        # A page has 8 kB; two are enough to sample a chunk if each has some rows.
        percent=sql.Literal(max(0.01, min(100.0, 100 * _SAMPLED_PER_CHUNK * 8192 / size))),
    )
    sample = connection.execute(query).fetchall()
    bounds = [sample[number * len(sample) // count] for number in range(1, count)] if sample else []
    return list(dict.fromkeys(bounds))


def copy_chunk(
    connection: psycopg.Connection, table: CapturedTable, chunk: str, check_readable: Callable[[], object]
) -> tuple[pa.Table, int]:
    """The rows of a chunk, and the end of the log after they were read.

    Args:
        check_readable: raises what is wrong with the table, if it is known.
    """
    point = log_end(connection)
    try:
        rows = pa.Table.from_batches(log_batches(_read_chunk(connection, table, chunk, point)), ARROW_SCHEMA)
    except psycopg.ProgrammingError:
        check_readable()
        raise
    return rows, durable_log_end(connection)


@dataclass(frozen=True)
class ChunkReader:
    """Reads the chunk with a number by a connection of its own: see `capture.copied_rows`.

    Attributes:
        point: where the log was before.
    """

    capture: str
    url: str = field(repr=False)
    chunks: tuple[tuple[CapturedTable, str], ...]
    point: int

    def __call__(self, number: int) -> Iterator[ChunkRows | pa.RecordBatch]:
        table, chunk = self.chunks[number]
        with translated_errors(self.capture), connect(self.url) as connection:
            yield from _read_chunk(connection, table, chunk, self.point)


def _read_chunk(
    connection: psycopg.Connection, table: CapturedTable, chunk: str, point: int
) -> Iterator[ChunkRows | pa.RecordBatch]:
    """The rows of a chunk, which say that the log was at `point`. Of a table without a key a row of the log
    table comes first."""
    if table.keys:
        yield from _selected_rows(connection, table, chunk, point)
        return
    # All rows at once, and the snapshot as a row of its own: there may be no others.
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = one_row(connection, "SELECT pg_current_snapshot()::text")
        planned = parse_chunk(chunk).planned
        marker = {"point": point, "sequence": planned, "relation": table.name, "operation": "copied"}
        yield from pa.Table.from_pylist([marker | {"snapshot": snapshot}], ARROW_SCHEMA).to_batches()
        yield from _selected_rows(connection, table, chunk, point)


def _selected_rows(
    connection: psycopg.Connection, table: CapturedTable, chunk: str, point: int
) -> Iterator[ChunkRows]:
    """By one statement, whose snapshot is printed once, in a subquery, and comes with each row.

    COPY prints values by their types' output functions, as the log does; a cast to text differs for some. As
    CSV it tells NULL from an empty text, and Arrow reads it.
    """
    partition = json.loads(chunk).get("partition")
    bounds = parse_chunk(chunk).bounds
    operators = _operators(connection, table) if bounds else {}
    query = sql.SQL(
        "COPY (SELECT (SELECT pg_current_snapshot()::text), {columns} FROM {table} WHERE {range}) "
        "TO STDOUT (FORMAT csv)"
    ).format(
        columns=sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        table=sql.Identifier(*partition) if partition else table.rows_of_its_own,
        range=sql.SQL(" AND ").join(_conditions(table, bounds, operators)),
    )
    names = [column.name for column in table.columns]
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for lines in _joined_lines(copy):
            try:
                snapshots, *texts = _columns_of(lines, len(names) + 1)
            except pa.ArrowInvalid as error:
                raise undecodable_text_error(f"The table {table.name}", str(error)) from error
            columns = dict(zip(names, texts, strict=True))
            yield ChunkRows(table.name, columns, snapshots, point, parse_chunk(chunk).planned, TEXT_FORMAT)


def _joined_lines(lines: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytearray]:
    """Rows that are read together; the server sends each by itself. Python's garbage collection would look at
    all of them again and again if they were held in a list."""
    joined = bytearray()
    for line in lines:
        joined += line
        if len(joined) >= _BATCH_BYTES:
            yield joined
            joined = bytearray()
    if joined:
        yield joined


def _conditions(
    table: CapturedTable, bounds: Mapping[str, Any], operators: Mapping[str, str]
) -> Iterator[sql.Composable]:
    """
    Args:
        operators: by key columns whose types came with an extension, the schema of their comparisons.
    """
    yield sql.SQL("true")
    types = {
        column.name: type_name for column, type_name in zip(table.columns, table.type_names, strict=True)
    }
    schemas = [operators.get(key, "pg_catalog") for key in table.keys]
    for bound, comparison in (("from", ">="), ("to", "<")):
        if bound in bounds:
            values = [
                sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(types[key]))
                for key, text in zip(table.keys, bounds[bound], strict=True)
            ]
            keys = [sql.Identifier(key) for key in table.keys]
            yield _key_comparison(list(zip(keys, values, schemas, strict=True)), comparison)


def _key_comparison(
    keys: Sequence[tuple[sql.Composable, sql.Composable, str]], comparison: str
) -> sql.Composable:
    """Key columns compared with values, the first that differs counts.

    Operators are named with their schemas. A comparison of rows has one operator, and an index serves it.
    """
    (key, value, schema), *rest = keys
    if all(other == schema for _, _, other in rest):
        names, values = (sql.SQL(", ").join(part) for part in list(zip(*keys, strict=True))[:2])
        operator = sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(comparison))
        return sql.SQL("ROW({}) {} ROW({})").format(names, operator, values)
    template = sql.SQL(
        "({key} OPERATOR({schema}.{strict}) {value} OR {key} OPERATOR({schema}.=) {value} AND {rest})"
    )
    return template.format(
        key=key,
        value=value,
        schema=sql.Identifier(schema),
        strict=sql.SQL(comparison[0]),
        rest=_key_comparison(rest, comparison),
    )


def _operators(connection: psycopg.Connection, table: CapturedTable) -> dict[str, str]:
    """By key columns whose types came with an extension, the schema of the operators that order them."""
    types = {
        column.name: type_name
        for column, type_name in zip(table.columns, table.type_names, strict=True)
        if column.is_key and column.type_id >= FIRST_USER_TYPE
    }
    if not types:
        return {}
    query = (
        "SELECT k.name, n.nspname FROM unnest(%s::text[], %s::regtype[]) AS k (name, type) "
        "JOIN pg_opclass c ON c.opcintype = k.type AND c.opcdefault "
        "JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree' "
        "JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amoplefttype = k.type "
        "AND a.amoprighttype = k.type "
        "JOIN pg_operator o ON o.oid = a.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace"
    )
    return dict(connection.execute(query, (list(types), list(types.values()))).fetchall())


def _text(column: sql.Composable) -> sql.Composable:
    """As the type's output function prints it, which is what the log has. A cast to text differs for some."""
    return sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END").format(column)


def log_end(connection: psycopg.Connection) -> int:
    """Where the log ends, written to disk or not."""
    (text,) = one_row(connection, "SELECT pg_current_wal_insert_lsn()::text")
    return lsn_number(str(text))


def durable_log_end(connection: psycopg.Connection) -> int:
    """Where the log ends, once all of it is on disk.

    With `synchronous_commit = off` others see a transaction before it is. A server that crashes then forgets
    it, and gives its number and its place in the log to others: rows that were copied of it would stay.

    A mark in the log says that this was its end: see `mark_text`.
    """
    point = log_end(connection)
    flush_log(connection, mark_text(point))
    return point


def flush_log(connection: psycopg.Connection, mark: str = "") -> None:
    """A commit makes the server write its log to disk; without one it may leave the last page for long."""
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = on")
        connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MARK_PREFIX, mark))


def _columns_of(lines: bytearray, width: int) -> list[pa.Array]:
    fields = [str(number) for number in range(width)]
    rows = csv.read_csv(
        pa.BufferReader(lines),
        # A row must be in one block.
        csv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=fields),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(fields, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [rows[field].combine_chunks() for field in fields]
