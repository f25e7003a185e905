"""Mirrored tables: their names in a sink, and their rows in a relational database.

Two tables never get the same name, by construction. A plain name is the database and the table with `__`
between them, without the database `default`. It is unique as long as no part has `__` in it or `_` at an end,
as then it can be cut in one way only. Every other name (also one that is too long, has characters that the
system does not take, or letters that it folds) ends in a hash of the table's whole name and `_`, at which no
plain name ends.

Rows have one more column: their hash. On their way into temporary tables they are sent in batches. If the
database refuses a batch, it is sent in parts until it is known which value it cannot hold.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sinks.common.errors import schema_unsupported_error, value_unsupported_error
from tautochrone.sinks.json_rows import JsonRows, comparable

__all__ = [
    "COMPOSITES",
    "HASH",
    "KEY",
    "MirroredRows",
    "NameRules",
    "altered_columns_error",
    "columns_changed",
    "database_time",
    "from_json",
    "key_changed",
    "key_hash",
    "mirror_name",
    "quoted",
    "refuse_columns_of_other_case",
    "refuse_reserved_columns",
    "row_batches",
    "row_hash",
    "send_rows",
    "sql_type",
]

_OWN_PREFIX = "taut_"
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """Which names a system takes.

    Attributes:
        longest: characters, or bytes in UTF-8 if `in_bytes`.
        refused: a regular expression of what no name may contain.
        folds_case: the system takes names that differ in case only for the same.
    """

    longest: int
    in_bytes: bool = False
    refused: str = r"\x00"
    folds_case: bool = False


def mirror_name(table: TableName, rules: NameRules) -> str:
    """The name of a table in a sink.

    Example:
        >>> rules = NameRules(longest=63, in_bytes=True)
        >>> mirror_name(TableName("lake", ("shop",), "orders"), rules)
        'shop__orders'
        >>> mirror_name(TableName("lake", ("default",), "shop__orders"), rules)
        'shop__orders_fcaaa333cdb162b9_'
    """
    parts = [*(() if table.namespace == ("default",) else table.namespace), table.table]
    name = "__".join(parts)
    if _is_plain(parts, name, rules):
        return name
    whole_name = "\n".join((*table.namespace, table.table))
    suffix = f"_{hashlib.sha256(whole_name.encode()).hexdigest()[:_HASH_DIGITS]}_"
    stem = re.sub(rules.refused, "_", name)
    stem = stem.lower() if rules.folds_case else stem
    if f"{stem}_".lower().startswith(_OWN_PREFIX):
        # So begin the sink's own tables.
        stem = f"own_{stem[len(_OWN_PREFIX) :]}"
    while _length(stem + suffix, rules) > rules.longest:
        stem = stem[:-1]
    return stem + suffix


def _is_plain(parts: list[str], name: str, rules: NameRules) -> bool:
    if any("__" in part or part.startswith("_") or part.endswith("_") for part in parts):
        return False
    if name.lower().startswith(_OWN_PREFIX) or re.search(rules.refused, name):
        return False
    if rules.folds_case and name != name.lower():
        return False
    return _length(name, rules) <= rules.longest


def _length(text: str, rules: NameRules) -> int:
    return len(text.encode()) if rules.in_bytes else len(text)


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


def quoted(*names: str) -> str:
    """A name as SQL of MySQL, which MariaDB and StarRocks read too."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


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
            raise schema_unsupported_error(sink, table, f"the columns {other} and {name} differ in case only")


def columns_changed(stored: Any, schema: Any) -> Reason | None:
    """Why a table of the sink cannot take the rows of a schema; None: it can, once it has all columns.

    Args:
        stored: the columns that the sink has.

    Example:
        >>> stored, schema = spark.StructType().add("n", "integer"), spark.StructType().add("n", "long")
        >>> str(columns_changed(stored, schema))
        'columns changed their type or went: n'
    """
    new_types = {field.name: field.dataType for field in schema.fields}
    changed = [field.name for field in stored.fields if new_types.get(field.name) != field.dataType]
    return Reason.of(ReasonCode.SINK_TABLE_REBUILT, columns=", ".join(changed)) if changed else None


def key_changed(before: Sequence[str], after: Sequence[str]) -> Reason | None:
    """Why a table of the sink with one key cannot take the rows of another; None: it is the same."""
    if list(before) == list(after):
        return None
    shown = {name: ", ".join(key) or "none" for name, key in (("before", before), ("after", after))}
    return Reason.of(ReasonCode.SINK_KEY_CHANGED, **shown)


def altered_columns_error(sink: str, table: TableName, columns: Sequence[str], name: str) -> SinkError:
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
            raise value_unsupported_error(sink, table, str(error), row=text) from error
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

    def refused_error(rows: list[list[Any]]) -> SinkError | None:
        try:
            send(rows)
        except SinkError as error:
            if error.error_class != "SINK_DATABASE_REFUSED" or error.retryable:
                raise
            return error
        return None

    error = refused_error([values for _, values in batch])
    if error is None:
        return
    while len(batch) > 1:
        half = batch[: len(batch) // 2]
        batch = half if refused_error([values for _, values in half]) is not None else batch[len(half) :]
    ((row, values),) = batch
    columns = mirrored.rows.columns
    for number, column in enumerate(columns):
        alone = [value if index == number else None for index, value in enumerate(values[: len(columns)])]
        alone_error = refused_error([[*alone, *values[len(columns) :]]])
        if alone_error is not None:
            text = _row_for_message(mirrored, row)
            raise value_unsupported_error(sink, table, alone_error.message, column, text) from alone_error
    raise value_unsupported_error(sink, table, error.message, row=_row_for_message(mirrored, row)) from error


def _row_for_message(mirrored: MirroredRows, row: Mapping[str, Any]) -> str:
    """The key of a row, or all of it, for people to find it."""
    shown = {name: row[name] for name in mirrored.rows.key} or row
    return json.dumps(shown)[:_ROW_CHARACTERS]
