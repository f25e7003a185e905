"""Rows of a mirrored table in a relational database, which has one more column: the hash of the row.

On their way into temporary tables they are sent in batches. If the database refuses a batch, it is sent in
parts until it is known which value it cannot hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.sinks.json_rows import JsonRows, comparable

__all__ = [
    "COMPOSITES",
    "HASH",
    "KEY",
    "MirroredRows",
    "altered_columns",
    "database_time",
    "from_json",
    "key_hash",
    "name_taken",
    "refuse_changed_columns",
    "refuse_columns_of_other_case",
    "refuse_reserved_columns",
    "require_same_key",
    "row_batches",
    "row_hash",
    "schema_unsupported",
    "send_rows",
    "sql_type",
    "table_missing",
    "unsupported_number",
    "value_unsupported",
]


HASH = "_taut_hash"
KEY = "_taut_key"
"""The hash of the key's columns: keys of any type and length are told apart, also those of other case. In
StarRocks, for a table without a key, the hash of the row and the number of its copy."""
COMPOSITES = (spark.ArrayType, spark.MapType, spark.StructType)
"""The types of columns that are stored as JSON."""


def row_hash(row: Mapping[str, Any]) -> str:
    """The hash of a row in JSON values, in 32 hexadecimal digits."""
    return hashlib.md5(comparable(row).encode(), usedforsecurity=False).hexdigest()


def key_hash(key: str) -> str:
    """The hash of a key, given as its JSON text, in 32 hexadecimal digits."""
    return hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()


def database_time(text: str) -> str:
    """A time in JSON values as a database reads it that knows no time zones.

    >>> database_time("2026-11-26T04:05:06.7Z")
    '2026-11-26 04:05:06.7'
    """
    return text.removesuffix("Z").replace("T", " ")


def sql_type(spark_type: Any, types: Mapping[type, str], decimal: str, json: str, other: str) -> str:
    """A database's name of a type.

    Args:
        types: the names of simple types.
        decimal: the name of decimals, without precision and scale.
        json: the name of the type for composites.
        other: the name for all that is stored as text.
    """
    if isinstance(spark_type, spark.DecimalType):
        return f"{decimal}({spark_type.precision}, {spark_type.scale})"
    if isinstance(spark_type, COMPOSITES):
        return json
    return next((name for kind, name in types.items() if isinstance(spark_type, kind)), other)


def from_json(value: Any, spark_type: Any) -> Any:
    """A value of a JSON column as it was written: databases keep 1e300 as an integer of 301 digits."""
    if value is None:
        return None
    if isinstance(spark_type, spark.ArrayType):
        return [from_json(item, spark_type.elementType) for item in value]
    if isinstance(spark_type, spark.MapType):
        return {key: from_json(item, spark_type.valueType) for key, item in value.items()}
    if isinstance(spark_type, spark.StructType):
        return {field.name: from_json(value[field.name], field.dataType) for field in spark_type.fields}
    is_float = isinstance(spark_type, (spark.FloatType, spark.DoubleType))
    return float(value) if is_float and isinstance(value, int) else value


def refuse_reserved_columns(sink: str, table: TableName, schema: Any) -> None:
    """Refuse columns that a sink itself has.

    Raises:
        SinkError: `SINK_COLUMN_NAME_RESERVED`.
    """
    reserved = [name for name in schema.names if name.startswith("_taut_")]
    if reserved:
        raise SinkError(
            "SINK_COLUMN_NAME_RESERVED",
            f"Sink {sink}: {table} has a column {reserved[0]}, a name that the sink itself uses",
            hint="Rename the column in the query of the dataset.",
            sqlstate="42939",
        )


def refuse_columns_of_other_case(sink: str, table: TableName, schema: Any) -> None:
    """Refuse columns that differ in case only, which are the same for the system.

    Raises:
        SinkError: `SINK_SCHEMA_UNSUPPORTED`.
    """
    names: dict[str, str] = {}
    for name in schema.names:
        other = names.setdefault(name.lower(), name)
        if other != name:
            raise schema_unsupported(sink, table, f"the columns {other} and {name} differ in case only")


def refuse_changed_columns(sink: str, table: TableName, stored: Any, schema: Any, name: str) -> None:
    """Refuse columns that went or have another type.

    Args:
        stored: the columns that the sink has.
        name: of the sink's table, with that of what holds it.

    Raises:
        SinkError: `SINK_COLUMNS_CHANGED`.
    """
    new_types = {field.name: field.dataType for field in schema.fields}
    changed = [field.name for field in stored.fields if new_types.get(field.name) != field.dataType]
    if changed:
        raise SinkError(
            "SINK_COLUMNS_CHANGED",
            f"Sink {sink}: columns of {table} changed their type or went: {', '.join(changed)}",
            hint=_drop(name),
            parameters={"sink": sink, "table": str(table)},
            sqlstate="0A000",
        )


def altered_columns(sink: str, table: TableName, columns: Sequence[str], name: str) -> SinkError:
    """The refusal of a table whose columns somebody else altered: they would not hold all values.

    Args:
        name: of the sink's table, with that of what holds it.
    """
    return SinkError(
        "SINK_COLUMNS_CHANGED",
        f"Sink {sink}: somebody altered columns or keys of the table of {table}: {', '.join(columns)}",
        hint=_drop(name),
        parameters={"sink": sink, "table": str(table)},
        sqlstate="0A000",
    )


def _drop(name: str) -> str:
    return f"Drop the table {name} of the sink: the next run creates it, and delivers all of its rows."


def require_same_key(
    sink: str, table: TableName, before: Sequence[str], after: Sequence[str], name: str
) -> None:
    """Refuse another key than the one of the rows that are there.

    Raises:
        SinkError: `SINK_OPTION_INVALID`.
    """
    if before != after:
        raise SinkError(
            "SINK_OPTION_INVALID",
            f"Sink {sink}: {table} was delivered with the key {before}, and now has {after}",
            hint=f"Set it back. Or: {_drop(name)}",
            sqlstate="22023",
        )


def name_taken(sink: str, table: TableName, name: str, kind: str, container: str) -> SinkError:
    """The refusal of a table that is somebody else's.

    Args:
        kind: what holds the tables, which is also the option that names it: `schema` or `database`.
        container: the name of that.
    """
    return SinkError(
        "SINK_NAME_TAKEN",
        f"Sink {sink}: {table} is mirrored as {name}, and the {kind} {container} has something else of this "
        "name",
        hint=f"If nobody needs it, drop it: the next run creates its own, and delivers all rows. Or give the "
        f"sink another {kind} (option {kind}), or rename the dataset.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="42P07",
    )


def table_missing(sink: str, table: TableName) -> SinkError:
    """The error for a table that the sink does not know."""
    return SinkError(
        "SINK_BASE_CHANGED",
        f"Sink {sink} has no table for {table}",
        hint="The next try creates it, and delivers all of its rows.",
        retryable=True,
        parameters={"sink": sink, "table": str(table)},
    )


def schema_unsupported(sink: str, table: TableName, problem: str) -> SinkError:
    """The refusal of a table that the system cannot have: nothing of it was written.

    Args:
        problem: a part of a sentence, or what the system says.
    """
    return SinkError(
        "SINK_SCHEMA_UNSUPPORTED",
        f"Sink {sink}: its system cannot have the table of {table}: {problem}",
        hint="Rename, cast or leave out columns in the query of the dataset.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="0A000",
    )


def value_unsupported(
    sink: str, table: TableName, problem: str, column: str | None = None, row: str | None = None
) -> SinkError:
    """The refusal of a value that the system cannot hold.

    Args:
        problem: what the system, or Python, says.
        row: its key, or all of it, as text.
    """
    where = "" if column is None else f" in the column {column}"
    which = "" if row is None else f" of the row {row}"
    return SinkError(
        "SINK_VALUE_UNSUPPORTED",
        f"Sink {sink}: {table} has a value{where}{which} that the sink cannot hold: {problem}",
        hint="Change or filter such values in the query of the dataset, or leave the column out of it.",
        parameters={"sink": sink, "table": str(table), "column": column or "", "row": row or ""},
        sqlstate="22000",
    )


def unsupported_number(sink: str, table: TableName, column: str, value: str, system: str) -> SinkError:
    """The refusal of NaN and infinities.

    Args:
        system: what has no such number.
    """
    return SinkError(
        "SINK_VALUE_UNSUPPORTED",
        f"Sink {sink}: {table} has {value} in the column {column}, and {system} has no such number",
        hint=f"Write nullif({column}, double('NaN')), or a condition, in the query of the dataset.",
        parameters={"sink": sink, "table": str(table), "column": column},
        sqlstate="22003",
    )


_ROW_CHARACTERS = 200
_Row = tuple[Mapping[str, Any], list[Any]]
"""A row in JSON values, and as the database takes it."""


class MirroredRows(Protocol):
    """A table as the sink knows it."""

    @property
    def rows(self) -> JsonRows:
        """How rows become JSON values."""

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """A row in JSON values as the database takes it; the last one is its hash in hexadecimal digits."""


def row_batches(
    sink: str, table: TableName, mirrored: MirroredRows, rows: Rows, chunk_rows: int, known_rows: int | None
) -> Iterator[list[_Row]]:
    """The rows in batches.

    Raises:
        SinkError: `SINK_VALUE_UNSUPPORTED`, Python has no such value: years before 1 and after 9999, and
            texts that are no Unicode.
    """
    batch: list[_Row] = []
    encoded = mirrored.rows.rows(rows, chunk_rows, known_rows)
    while True:
        row: Mapping[str, Any] | None = None
        try:
            row = next(encoded, None)
            if row is None:
                break
            batch.append((row, mirrored.values(row)))
        except (ValueError, OverflowError) as error:
            text = None if row is None else _row_for_message(mirrored, row)
            raise value_unsupported(sink, table, str(error), row=text) from error
        if len(batch) == chunk_rows:
            yield batch
            batch = []
    if batch:
        yield batch


def send_rows(
    sink: str,
    table: TableName,
    mirrored: MirroredRows,
    batch: list[_Row],
    send: Callable[[list[list[Any]]], None],
) -> None:
    """Send rows; if the database refuses them, send parts of them until it is known which value it refuses.

    Raises:
        SinkError: `SINK_VALUE_UNSUPPORTED`.
    """

    def refusal(rows: list[list[Any]]) -> SinkError | None:
        try:
            send(rows)
        except SinkError as error:
            if error.error_class != "SINK_DATABASE_REFUSED" or error.retryable:
                raise
            return error
        return None

    error = refusal([values for _, values in batch])
    if error is None:
        return
    while len(batch) > 1:
        half = batch[: len(batch) // 2]
        batch = half if refusal([values for _, values in half]) is not None else batch[len(half) :]
    ((row, values),) = batch
    columns = mirrored.rows.columns
    for number, column in enumerate(columns):
        alone = [value if index == number else None for index, value in enumerate(values[: len(columns)])]
        alone_error = refusal([[*alone, *values[len(columns) :]]])
        if alone_error is not None:
            text = _row_for_message(mirrored, row)
            raise value_unsupported(sink, table, alone_error.message, column, text) from alone_error
    raise value_unsupported(sink, table, error.message, row=_row_for_message(mirrored, row)) from error


def _row_for_message(mirrored: MirroredRows, row: Mapping[str, Any]) -> str:
    """The key of a row, or all of it, for people to find it."""
    shown = {name: row[name] for name in mirrored.rows.key} or row
    return json.dumps(shown)[:_ROW_CHARACTERS]
